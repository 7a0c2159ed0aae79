"""What ``attnprof check --traps`` shows: a mistake and its cure a row."""

from __future__ import annotations

from collections.abc import Sequence

from attnprof.report import units
from attnprof.report.document import Column, Row
from attnprof.report.workload import STATUS


def _count(value: int) -> str:
    return f"{value:,}"


def _factor(value: float) -> str:
    return f"{value:.2f}×"


COLUMNS: tuple[Column, ...] = (
    Column("trap", "Trap", "the mistake", align="left"),
    Column("check", "Check", "what was checked", align="left", show="never"),
    Column("trap_kernel", "Kernel", "falls into the trap", align="left"),
    Column("kernel", "Cure", "computes the same and does not", align="left"),
    STATUS,
    Column("unit", "Measured", "what shows the trap", align="left"),
    Column("trap_value", "Trapped", "the figure of the kernel in the trap", _count),
    Column("value", "Cured", "the figure of the cure", _count),
    Column("limit", "Limit", "what the cure may have at most (warps: at least)", _count),
    Column("arch", "Arch", "the architecture that it holds for", align="left", show="never"),
    Column("workload", "On", "where both were counted", align="left", show="never"),
    Column("trap_hbm_bytes", "Trap HBM", "bytes by the ledger, where timed", units.decimal_bytes, show="never"),
    Column("cure_hbm_bytes", "Cure HBM", "bytes by the ledger, where timed", units.decimal_bytes, show="never"),
    Column("trap_time_s", "Trap time", "median time in the trap", units.time, show="known"),
    Column("cure_time_s", "Cure time", "median time of the cure", units.time, show="known"),
    Column("slowdown", "Slower", "time in the trap over time of the cure", _factor, show="known"),
    Column("timed_workload", "Timed on", "where both were timed", align="left", show="never"),
    Column("time_reason", "Not timed", "why not", align="left", show="never"),
    Column("detail", "Detail", "what is wrong and what cures it, or why it failed or was skipped", show="never"),
)


def notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """What is wrong and what cures it; why something failed, was skipped or was not timed; what was run."""
    lines = []
    for row in rows:
        verdict = "" if row["status"] == "pass" else f"{row['status']}: "
        lines.append(f"{verdict}{row['trap']}: {row['detail']}")
    counted = dict.fromkeys(row["workload"] for row in rows if units.known(row["value"]))
    if counted:
        lines.append(f"counted on {', '.join(counted)}")
    lines += [
        f"HBM traffic on {row['timed_workload']} by the ledgers: {units.decimal_bytes(row['trap_hbm_bytes'])} with the "
        f"trap, {units.decimal_bytes(row['cure_hbm_bytes'])} without"
        for row in rows
        if row["trap_hbm_bytes"] != row["cure_hbm_bytes"]
    ]
    timed = dict.fromkeys(row["timed_workload"] for row in rows if row["time_reason"] is None)
    if timed:
        lines.append(f"timed on {', '.join(timed)}, both in turns, L2 flushed before each launch")
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row["time_reason"] is not None:
            missing.setdefault(row["time_reason"], []).append(row["trap"])
    for reason, traps in missing.items():
        which = "" if len(traps) == len(rows) else f" {', '.join(traps)}"
        lines.append(f"not timed{which}: {reason}")
    return tuple(lines)


def live_line(row: Row) -> str:
    """A finished trap in a few words, for the progress."""
    known = units.known(row["value"]) and units.known(row["trap_value"])
    figures = f" ({_count(row['trap_value'])} → {_count(row['value'])} {row['unit']})" if known else ""
    return f"{row['trap']}: {row['trap_kernel']} beside {row['kernel']}: {row['status']}{figures}"
