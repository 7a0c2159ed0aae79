"""What ``attnprof check`` shows: a verdict a kernel, check and architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attnprof.report import units
from attnprof.report.document import Column, Row
from attnprof.report.workload import KERNEL, STATUS


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


COLUMNS: tuple[Column, ...] = (
    KERNEL,
    Column("check", "Check", "what was checked", align="left"),
    Column("arch", "Arch", "the architecture it holds for", align="left"),
    STATUS,
    Column("value", "Worst", "the worst value found", _number),
    Column("limit", "Limit", "what is allowed", _number),
    Column("unit", "Unit", "of both", lambda unit: str(unit or ""), align="left"),
    Column("detail", "Detail", "where the worst value is, or the reason", align="left", show="never"),
)


def notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why checks failed or were skipped: each reason once, with the checks it is about."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if row["status"] != "pass":
            about = found.setdefault((row["status"], row["detail"]), {})
            arches = about.setdefault(f"{row['kernel']} {row['check']}", [])
            if row["arch"]:
                arches.append(row["arch"])
    ordered = sorted(found.items(), key=lambda item: item[0][0] != "fail")
    return tuple(f"{status}: {_names(about)}: {detail}" for (status, detail), about in ordered)


def _names(about: Mapping[str, Sequence[str]]) -> str:
    """``fa2 compile sm_80/sm_90a, fa2 numerics``."""
    return ", ".join(f"{name} {'/'.join(dict.fromkeys(arches))}".rstrip() for name, arches in about.items())


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """How many checks passed, failed and were skipped."""
    count = Counter(row["status"] for row in rows)
    return {"passed": count["pass"], "failed": count["fail"], "skipped": count["skipped"]}


def summary(rows: Sequence[Row]) -> str:
    """``12 passed, 1 failed, 4 skipped``."""
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(rows).items())


def live_line(row: Row) -> str:
    """A finished check in a few words, for the progress."""
    arch = f" {row['arch']}" if row["arch"] else ""
    figures = [_number(row["value"])] if units.known(row["value"]) else []
    figures += ["of", _number(row["limit"])] if figures and units.known(row["limit"]) else []
    figures += [row["unit"]] if figures and row["unit"] else []
    shown = f" ({' '.join(figures)})" if figures else ""
    return f"{row['kernel']} {row['check']}{arch}: {row['status']}{shown}"
