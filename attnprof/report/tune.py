"""What ``attnprof bench --tune`` shows besides: every tile choice of a kernel and workload, and its fate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.report import units
from attnprof.report.document import Column, Row, Section
from attnprof.report.workload import size


def _speedup(value: float) -> str:
    return f"{value:.3f}×"


def _spread(row: Row) -> str:
    return f"±{100 * row['speedup_mad']:.1f} %"


COLUMNS = (
    Column("tiles", "Candidate", "the tile choice", align="left"),
    Column("registers", "Registers", "registers a thread"),
    Column("smem_bytes", "Shared", "shared memory of a block (B)", units.exact),
    Column("blocks_per_sm", "Blocks/SM", "blocks that an SM holds"),
    Column("spill_bytes", "Spills", "bytes of registers that a thread spills (B)", units.exact),
    Column("time_s.median", "Time", "median time of one run (s)", units.time),
    Column("speedup", "vs built-in", "time of the built-in choice over this one's", _speedup),
    Column("speedup_mad", "Spread", "median absolute deviation of that", row_text=_spread),
    Column(
        "verdict", "Verdict", "what became of it", align="left",
        styles={"kept": "green", "wrong result": "bold red", "does not run": "yellow", "spills": "yellow"},
    ),
)  # fmt: skip


def sections(tunings: Sequence[Mapping[str, Any]]) -> tuple[Section, ...]:
    """A table for each."""
    return tuple(
        Section((_heading(tuning),), tuning["candidates"], _notes(tuning), columns=COLUMNS) for tuning in tunings
    )


def _heading(tuning: Mapping[str, Any]) -> str:
    parts = [
        tuning["kernel"],
        size(tuning),
        f"batch {tuning['batch']}",
        units.counted(tuning["heads"], "head"),
        f"d {tuning['head_dim']}",
        tuning["dtype"],
        "causal" if tuning["causal"] else "no mask",
    ]
    if tuning["layout"] != "bhsd":
        parts.append(tuning["layout"])
    return f"Tiles of {' · '.join(parts)}"


def _notes(tuning: Mapping[str, Any]) -> tuple[str, ...]:
    notes = [
        f"{row['tiles']}: {row['reason']}"
        for row in tuning["candidates"]
        if row["reason"] and row["verdict"] != "spills"
    ]
    if tuning["tiles"] is None:
        notes.append(f"nothing kept: {tuning['reason']}")
    elif tuning["tiles"] == tuning["built_in"]:
        notes.append(f"kept: {tuning['tiles']}, the built-in choice: nothing beat it by more than the spread")
    else:
        winner = next(row for row in tuning["candidates"] if row["tiles"] == tuning["tiles"])
        notes.append(f"kept: {tuning['tiles']}, {_speedup(winner['speedup'])} as fast as {tuning['built_in']}")
    return tuple(notes)
