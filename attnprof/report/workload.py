"""Columns that name the workload, the same in every command that has one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnprof.report import units
from attnprof.report.document import Column, Row


def matrices(rows: Sequence[Row]) -> bool:
    """Whether all rows are about the softmax of a matrix, which has rows and columns rather than queries and keys."""
    return bool(rows) and all(row.get("operation") == "softmax" and row["batch"] == row["heads"] == 1 for row in rows)


def size(row: Row) -> str:
    """``length 256``, ``5 queries, 1 key`` or ``11 rows of 1025 columns``."""
    if matrices([row]):
        return f"{units.counted(row['seq_q'], 'row')} of {units.counted(row['seq_kv'], 'column')}"
    if row["seq_q"] == row["seq_kv"]:
        return f"length {row['seq_q']}"
    return f"{units.counted(row['seq_q'], 'query', 'queries')}, {units.counted(row['seq_kv'], 'key')}"


def own_scale(rows: Sequence[Row]) -> bool:
    """Whether some row has a softmax scale other than 1/sqrt(d)."""
    return any("scale" in row and row["scale"] != 1.0 / math.sqrt(row["head_dim"]) for row in rows)


WORKLOAD: tuple[Column, ...] = (
    Column("seq_q", "Seq", "query length", show=lambda rows: not matrices(rows)),
    Column(
        "seq_kv",
        "Keys",
        "number of keys; shown where it differs from the query length",
        show=lambda rows: not matrices(rows) and any(row.get("seq_kv") != row.get("seq_q") for row in rows),
    ),
    Column("seq_q", "Rows", "rows of the softmax kernels' matrix", show=matrices, in_csv=False),
    Column("seq_kv", "Cols", "columns of the softmax kernels' matrix", show=matrices, in_csv=False),
    Column("batch", "Batch", "batch size", show="varies"),
    Column("heads", "Heads", "query heads", show="varies"),
    Column("kv_heads", "KV heads", "KV heads", show="varies"),
    Column("head_dim", "d", "head dimension", show="varies"),
    Column(
        "scale",
        "Scale",
        "softmax scale; shown where several are not 1/sqrt(d)",
        lambda value: f"{value:g}",
        show=lambda rows: own_scale(rows) and len({row["scale"] for row in rows}) > 1,
    ),
    Column("dtype", "Type", "element type", align="left", show="varies"),
    Column("causal", "Causal", "causal mask, aligned to the last key", units.yes_no, align="left", show="varies"),
    Column("pass", "Pass", "fwd or bwd", align="left", show="varies"),
)

KERNEL = Column("kernel", "Kernel", "the kernel's name", align="left")

TILES = Column(
    "tiles",
    "Tiles",
    "the kernel's tile choice; shown where one was kept by bench --tune",
    align="left",
    show=lambda rows: any(row.get("tiles_source") == "tuned" for row in rows),
)
LAYOUT = Column("layout", "Layout", "axes of Q, K, V and O in memory", align="left", show="varies")

STATUS = Column(
    "status",
    "Status",
    "ok, skipped, error or interrupted",
    align="left",
    styles={"ok": "green", "pass": "green", "error": "red", "fail": "bold red", "skipped": "yellow"},
)
REASON = Column("reason", "Reason", "why the status is not ok", align="left", show="never")
