"""``attnprof tile``: what a tile choice costs in shared memory, registers, occupancy and bank conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import clone, gpus, options, values
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import output
from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.model.layouts import Layout
    from attnprof.model.tiles import TileChoice
    from attnprof.report.document import Report, Section

_MOST = 1024  # of queries, keys or elements of a head: what no SM's shared memory holds


def tile(
    context: typer.Context,
    block_q: Annotated[
        str | None, typer.Option("--block-q", metavar="N", help="Queries that a block owns.  [default: 64]")
    ] = None,
    block_kv: Annotated[
        str | None, typer.Option("--block-kv", metavar="N", help="Keys at a time.  [default: 64]")
    ] = None,
    stages: Annotated[
        str | None, typer.Option("--stages", metavar="N", help="Tiles of K and of V at once.  [default: 1]")
    ] = None,
    warps: Annotated[
        str | None, typer.Option("--warps", metavar="N", help="Warps a block.  [default: 4, if they share it evenly]")
    ] = None,
    head_dim: Annotated[str, typer.Option("--head-dim", metavar="N", help="Head dimension.")] = "128",
    dtype: Annotated[str, typer.Option("--dtype", metavar="fp16|bf16", help="Element type.")] = "fp16",
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", metavar="plain|pad|swizzle", help="How rows lie in shared memory.  [default: swizzle]"
        ),
    ] = None,
    pad: Annotated[
        str | None,
        typer.Option("--pad", metavar="N", help="Elements that --layout pad adds to a row.  [default: 8]"),
    ] = None,
    p_smem: Annotated[bool, typer.Option("--p-smem", help="P goes through shared memory, too.")] = False,
    registers: Annotated[
        str | None,
        typer.Option("--registers", metavar="N", help="Registers a thread, where you know them.  [default: estimated]"),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Rank the tiles of a grid that fit; what you give is kept.")
    ] = False,
    top: Annotated[
        str | None, typer.Option("--top", metavar="N", help="With --sweep: how many to show.  [default: 20]")
    ] = None,
    kernel: options.Kernels = None,
    seq: Annotated[
        str | None, typer.Option("--seq", metavar="N", help="With --kernel: sequence length.  [default: 4096]")
    ] = None,
    causal: options.Causal = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="GPUs of the built-in table, e.g. A100-SXM4-80GB,H200."),
    ] = None,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Show shared memory, occupancy and bank conflicts of a tile.

    For a FlashAttention-2-like forward: registers are estimated, bank conflicts come from the addresses. --sweep
    ranks tiles that fit. --kernel compiles a kernel of the catalogue and shows what it really takes; no GPU needed.
    """
    from attnprof.model.dtypes import Dtype
    from attnprof.model.layouts import Layout

    out = output(context.obj, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    typed = TileOptions(
        block_q=_optional(block_q, "--block-q", "64"),
        block_kv=_optional(block_kv, "--block-kv", "64"),
        stages=_optional(stages, "--stages", "2"),
        warps=_optional(warps, "--warps", "4"),
        head_dim=values.count(head_dim, "--head-dim", largest=_MOST, example="128"),
        dtype=Dtype(values.choice(dtype, "--dtype", ("fp16", "bf16"))),
        layout=None if layout is None else Layout(values.choice(layout, "--layout", [each.value for each in Layout])),
        pad=_optional(pad, "--pad", "8"),
        p_in_smem=p_smem,
        registers=None if registers is None else values.count(registers, "--registers", largest=255, example="128"),
    )
    if kernel is not None:
        from attnprof.cli.compiled import compiled_report

        others = {**typed.tile_options(), "--sweep": sweep or None, "--top": top}
        _refuse_beside("--kernel", others, "attnprof tile --kernel fa2")
        length = values.count(seq or "4096", "--seq", largest=values.MAX_LENGTH, example="4096")
        specs = options.kernels(kernel)
        clone.note_edits(context.obj, specs)
        report, code = compiled_report(
            context.obj,
            specs,
            gpus.targets(gpu),
            seq=length,
            head_dim=typed.head_dim,
            dtype=typed.dtype,
            causal=causal,
        )
        out.show(report)
        return code
    if seq is not None or causal:
        raise UsageError("--seq and --causal choose a variant of a --kernel", "attnprof tile --kernel fa2 --seq 4096")
    if top is not None and not sweep:
        raise UsageError("--top says how many tiles of a --sweep to show", "attnprof tile --sweep --top 10")
    if sweep:
        _refuse_beside("--sweep", {"--registers": typed.registers}, "attnprof tile --sweep")
        report = _swept(typed, gpus.targets(gpu), values.count(top or "20", "--top", example="20"))
    else:
        report = _one(typed, gpus.targets(gpu))
    out.show(report)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class TileOptions:
    """The options of a tile; None where left out."""

    block_q: int | None
    block_kv: int | None
    stages: int | None
    warps: int | None
    head_dim: int
    dtype: Any
    layout: Layout | None
    pad: int | None
    p_in_smem: bool
    registers: int | None

    def choice(self) -> TileChoice:
        """The tile that they describe.

        Raises:
            UsageError: no such tile, or rows that the layout can't have.
        """
        from attnprof.model.tiles import DEFAULT_PAD, TileChoice, default_warps

        block_q = self.block_q or 64
        choice = TileChoice(
            head_dim=self.head_dim,
            block_q=block_q,
            block_kv=self.block_kv or 64,
            stages=self.stages or 1,
            warps=self.warps or default_warps(block_q),
            dtype=self.dtype,
            layout=self.fitting_layout(),
            pad=self.pad or DEFAULT_PAD,
            p_in_smem=self.p_in_smem,
        )
        misfit = choice.misfit()
        if misfit is not None:
            raise UsageError(f"--layout {choice.layout}: {misfit}", "take --layout pad")
        return choice

    def fitting_layout(self) -> Layout:
        """The layout: the swizzle where nothing else is asked for and rows of this length can have it, else padding."""
        from attnprof.model.layouts import Layout, Tile

        if self.layout is not None:
            return self.layout
        rows = [self.head_dim, *([self.block_kv or 64] if self.p_in_smem else [])]
        fits = all(Tile(row * self.dtype.itemsize, Layout.SWIZZLE).misfit() is None for row in rows)
        return Layout.SWIZZLE if fits else Layout.PAD

    def tile_options(self) -> dict[str, object]:
        """The options that a kernel's own tiles leave no room for."""
        return {
            "--block-q": self.block_q,
            "--block-kv": self.block_kv,
            "--stages": self.stages,
            "--warps": self.warps,
            "--layout": self.layout,
            "--pad": self.pad,
            "--p-smem": self.p_in_smem or None,
            "--registers": self.registers,
        }


def _one(typed: TileOptions, targets: Sequence[gpus.Target]) -> Report:
    from attnprof.report import tile as view
    from attnprof.report.document import Report, Section

    choice = typed.choice()
    rows = [view.tile_row(choice, target.device, typed.registers) for target in targets]
    conflicts = view.conflict_rows(choice)
    heading = (
        *_gpu_lines(targets),
        gpus.labelled("Tile", view.tile_line(choice)),
        gpus.labelled("Shared", view.smem_line(choice)),
        gpus.labelled("Registers", view.register_line(choice, typed.registers)),
    )
    aside = gpus.labelled("Conflicts", f"of each access, in three layouts; pad is +{choice.pad} elements a row")
    sections: tuple[Section, ...] = (
        Section(heading, rows, view.notes(rows)),
        Section((aside,), conflicts, view.conflict_notes(conflicts, choice), columns=view.CONFLICT_COLUMNS),
    )
    fields = {
        **_device_fields(targets),
        **{key: value for key, value in rows[0].items() if key != "gpu"},
        "bank_conflicts": conflicts,
    }
    return Report("tile", view.COLUMNS, sections, fields=fields)


def _swept(typed: TileOptions, targets: Sequence[gpus.Target], top: int) -> Report:
    from attnprof.model import tile_sweep
    from attnprof.report import tile as view
    from attnprof.report.document import Report, Section

    checked = _checked_sweep(typed)
    warps: Sequence[int] = tile_sweep.WARPS
    if typed.warps:
        warps = (typed.warps,)
    elif typed.block_q:
        warps = tile_sweep.sharing_warps(typed.block_q)
    sections: list[Section] = []
    sweeps: list[dict[str, Any]] = []
    for target in targets:
        facts = target.device.architecture
        if facts is None:
            sweeps.append(view.sweep_fields(None, target.device))
            sections.append(Section(gpus.device_lines(target), (), view.sweep_notes(sweeps[-1])))
            continue
        found = tile_sweep.sweep(
            facts,
            head_dim=checked.head_dim,
            dtype=checked.dtype,
            layout=checked.layout,
            pad=checked.pad,
            p_in_smem=checked.p_in_smem,
            blocks_q=(typed.block_q,) if typed.block_q else tile_sweep.BLOCKS_Q,
            blocks_kv=(typed.block_kv,) if typed.block_kv else tile_sweep.BLOCKS_KV,
            stages=(typed.stages,) if typed.stages else tile_sweep.STAGES,
            warps=warps,
            half_tensor_rate=target.device.half_tensor_rate,
            smem_per_sm_bytes=target.device.smem_per_sm_bytes,
        )
        if not found.tried:
            raise UsageError(
                f"--sweep has no block of queries that --warps {typed.warps} can share", "for example: --warps 4"
            )
        rows = view.sweep_rows(found, target.device)
        counted = f"{len(rows):,} of {found.tried:,} tiles fit"
        counted += f"; the first {min(top, len(rows)):,}" if rows else ""
        layout = view.layout_text(checked.layout, checked.pad)
        heading = (
            *gpus.device_lines(target),
            gpus.labelled("Sweep", f"head dim {checked.head_dim} · {checked.dtype} · {layout} · {counted}"),
        )
        sweeps.append(view.sweep_fields(found, target.device))
        sections.append(Section(heading, rows[:top], view.sweep_notes(sweeps[-1])))
    fields = {**_device_fields(targets), "sweeps": sweeps}
    return Report("tile", view.SWEEP_COLUMNS, tuple(sections), fields=fields, summary=view.SWEEP_LEGEND)


def _checked_sweep(typed: TileOptions) -> TileChoice:
    """A tile with what was given, of the layout of a sweep over what was left out.

    Raises:
        UsageError: what was given is of no tile, there is a padding that no tile of the sweep has, or rows start where
            ldmatrix and 16-byte copies, which all tiles of the sweep use, cannot.
    """
    from attnprof.model.layouts import CHUNK_BYTES, Layout
    from attnprof.model.tiles import MMA_ROWS

    # With the least block that the warps can share, where both were left out.
    choice = replace(typed, block_q=typed.block_q or MMA_ROWS * (typed.warps or 1)).choice()
    # A single tile shows all three layouts' conflicts, so its --pad always says something.
    if typed.pad is not None and choice.layout is not Layout.PAD:
        raise UsageError(
            f"--pad {typed.pad} is of --layout pad, and the tiles of this --sweep are {choice.layout}",
            "for example: --sweep --layout pad --pad 8",
        )
    if choice.tile().pitch_bytes % CHUNK_BYTES:
        raise UsageError(
            f"--pad {choice.pad} starts rows at no multiple of {CHUNK_BYTES} bytes, which ldmatrix and 16-byte copies "
            "need",
            "for example: --pad 8",
        )
    return choice


def _gpu_lines(targets: Sequence[gpus.Target]) -> tuple[str, ...]:
    if len(targets) == 1:
        return gpus.device_lines(targets[0])
    return (gpus.labelled("GPUs", ", ".join(target.device.name for target in targets)),)


def _device_fields(targets: Sequence[gpus.Target]) -> dict[str, Any]:
    return {"device": targets[0].device.as_json(), "devices": [target.device.as_json() for target in targets]}


def _optional(text: str | None, option: str, example: str) -> int | None:
    return None if text is None else values.count(text, option, largest=_MOST, example=example)


def _refuse_beside(main: str, others: dict[str, object], example: str) -> None:
    given = [option for option, value in others.items() if value is not None]
    if given:
        raise UsageError(f"{main} and {given[0]} exclude each other", f"for example: {example}")


COMMAND = Command(tile, order=80, example="attnprof tile --block-q 128 --block-kv 64 --stages 2 --gpu H200")
