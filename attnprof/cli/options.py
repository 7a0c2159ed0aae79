"""The options that several commands share: declared once, so that a name means the same everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import values
from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.kernels.spec import KernelSpec, Layout
    from attnprof.model.workload import Workload

# A matrix that no L2 cache holds.
MATRIX_BYTES = 2**30

# What --variant calls the kernel itself, and that with all its variants.
BASE, ALL_VARIANTS = "base", "all"

# What means something for attention only: a matrix has rows and columns.
_OF_ATTENTION = ("--batch", "--heads", "--kv-heads", "--head-dim", "--scale", "--pass", "--layout")


def _seq(default: str) -> Any:
    forms = "4096, 4k, 1k,2k, 1k:32k:x2 or 1k:8k:+1k"
    return typer.Option("--seq", metavar="N", help=f"Sequence length: {forms}. Repeatable.  [default: {default}]")


def _rows(default: str) -> Any:
    return typer.Option("--rows", metavar="N", help=f"Softmax kernels: rows of the matrix.  [default: {default}]")


# On the emulator less shows the same.
Seq = Annotated[list[str] | None, _seq("1k:32k:x2")]
EmulatedSeq = Annotated[list[str] | None, _seq("256")]
Rows = Annotated[list[str] | None, _rows("for 1 GiB")]
EmulatedRows = Annotated[list[str] | None, _rows("64")]
KvSeq = Annotated[
    list[str] | None, typer.Option("--kv-seq", metavar="N", help="Number of keys, where it differs from --seq.")
]
Batch = Annotated[str, typer.Option("--batch", metavar="N", help="Batch size.")]
Heads = Annotated[str, typer.Option("--heads", metavar="N", help="Query heads.")]
KvHeads = Annotated[
    str | None, typer.Option("--kv-heads", metavar="N", help="KV heads; fewer than --heads is grouped-query attention.")
]
HeadDim = Annotated[
    list[str] | None, typer.Option("--head-dim", metavar="N", help="Head dimension; comma lists.  [default: 128]")
]
Scale = Annotated[
    str | None,
    typer.Option("--scale", metavar="X", help="Factor of the scores before the softmax.  [default: 1/sqrt(head dim)]"),
]
DtypeNames = Annotated[
    list[str] | None, typer.Option("--dtype", metavar="fp16|bf16", help="Element type; comma lists.  [default: fp16]")
]
Causal = Annotated[bool, typer.Option("--causal/--no-causal", help="Causal mask, aligned to the last key.")]
PassName = Annotated[str, typer.Option("--pass", metavar="fwd|bwd", help="Forward or backward.")]
Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="NAME", help="Kernels: names, comma lists, all, or a file ./mine.py."),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        help=(
            "Variants of --kernel: traps and other cures (attnprof kernels lists them); "
            "base is the kernel itself, all is both."
        ),
    ),
]
Ceilings = Annotated[
    str,
    typer.Option(
        "--ceilings", metavar="datasheet|clock", help="Peaks from the datasheet, or from units times the top clock."
    ),
]
LayoutName = Annotated[
    str,
    typer.Option(
        "--layout",
        metavar="bhsd|bshd",
        help="Axes of Q, K, V and O in memory: heads outside the sequence, or inside it (no copy).",
    ),
]
Cols = Annotated[
    list[str] | None,
    typer.Option("--cols", metavar="N", help="Softmax kernels: columns of the matrix, instead of --seq; as --seq."),
]
Tuned = Annotated[
    bool,
    typer.Option(
        "--tuned/--no-tuned", help="Take the tiles that bench --tune kept for the local GPU, or the built-in ones."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Strict JSON on stdout.")]
Csv = Annotated[bool, typer.Option("--csv", help="CSV on stdout.")]
Md = Annotated[bool, typer.Option("--md", help="Markdown on stdout.")]
OutputFiles = Annotated[
    list[str] | None,
    typer.Option("--output", metavar="FILE", help="Save to a file as well; .json, .csv, .md or .txt. Repeatable."),
]
Seed = Annotated[str, typer.Option("--seed", metavar="N", help="Seed of the random inputs.")]


@dataclass(frozen=True, slots=True)
class Typed:
    """The command that was run, which of its options were typed (a default may be, too), and how to warn of them."""

    command: str = "roofline"
    options: tuple[str, ...] = ()
    warn: Callable[[str], None] = lambda _: None

    @classmethod
    def of(cls, context: typer.Context) -> Typed:
        """What the context has of the command line; options by their first name, in the order of the help."""
        sources = ((each.opts[0], context.get_parameter_source(each.name or "")) for each in context.command.params)
        # By name: Typer vendors Click from some version on, with an enumeration of its own.
        typed = tuple(name for name, source in sources if source is not None and source.name == "COMMANDLINE")
        return cls(context.info_name or "", typed, context.obj.err)


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The workload options as they were typed."""

    seq: Sequence[str] | None
    kv_seq: Sequence[str] | None
    batch: str
    heads: str
    kv_heads: str | None
    head_dim: Sequence[str] | None
    dtype: Sequence[str] | None
    causal: bool
    direction: str
    rows: Sequence[str] | None = None
    cols: Sequence[str] | None = None
    scale: str | None = None
    layout: str = "bhsd"
    typed: Typed = Typed()

    def sweep(
        self, kernel_names: Sequence[str] | None, variants: Sequence[str] | None = None
    ) -> tuple[tuple[KernelSpec, ...], tuple[Workload, ...]]:
        """The kernels and what they run on: attention in the asked pass, or matrices where ``--cols`` is given.

        With ``variants`` those of the kernels instead.

        Raises:
            UsageError: a value that is not allowed, or kernels that do not compute what the options describe.
        """
        matrices = self.rows is not None or self.cols is not None
        specs = kernels(kernel_names)
        named = values.kernel_names(kernel_names or [])
        if whole_catalogue(kernel_names):
            specs = self._fitting(specs, named, matrices=matrices)
        if variants is not None:
            specs = with_variants(specs, kernel_names, variants)
        others = [spec.name for spec in specs if spec.operation != "softmax"]
        if matrices and others:
            raise UsageError(
                f"--rows and --cols are for softmax kernels; {others[0]} computes attention",
                "attnprof kernels lists both; attention takes --seq",
            )
        if others:
            values.choices(self.dtype or ["fp16"], "--dtype", ("fp16", "bf16"))  # the tensor cores' types
        workloads = self._matrices() if matrices else self.workloads()
        if not named:
            specs = tuple(spec for spec in specs if not spec.niche or _any_runs(spec, workloads))
        return tuple(spec.laid_out(self._layout()) for spec in specs), workloads

    def _fitting(self, specs: Sequence[KernelSpec], named: Sequence[str], *, matrices: bool) -> tuple[KernelSpec, ...]:
        """Of all kernels those of the operation and the pass; and those that were named besides ``all``."""
        from attnprof.kernels import catalogue
        from attnprof.model.workload import Pass

        asked = {spec.name for spec in catalogue.select(name for name in named if name != "all")}
        if matrices:
            return tuple(spec for spec in specs if spec.name in asked or spec.operation == "softmax")
        direction = Pass(values.choice(self.direction, "--pass", [p.value for p in Pass]))
        # A softmax kernel can stand for the scores of an attention, where all are wanted.
        operations = ("attention", "softmax") if named else ("attention",)
        return tuple(
            spec
            for spec in specs
            if spec.name in asked or (spec.operation in operations and spec.direction is direction)
        )

    def _layout(self) -> Layout:
        from attnprof.kernels.spec import LAYOUTS

        return next(name for name in LAYOUTS if name == values.choice(self.layout, "--layout", LAYOUTS))

    def _matrices(self) -> tuple[Workload, ...]:
        from attnprof.model.dtypes import Dtype
        from attnprof.model.workload import Workload

        self._refuse_attention()
        if self.cols is None:
            raise UsageError("--rows needs --cols", "for example: --cols 4096 --rows 1024")
        columns = self._lengths(self.cols, "--cols", example="4096")
        rows = self._lengths(self.rows or [], "--rows", example="1024")
        dtypes = [Dtype(name) for name in values.choices(self.dtype or ["fp16"], "--dtype", [str(d) for d in Dtype])]
        _check_sweep(len(columns) * max(len(rows), 1) * len(dtypes), "--cols 1k:32k:x2")
        return tuple(
            Workload.of(r or max(1, MATRIX_BYTES // (c * dtype.itemsize)), seq_kv=c, heads=1, dtype=dtype)
            for dtype, c, r in itertools.product(dtypes, columns, rows or (0,))
        )

    def _lengths(self, texts: Sequence[str], option: str, *, example: str) -> tuple[int, ...]:
        found = values.counts(texts, option, largest=values.MAX_LENGTH, example=example)
        for text in filter(values.perhaps_one_number, texts):
            apart = text.replace(" ", "").split(",")
            self.typed.warn(
                f"warning: a comma separates values: {option} {text} is {', '.join(apart[:-1])} and {apart[-1]}; "
                f"one number is {''.join(apart)}"
            )
        return found

    def _refuse_attention(self) -> None:
        """Refuse options that a matrix has no use for."""
        matrix = f"attnprof {self.typed.command} --cols 4096"
        typed = self.typed.options
        lengths = [name for name in typed if name in ("--seq", "--kv-seq")]
        if lengths:
            of_matrix = next(name for name in typed if name in ("--rows", "--cols"))
            raise UsageError(
                f"{of_matrix} and {lengths[0]} exclude each other",
                f"softmax kernels: {matrix}; attention: attnprof {self.typed.command} --seq 256",
            )
        # --no-causal says what is so.
        others = [name for name in typed if name in _OF_ATTENTION or (name == "--causal" and self.causal)]
        if others:
            raise UsageError(
                f"softmax kernels take no {', '.join(others)}", f"they take --rows, --cols and --dtype: {matrix}"
            )

    def workloads(self, default_seq: str = "1k:32k:x2") -> tuple[Workload, ...]:
        """Every combination of the values that were given, lengths first.

        Raises:
            UsageError: a value that is not allowed.
        """
        from attnprof.model.dtypes import Dtype
        from attnprof.model.workload import SCALE_MAX, SCALE_MIN, Pass, Workload

        lengths = self._lengths(self.seq or [default_seq], "--seq", example="4096")
        kv_lengths = self._lengths(self.kv_seq or [], "--kv-seq", example="4096")
        heads = values.count(self.heads, "--heads", example="32")
        kv_heads = heads if self.kv_heads is None else values.count(self.kv_heads, "--kv-heads", example="8")
        if heads % kv_heads:
            raise UsageError(
                f"--kv-heads {kv_heads} does not divide --heads {heads}",
                f"each KV head serves as many query heads: --kv-heads {_nearest_divisor(heads, kv_heads)}",
            )
        batch = values.count(self.batch, "--batch", example="1")
        head_dims = values.counts(self.head_dim or ["128"], "--head-dim", example="128")
        dtypes = values.choices(self.dtype or ["fp16"], "--dtype", [str(dtype) for dtype in Dtype])
        direction = Pass(values.choice(self.direction, "--pass", [p.value for p in Pass]))
        scale = None
        if self.scale is not None:
            scale = values.number(self.scale, "--scale", smallest=SCALE_MIN, largest=SCALE_MAX, example="0.125")
        combinations = len(lengths) * max(len(kv_lengths), 1) * len(head_dims) * len(dtypes)
        _check_sweep(combinations, "--seq 1k:32k:x2")
        return tuple(
            Workload.of(
                seq_q,
                seq_kv=seq_kv or seq_q,
                batch=batch,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                dtype=Dtype(dtype),
                causal=self.causal,
                direction=direction,
                softmax_scale=scale,
            )
            for dtype, head_dim, seq_q, seq_kv in itertools.product(dtypes, head_dims, lengths, kv_lengths or (0,))
        )


def _check_sweep(combinations: int, example: str) -> None:
    if combinations > values.MAX_SWEEP:
        raise UsageError(
            f"{combinations:,} workloads are more than the {values.MAX_SWEEP:,} of one run",
            f"give fewer lengths, for example {example}",
        )


def kernels(names: Sequence[str] | None) -> tuple[KernelSpec, ...]:
    """The chosen kernels, in the order given; without a choice, the built-in ladder.

    ``all`` adds what other packages register: finding those costs a scan of the installed packages.

    Raises:
        UsageError: an unknown name, or a file that holds no kernel or can't be imported.
    """
    from attnprof.kernels import catalogue

    if not names:
        return catalogue.builtin()
    return catalogue.select(values.kernel_names(names))


def whole_catalogue(names: Sequence[str] | None) -> bool:
    """Whether no kernel was chosen, or ``all``."""
    return not names or "all" in values.kernel_names(names)


def _any_runs(spec: KernelSpec, workloads: Sequence[Workload]) -> bool:
    return any(spec.unsupported(workload) is None for workload in workloads)


def with_variants(
    specs: Sequence[KernelSpec], kernel_names: Sequence[str] | None, wanted: Sequence[str]
) -> tuple[KernelSpec, ...]:
    """For each kernel its variants of these names, ``base`` being itself, ``all`` itself and all of them.

    Raises:
        UsageError: no kernel was named, or a kernel has no such variant.
    """
    names = values.items(wanted, "--variant", "plain")
    if not kernel_names:
        raise UsageError("--variant needs --kernel", f"for example: --kernel fa2 --variant {names[0]}")
    found = (each for spec in specs for name in names for each in _variants_called(name, spec))
    return tuple({spec.name: spec for spec in found}.values())


def _variants_called(name: str, spec: KernelSpec) -> tuple[KernelSpec, ...]:
    if name == ALL_VARIANTS:
        return (spec, *spec.variants())
    return (spec,) if name == BASE else (spec.variant(name),)


def _nearest_divisor(heads: int, wanted: int) -> int:
    return min((n for n in range(1, heads + 1) if heads % n == 0), key=lambda n: abs(n - wanted))
