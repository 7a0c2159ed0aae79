"""What ``attnprof tile`` shows: a row a GPU with what an SM holds, a row an access pattern with its bank conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.model.banks import BANK_BYTES, BANKS, WARP
from attnprof.model.devices import DeviceSpec
from attnprof.model.layouts import Layout
from attnprof.model.occupancy import Occupancy
from attnprof.model.patterns import PATTERNS
from attnprof.model.tile_sweep import RankedTile, Sweep
from attnprof.model.tiles import (
    TileChoice,
    bank_conflicts,
    register_parts,
    registers,
    smem_bytes,
    smem_parts,
    tile_occupancy,
)
from attnprof.report import units
from attnprof.report.document import Column, Row
from attnprof.report.workload import REASON, STATUS, WORKLOAD


def _percent(share: float) -> str:
    return units.percent(100 * share)


def _degree(value: float) -> str:
    return f"{value:g}×"


# The instructions that the tiles are made for: PTX ISA, target notes of mma.m16n8k16 and cp.async.
OLDEST = (8, 0)

GPU = Column("gpu", "GPU", "the GPU that the row is about", align="left")

_TILE: tuple[Column, ...] = (
    Column("head_dim", "d", "head dimension", show="never"),
    Column("dtype", "Type", "element type", align="left", show="never"),
    Column("block_q", "Queries", "queries that a block owns", show="never"),
    Column("block_kv", "Keys", "keys that it works on at a time", show="never"),
    Column("stages", "Stages", "tiles of K and of V in shared memory at once", show="never"),
    Column("warps", "Warps", "warps a block", show="never"),
    Column("layout", "Layout", "plain, pad or swizzle", align="left", show="never"),
    Column("pad", "Padding", "elements that the layout adds to a row", show="never"),
    Column("p_in_smem", "P shared", "whether P goes through shared memory", units.yes_no, align="left", show="never"),
)
_SMEM = Column("smem_bytes", "Shared", "shared memory a block, static and dynamic (B)", units.exact)
_REGISTERS = Column("registers", "Registers", "registers a thread: estimated, or as compiled")
_RESIDENT: tuple[Column, ...] = (
    Column("blocks_per_sm", "Blocks/SM", "blocks that an SM holds at once"),
    Column("warps_per_sm", "Warps/SM", "their warps"),
    Column("occupancy", "Occupancy", "warps over the most that an SM can hold (0 to 1)", _percent),
    Column("limited_by", "Limited by", "what allows no further block", align="left"),
)

COLUMNS: tuple[Column, ...] = (
    GPU,
    *_TILE,
    replace(_SMEM, show="never"),
    replace(_REGISTERS, show="never"),
    *_RESIDENT,
    *(
        Column(
            f"bank_conflict_degree.{pattern.name}",
            pattern.name,
            f"wavefronts over the fewest possible: {pattern.description}",
            show="never",
        )
        for pattern in PATTERNS
    ),
    REASON,
)

KERNEL_COLUMNS: tuple[Column, ...] = (
    replace(GPU, show="varies"),
    Column("kernel", "Kernel", "the kernel's name", align="left"),
    Column("entry", "Entry", "its entry point", align="left"),
    replace(STATUS, show=lambda rows: any(row["status"] != "ok" for row in rows)),
    *(replace(column, show="never") for column in WORKLOAD if column.in_csv),
    Column("arch", "Arch", "what it was compiled for", align="left"),
    Column("threads", "Threads", "threads a block"),
    _SMEM,
    _REGISTERS,
    Column("spill_bytes", "Spills", "bytes a thread stored to local memory because registers ran out (B)"),
    *_RESIDENT,
    REASON,
)

# What tells a sweep's tiles apart; the heading has the rest.
_SWEPT = ("block_q", "block_kv", "stages", "warps")

SWEEP_COLUMNS: tuple[Column, ...] = (
    replace(GPU, show="never"),
    Column("rank", "Rank", "1 is the first to measure"),
    *(replace(column, show="always") if column.key in _SWEPT else column for column in _TILE),
    _SMEM,
    replace(_REGISTERS, description="registers a thread, estimated"),
    *(replace(column, show="never") if column.key == "warps_per_sm" else column for column in _RESIDENT),
    Column("flops_per_smem_byte", "FLOP/B", "matrix FLOPs a byte of shared-memory traffic", units.intensity),
    Column("tensor_share", "Tensor", "share of the tensor rate that shared memory allows (0 to 1)", _percent),
)

CONFLICT_COLUMNS: tuple[Column, ...] = (
    Column("name", "Access", "the pattern's name, as in JSON", align="left"),
    Column("tensor", "Tile", "what it touches", align="left"),
    Column("instruction", "Instruction", "what does it", align="left"),
    *(
        Column(f"layouts.{layout}.degree", layout.value, f"degree with the {layout} layout", _degree)
        for layout in Layout
    ),
    Column("conflict_free_pad", "Cure", "least padding without conflicts, in elements", lambda pad: f"+{pad}"),
    Column("description", "Lanes", "what each lane accesses", align="left", show="never"),
)

SWEEP_LEGEND = (
    "FLOP/B: matrix FLOPs a byte of shared-memory traffic; Tensor: the share of the tensor rate that this allows.",
    "Rank, for what to measure first: eight warps an SM, then Tensor in steps of 10 %, two stages, two blocks an SM,",
    "queries × keys, and the least shared memory.",
)
REGISTER_NAMES = {
    "o": "output",
    "s": "scores",
    "fragments": "fragments",
    "statistics": "maximum and sum",
    "other": "other",
}


def conflict_rows(choice: TileChoice) -> list[dict[str, Any]]:
    """Every access pattern under every layout, whatever layout was chosen."""
    by_layout = {layout: bank_conflicts(replace(choice, layout=layout)) for layout in Layout}
    return [
        {
            "name": pattern.name,
            "tensor": pattern.tensor,
            "instruction": pattern.instruction,
            "description": pattern.description,
            "layouts": {str(layout): _conflict(by_layout[layout][pattern]) for layout in Layout},
            "conflict_free_pad": pattern.conflict_free_pad(choice.tile(pattern.row).row_bytes),
        }
        for pattern in PATTERNS
    ]


def conflict_notes(rows: Sequence[Row], choice: TileChoice) -> tuple[str, ...]:
    """What the figures mean, and why no padding serves every access."""
    found = [
        "Degree: wavefronts over the fewest possible; 1× is without conflicts. Cure: the least padding, in elements, "
        "that removes them."
    ]
    column = next(row for row in rows if row["name"] == "column_read")
    padded, cure = column["layouts"]["pad"], column["conflict_free_pad"]
    if padded is not None and padded["degree"] > 1 and cure is not None:
        tile = replace(choice, layout=Layout.PAD).tile()
        starts = {tile.address(row, 0) // BANK_BYTES % BANKS for row in range(WARP)}
        found.append(
            f"column_read is {_degree(padded['degree'])} with {units.counted(choice.pad, 'element')} of padding: it "
            f"reads {WARP} rows at once, which start in {units.counted(len(starts), 'bank')}."
        )
        if cure % 8:
            found.append(
                f"{cure} would cure it, but then rows start at no multiple of 16 bytes, which ldmatrix and 16-byte "
                "copies need."
            )
    return tuple(found)


def tile_row(choice: TileChoice, device: DeviceSpec, registers_per_thread: int | None) -> dict[str, Any]:
    """A tile on a GPU.

    Args:
        choice: the tile.
        device: the GPU.
        registers_per_thread: what the user knows of the compiled kernel; None for the estimate.
    """
    facts = device.architecture
    found = None
    if facts is not None:
        found = tile_occupancy(
            choice,
            facts,
            registers_per_thread=registers_per_thread,
            smem_per_sm_bytes=device.smem_per_sm_bytes,
        )
    return {
        "gpu": device.name,
        **_tile_fields(choice),
        "threads": choice.threads,
        "smem_bytes": smem_bytes(choice),
        "smem_parts": smem_parts(choice),
        "registers": registers(choice) if registers_per_thread is None else registers_per_thread,
        "registers_source": "estimate" if registers_per_thread is None else "given",
        "register_parts": register_parts(choice) if registers_per_thread is None else None,
        **occupancy_fields(found),
        "bank_conflict_degree": {
            pattern.name: None if cost is None else cost.degree for pattern, cost in bank_conflicts(choice).items()
        },
        "reason": _reason(choice, device, registers_per_thread, found),
    }


def occupancy_fields(found: Occupancy | None) -> dict[str, Any]:
    """What an SM holds, as rows have it."""
    if found is None:
        return dict.fromkeys(("blocks_per_sm", "warps_per_sm", "occupancy", "limited_by", "blocks_by"))
    return {
        "blocks_per_sm": found.blocks_per_sm,
        "warps_per_sm": found.warps_per_sm,
        "occupancy": found.occupancy,
        "limited_by": ", ".join(found.limited_by),
        "blocks_by": dict(found.blocks_by),
    }


def sweep_rows(found: Sweep, device: DeviceSpec) -> list[dict[str, Any]]:
    """The ranked tiles, best first."""
    return [_ranked_row(rank, tile, device) for rank, tile in enumerate(found.ranked, 1)]


def sweep_fields(found: Sweep | None, device: DeviceSpec) -> dict[str, Any]:
    """A GPU's sweep as a whole.

    Args:
        found: the sweep; None where the GPU's architecture is not known.
        device: the GPU.
    """
    if found is None:
        reason: str | None = _unlisted(device)
    else:
        reason = f"needs {_too_old(device)}" if device.compute_capability < OLDEST else None
    return {
        "gpu": device.name,
        "tried": None if found is None else found.tried,
        "fit": None if found is None else len(found.ranked),
        "reason": reason,
    }


def sweep_notes(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a GPU lacks for any tile, or why there is no sweep."""
    if fields["reason"] is None:
        return ()
    return (f"{fields['gpu']}: {fields['reason']}" + ("" if fields["tried"] is None else ": figures only"),)


def notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why a tile does not fit, or would not fit well: a line a reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(row["reason"], []).append(row.get("kernel") or row["gpu"])
    return tuple(f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items())


def tile_line(choice: TileChoice) -> str:
    """``64 queries × 64 keys · head dim 128 · fp16 · 1 stage · 4 warps of 16 rows · swizzle``."""
    stages = "1 stage" if choice.stages == 1 else f"{choice.stages} stages"
    rows = choice.block_q // choice.warps
    warps = f"1 warp of {rows} rows" if choice.warps == 1 else f"{choice.warps} warps of {rows} rows"
    return " · ".join(
        (
            f"{choice.block_q} queries × {choice.block_kv} keys",
            f"head dim {choice.head_dim}",
            str(choice.dtype),
            stages,
            warps,
            layout_text(choice.layout, choice.pad),
        )
    )


def layout_text(layout: Layout, pad: int) -> str:
    """The layout, with the padding where there is one: ``pad +8``."""
    return f"pad +{pad}" if layout is Layout.PAD else str(layout)


def smem_line(choice: TileChoice) -> str:
    """``49,152 B: Q 16 KiB + K 16 KiB + V 16 KiB``."""
    parts = " + ".join(f"{name.upper()} {units.short_binary_bytes(size)}" for name, size in smem_parts(choice).items())
    return f"{units.exact(smem_bytes(choice))} B: {parts}"


def register_line(choice: TileChoice, registers_per_thread: int | None) -> str:
    """The registers and where the figure comes from."""
    if registers_per_thread is not None:
        return f"{registers_per_thread} a thread, as given"
    parts = " + ".join(f"{REGISTER_NAMES[name]} {count}" for name, count in register_parts(choice).items())
    return f"{registers(choice)} a thread, estimated: {parts}"


def _tile_fields(choice: TileChoice) -> dict[str, Any]:
    return {
        "head_dim": choice.head_dim,
        "dtype": str(choice.dtype),
        "block_q": choice.block_q,
        "block_kv": choice.block_kv,
        "stages": choice.stages,
        "warps": choice.warps,
        "layout": str(choice.layout),
        "pad": choice.pad if choice.layout is Layout.PAD else 0,
        "p_in_smem": choice.p_in_smem,
    }


def _ranked_row(rank: int, tile: RankedTile, device: DeviceSpec) -> dict[str, Any]:
    return {
        "gpu": device.name,
        "rank": rank,
        **_tile_fields(tile.choice),
        "smem_bytes": tile.smem_bytes,
        "registers": tile.registers,
        "registers_source": "estimate",
        **occupancy_fields(tile.occupancy),
        "flops_per_smem_byte": tile.flops_per_smem_byte,
        "tensor_share": tile.tensor_share,
        "overlaps": tile.overlaps,
    }


def _reason(
    choice: TileChoice, device: DeviceSpec, registers_per_thread: int | None, found: Occupancy | None
) -> str | None:
    facts = device.architecture
    if facts is None:
        return _unlisted(device)
    reasons = []
    if device.compute_capability < OLDEST:
        reasons.append(_too_old(device))
    if smem_bytes(choice) > facts.smem_per_block_bytes:
        reasons.append(
            f"{units.exact(smem_bytes(choice))} B of shared memory, and a block can have "
            f"{units.exact(facts.smem_per_block_bytes)}"
        )
    if choice.threads > facts.max_threads_per_block:
        reasons.append(f"{choice.threads} threads, and a block can have {facts.max_threads_per_block}")
    needed = registers(choice) if registers_per_thread is None else registers_per_thread
    if needed > facts.max_registers_per_thread:
        reasons.append(
            f"{needed} registers, and a thread can have {facts.max_registers_per_thread}: "
            + ("the rest would spill to memory" if registers_per_thread is None else "that cannot be")
        )
    # Each thread may have that many, but not all of them together. Quarters, because 13 warps take four in one of them.
    if found is not None and not found.blocks_by["registers"] and choice.threads <= facts.max_threads_per_block:
        reasons.append(
            f"{choice.threads} threads of {min(needed, facts.max_registers_per_thread)} registers, and the quarters of "
            f"an SM's {units.exact(facts.registers_per_block)} registers do not hold them"
        )
    return "needs " + "; ".join(reasons) if reasons else None


def _unlisted(device: DeviceSpec) -> str:
    major, minor = device.compute_capability
    return f"compute capability {major}.{minor} is not in the architecture table"


def _too_old(device: DeviceSpec) -> str:
    major, minor = device.compute_capability
    return f"sm_80 or later for mma.m16n8k16 and cp.async, and is sm_{major}{minor}"


def _conflict(cost: Any) -> Mapping[str, Any] | None:
    return None if cost is None else {"wavefronts": cost.wavefronts, "ideal": cost.ideal, "degree": cost.degree}
