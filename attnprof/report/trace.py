"""What ``attnprof trace`` shows: counted beside predicted, each launch, the source lines that matter, the faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from attnprof.report import units
from attnprof.report.document import Column, Row, Section
from attnprof.report.workload import KERNEL, LAYOUT, REASON, STATUS, WORKLOAD, matrices, size

# Below this a line's requests waste enough of their sectors to be listed however rarely it runs. A misaligned row of 4-
# or 16-byte accesses touches one sector too many of 5 or 17 and is not.
POOR_COALESCING = 0.8
_SOURCE_WIDTH = 72


def _share(value: float) -> str:
    return units.percent(100 * value)


def _any(key: str) -> Any:
    """Show a column only where some row has more than zero of it."""
    return lambda rows: any(row[key] for row in rows)


def _signed(value: int) -> str:
    return f"{value:+,}" if value else "0"


def _clipped(text: str) -> str:
    return text if len(text) <= _SOURCE_WIDTH else text[: _SOURCE_WIDTH - 1] + "…"


COMPARISON: tuple[Column, ...] = (
    Column("stage", "Stage", "the launch", align="left", show="varies"),
    Column("quantity", "Quantity", "what is counted; bytes count once, however often they are touched", align="left"),
    Column("counted", "Counted", "by the emulator", units.exact),
    Column("predicted", "Predicted", "by the model", units.exact),
    Column("difference", "Difference", "counted less predicted", _signed),
    Column("asked_bytes", "Asked for, B", "bytes that lanes ask for, repeated ones included", units.exact),
)

_WORK: tuple[Column, ...] = (
    Column("warp_instructions", "Warp instr.", "PTX instructions issued, one a warp", units.exact),
    Column("lanes_active", "Lanes", "active lanes of the instructions issued (fraction)", _share),
)
_MEMORY: tuple[Column, ...] = (
    Column("global_requests", "Requests", "warp-wide requests to global memory", units.exact),
    Column("global_sectors", "Sectors", "32-byte sectors that they touch", units.exact),
    Column("coalescing_efficiency", "Coalesced", "useful bytes of those in the sectors touched (fraction)", _share),
    Column("shared_wavefronts", "Wavefronts", "passes of requests to shared memory", units.exact),
    Column("bank_conflicts", "Conflicts", "wavefronts beyond those that conflict-free requests need", units.exact),
)
_LOCAL = Column(
    "local_requests", "Local", "requests to local memory: arrays on the stack", units.exact, show=_any("local_requests")
)
_CONTROL: tuple[Column, ...] = (
    Column("barriers", "Barriers", "barriers passed, one a block", units.exact),
    Column("divergent_branches", "Divergent", "branches at which a warp's lanes part", units.exact),
)

LAUNCHES: tuple[Column, ...] = (
    Column("stage", "Stage", "the ledger stage that the launch carries out", align="left"),
    Column("kernel", "Entry", "the entry point", align="left"),
    *_WORK,
    *_MEMORY,
    _LOCAL,
    *_CONTROL,
)

LINES: tuple[Column, ...] = (
    Column("place", "Line", "file and line", align="left"),
    Column("warp_instructions", "Warp instr.", "PTX instructions issued, one a warp", units.exact),
    Column("share", "Share", "of the launch's warp instructions (fraction)", _share),
    Column("global_sectors", "Sectors", "32-byte sectors touched", units.exact, show=_any("global_sectors")),
    Column("coalescing_efficiency", "Coalesced", "useful bytes of those in the sectors touched", _share, show="known"),
    Column("shared_wavefronts", "Wavefronts", "shared-memory passes", units.exact, show=_any("shared_wavefronts")),
    Column("bank_conflicts", "Conflicts", "wavefronts beyond the needed", units.exact, show=_any("bank_conflicts")),
    _LOCAL,
    Column("divergent_branches", "Divergent", "branches that part", units.exact, show=_any("divergent_branches")),
    Column("source", "Source", "the line's text", _clipped, align="left"),
)

# A CSV line is a launch.
CSV_COLUMNS: tuple[Column, ...] = (
    *WORKLOAD,
    LAYOUT,
    KERNEL,
    STATUS,
    REASON,
    Column("stage", "Stage", "the ledger stage that the launch carries out", align="left"),
    Column("entry", "Entry", "the entry point", align="left"),
    *_WORK,
    *_MEMORY,
    Column("local_requests", "Local", "requests to local memory", units.exact),
    *_CONTROL,
    Column("matrix_flops", "FLOP", "FLOPs on the tensor cores", units.exact),
    Column("exponentials", "Exponentials", "exponentials evaluated, rescaling included", units.exact),
    Column("unique_read_bytes", "Read", "distinct bytes read of all tensors", units.exact),
    Column("unique_write_bytes", "Written", "distinct bytes written of all tensors", units.exact),
    Column("faults", "Faults", "different faults of the whole run", units.exact),
)

LEGEND = (
    "Counted: PTX instructions as executed, not machine instructions. Bytes are distinct ones; the ledger counts a "
    "byte once too, and repeated requests (Asked for) are the caches' work.",
    "Sectors: 32 bytes each. Wavefronts: passes over the 32 banks; conflicts are those beyond the needed.",
)


def sections(row: Row, lines: int) -> tuple[Section, ...]:
    """The tables of one kernel on one workload.

    Args:
        row: the JSON row.
        lines: how many of the hottest source lines to list for each launch.
    """
    if not row["launches"] and not row["faults"]:
        return (Section((f"{title(row)}: {row['status']}", *([row["reason"]] if row["reason"] else [])), ()),)
    heading = f"{title(row)}: counted and predicted"
    found = [Section((heading,), row["comparison"], tuple(row["notes"]), columns=COMPARISON)]
    if row["launches"]:
        found.append(Section(("Each launch",), row["launches"], columns=LAUNCHES))
    for entry in dict.fromkeys(launch["kernel"] for launch in row["launches"]):
        chosen = source_lines([launch for launch in row["launches"] if launch["kernel"] == entry], lines)
        if chosen:
            found.append(Section((f"Source lines of {entry}: {_which(chosen, lines)}",), chosen, columns=LINES))
    if row["printed"]:
        found.append(Section(("Printed by the kernel", *row["printed"].splitlines()), ()))
    found.append(Section((f"Faults: {fault_count(row['faults'])}",), ()))
    found += [_fault(fault) for fault in row["faults"]]
    return tuple(found)


def title(row: Row) -> str:
    """``fa2 · length 256 · 2 heads · d 64 · fp16 · causal``."""
    if matrices([row]):
        return f"{row['kernel']} · {size(row)} · {row['dtype']}"
    grouped = f"{row['heads']}/{row['kv_heads']} heads"
    heads = units.counted(row["heads"], "head") if row["heads"] == row["kv_heads"] else grouped
    batch = f"batch {row['batch']} · " if row["batch"] > 1 else ""
    mask = " · causal" if row["causal"] else ""
    layout = f" · {row['layout']}" if row["layout"] == "bshd" else ""
    return f"{row['kernel']} · {batch}{size(row)} · {heads} · d {row['head_dim']} · {row['dtype']}{mask}{layout}"


def source_lines(launches: Sequence[Row], hottest: int) -> list[dict[str, Any]]:
    """Of all launches of an entry: the ``hottest`` lines by warp instructions, and every line that wastes requests."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for line in (line for launch in launches for line in launch["lines"]):
        key = (line["file"], line["line"])
        lines[key] = _sum(lines[key], line) if key in lines else dict(line)
    ranked = sorted(lines.values(), key=lambda line: -line["warp_instructions"])
    chosen = [line for rank, line in enumerate(ranked) if rank < hottest or _wasteful(line)]
    total = sum(launch["warp_instructions"] for launch in launches)
    return [
        {**line, "place": place(line["file"], line["line"]), "share": line["warp_instructions"] / total}
        for line in chosen
    ]


def _sum(a: Row, b: Row) -> dict[str, Any]:
    """The counters of one line in two launches; what says which line it is stays."""
    kept = ("file", "line", "source", "coalescing_efficiency")
    sums = {key: value if key in kept else value + b[key] for key, value in a.items()}
    sectors = sums["global_sectors"]
    return {**sums, "coalescing_efficiency": sums["global_useful_bytes"] / (32 * sectors) if sectors else None}


def place(file: str | None, line: int | None) -> str | None:
    """``fa2.cu:88``; None where the instruction has no source position."""
    return f"{PurePath(file).name}:{line}" if file and line else None


def csv_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line a launch; a kernel that did not run has one without counts."""
    found: list[dict[str, Any]] = []
    for row in rows:
        launches: Sequence[Row] = row["launches"] or ({},)
        for launch in launches:
            sums = {
                f"unique_{direction}_bytes": sum(tensor[f"unique_{direction}_bytes"] for tensor in launch["tensors"])
                for direction in ("read", "write")
                if launch
            }
            named = {"kernel": row["kernel"], "entry": launch.get("kernel"), "faults": len(row["faults"])}
            found.append({**row, **launch, **sums, **named})
    return found


def live_line(row: Row) -> str:
    """A finished kernel in a few words, for the progress."""
    if not row["launches"]:
        return f"{title(row)}: {row['status']}" + (f" ({row['reason']})" if row["reason"] else "")
    instructions = sum(launch["warp_instructions"] for launch in row["launches"])
    return f"{title(row)}: {instructions:,} warp instructions, faults: {fault_count(row['faults'])}"


def summary(rows: Sequence[Row]) -> str:
    """``2 traced, 1 skipped, no faults``."""
    traced = sum(1 for row in rows if row["launches"])
    parts = [f"{traced} traced"]
    parts += [f"{count} {name}" for name in ("skipped", "error") if (count := _with_status(rows, name))]
    faulty = sum(1 for row in rows if row["faults"])
    return ", ".join([*parts, f"{faulty} with faults" if faulty else "no faults"])


def fault_count(faults: Sequence[Row]) -> str:
    """``none``, ``1``, or ``2, seen 101 times``: different kinds or lines, and how often instructions showed them."""
    if not faults:
        return "none"
    seen = sum(fault["count"] for fault in faults)
    return f"{len(faults)}, seen {seen:,} times" if seen > len(faults) else str(len(faults))


def _with_status(rows: Sequence[Row], status: str) -> int:
    return sum(1 for row in rows if row["status"] == status and not row["faults"])


def _wasteful(line: Row) -> bool:
    efficiency = line["coalescing_efficiency"]
    return line["bank_conflicts"] > 0 or (efficiency is not None and efficiency < POOR_COALESCING)


def _which(chosen: Sequence[Row], hottest: int) -> str:
    extra = len(chosen) - hottest
    if extra > 0:
        return f"the {hottest} hottest, and {extra} more with bank conflicts or poor coalescing"
    return f"the {len(chosen)} hottest"


def _fault(fault: Row) -> Section:
    """A fault, how often it was seen, and where first."""
    count = fault["count"]
    where = place(fault["file"], fault["line"]) or f"an unknown line ({fault['opcode']})"
    times = f", {count:,} times" if count > 1 else ""
    first = [f"{name} {_indices(fault[name])}" for name in ("block", "thread") if fault[name] is not None]
    first += [f"address {fault['address']:#x}"] if fault["address"] is not None else []
    what = f"{fault['message']}; {'first: ' if count > 1 else ''}{', '.join(first)}" if first else fault["message"]
    source = [f"  {fault['source']}"] if fault["source"] else []
    return Section((f"{fault['kind']} in {fault['kernel']} at {where}{times}", *source, f"  {what}"), ())


def _indices(xyz: Sequence[int]) -> str:
    return "({}, {}, {})".format(*xyz)
