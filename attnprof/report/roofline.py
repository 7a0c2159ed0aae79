"""What ``attnprof roofline`` shows: a row a kernel and workload, or a row a line of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnprof.model.devices import DeviceSpec
from attnprof.report import units
from attnprof.report.document import Column, Row, Section
from attnprof.report.workload import KERNEL, REASON, STATUS, TILES, WORKLOAD, matrices, size

_BOUND = {"hbm": "cyan", "tensor": "magenta", "exp": "yellow", "fp32": "blue"}

GPU = Column("gpu", "GPU", "the GPU that the row is about", align="left", show="never")

COLUMNS: tuple[Column, ...] = (
    GPU,
    *WORKLOAD,
    KERNEL,
    Column("hbm_bytes", "HBM", "predicted HBM traffic, the sum of the ledger (B)", units.decimal_bytes),
    Column("flops", "FLOP", "matrix work of the pass over the pairs that the mask allows (FLOP)", units.flops),
    Column(
        "arithmetic_intensity",
        "FLOP/B",
        "arithmetic intensity: FLOPs an HBM byte",
        units.intensity,
        csv="arithmetic_intensity_flop_per_byte",
    ),
    Column("bound", "Bound", "the unit that gives the roof time", align="left", styles=_BOUND),
    Column("roof_time_s", "Roof", "the least that this traffic and work take at these ceilings (s)", units.time),
    Column("predicted_time_s", "Predicted", "the roof, with imbalance and launches (s)", units.time),
    Column("speedup_vs_naive", "vs naive", "roof time of naive over that of this kernel", units.ratio),
    Column("footprint_bytes", "Memory", "device memory that the tensors take (B)", units.binary_bytes, show="never"),
    Column("l2_resident", "In L2", "what fits the L2 cache: footprint, intermediates", align="left", show="never"),
    replace(STATUS, show="never"),
    REASON,
    TILES,
    Column("unsupported", "Unsupported", "why the kernel cannot run this here", align="left", show="never"),
)

# What a row says whose tiles are not the kernel's own.
TUNED = "tiles kept by bench --tune; --no-tuned takes the built-in ones"

# How many lengths a note names one by one.
_MOST_LENGTHS = 12

# The share of the roof below which a loss is no reason for a note.
_NOTEWORTHY = 0.1

LEGEND = (
    "HBM: predicted traffic, the sum of the ledger (--ledger shows it); GB is 1e9 bytes.",
    "FLOP: the matrix work of the workload, the same for every kernel; the roof counts what each kernel executes.",
    "FLOP/B: FLOP an HBM byte; below the knee HBM binds, above it the tensor cores, or softmax if that is slower.",
    "Roof: the longest of work / ceiling, added over the kernels launched; at these ceilings, no less.",
    "Predicted: the roof, with uneven work on the SMs and launches.",
    "vs naive: a ratio of roofs, not of predicted times.",
)


def _binary(value: float) -> str:
    return units.binary_bytes(value, digits=3)


LEDGER_COLUMNS: tuple[Column, ...] = (
    GPU,
    *(replace(column, show="never") for column in (*WORKLOAD, KERNEL)),
    Column("stage", "Stage", "the kernel launch that moves it", align="left"),
    Column("tensor", "Tensor", "what is moved", align="left"),
    Column("direction", "", "read or write", align="left"),
    Column("bytes", "Bytes", "exact (B)", units.exact),
    Column("bytes", "GB 1e9", "the same with a decimal prefix", units.decimal_bytes, in_csv=False),
    Column("bytes", "GiB 2^30", "the same with a binary prefix", _binary, in_csv=False),
    Column("bytes_per_head", "A head", "bytes / (batch x heads) (B)", _binary),
    Column("share_pct", "Share", "part of the kernel's traffic (%)", units.percent),
)


def ledger_sections(rows: Sequence[Row], heading: tuple[str, ...]) -> tuple[Section, ...]:
    """One table a roofline row: its ledger line by line, with the sum."""
    return (Section(heading, ()), *(_ledger_section(row) for row in rows))


def _ledger_section(row: Row) -> Section:
    named = {column.key: row.get(column.key) for column in (GPU, *WORKLOAD, KERNEL)}
    pairs = row["batch"] * row["heads"]
    total = row["hbm_bytes"]

    def line(bytes_moved: int, **names: str | None) -> dict[str, Any]:
        share = 100 * bytes_moved / total if total else None
        return {
            **named,
            **names,
            "bytes": bytes_moved,
            "bytes_per_head": bytes_moved / pairs if bytes_moved % pairs else bytes_moved // pairs,
            "share_pct": share,
        }

    lines = [
        line(entry["bytes"], stage=entry["stage"], tensor=entry["tensor"], direction=entry["direction"])
        for entry in row["ledger"]
    ]
    return Section((_ledger_title(row),), lines, total=line(total, stage="sum", tensor=None, direction=None))


def _ledger_title(row: Row) -> str:
    head_dim = "" if matrices([row]) else f" · d {row['head_dim']}"
    mask = " · causal" if row["causal"] else ""
    return f"{row['kernel']} · {size(row)}{head_dim} · {row['dtype']}{mask} · {row['gpu']}"


def notes(rows: Sequence[Row], device: DeviceSpec) -> tuple[str, ...]:
    """What a reader must know about single rows, each said once with the rows it holds for; of one kind together."""
    found: dict[str, list[Row]] = {}
    said = [(row, text) for row in rows for text in _row_notes(row, device)]
    kinds = list(dict.fromkeys(text.partition(" (")[0] for _, text in said))
    for row, text in sorted(said, key=lambda each: kinds.index(each[1].partition(" (")[0])):
        found.setdefault(text, []).append(row)
    names = RowNames(rows)
    return tuple(f"{text}: {names(about)}" for text, about in found.items())


class RowNames:
    """What to call some rows of a table: ``naive at 1024, 2048; fa2 at 1024``, with whatever else tells them apart.

    Args:
        rows: the whole table, which is looked through once.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._count = len(rows)
        self._dims_differ = len({row["head_dim"] for row in rows}) > 1
        self._dtypes_differ = len({row["dtype"] for row in rows}) > 1

    def __call__(self, about: Sequence[Row]) -> str:
        """The words for these rows of it."""
        if len(about) == self._count > 1:
            return "all rows"
        lengths: dict[tuple[str, ...], dict[str, None]] = {}
        for row in about:
            others = [f"d {row['head_dim']}"] if self._dims_differ else []
            others += [str(row["dtype"])] if self._dtypes_differ else []
            length = f"{row['seq_q']}" if row["seq_q"] == row["seq_kv"] else f"{row['seq_q']}/{row['seq_kv']}"
            lengths.setdefault((str(row["kernel"]), *others), {})[length] = None
        return "; ".join(f"{' '.join(name)} at {_listed(list(at))}" for name, at in lengths.items())


def _listed(lengths: Sequence[str]) -> str:
    if len(lengths) <= _MOST_LENGTHS:
        return ", ".join(lengths)
    return f"{', '.join(lengths[: _MOST_LENGTHS - 2])}, … {lengths[-1]} ({len(lengths):,} lengths)"


def _row_notes(row: Row, device: DeviceSpec) -> list[str]:
    texts: list[str] = []
    if row.get("tiles_source") == "tuned":
        texts.append(TUNED.capitalize())
    if row["reason"]:
        texts.append(f"Unknown roof ({row['reason']})")
    if row["unsupported"]:
        texts.append(f"Predicted from its ledger, but the kernel cannot run this ({row['unsupported']})")
    if _starves(row, device):
        texts.append(f"Fewer blocks than the {device.sm_count} SMs, which cannot draw the full HBM rate")
    if device.hbm_bytes is not None and row["footprint_bytes"] > device.hbm_bytes:
        texts.append(f"Needs more memory than the {units.short_binary_bytes(device.hbm_bytes)} of this GPU")
    if row["l2_resident"]:
        what, run = (
            ("The tensors", "with a warm cache")
            if row["l2_resident"] == "footprint"
            # Written and read back within the run, so that a flush beforehand changes nothing.
            else ("The intermediates", "even from a cold cache")
        )
        l2 = units.short_binary_bytes(device.l2_bytes)
        texts.append(f"{what} fit the L2 cache of {l2}, so a run {run} can beat the roof")
    return texts


def _starves(row: Row, device: DeviceSpec) -> bool:
    """Whether stages that HBM binds leave too many SMs without a block for the full rate, which is predicted."""
    if row["roof_time_s"] is None:
        return False
    # What would be lost if an SM drew no more than its share.
    lost_s = sum(
        stage["roof_time_s"] * (1 - stage["blocks"] / device.sm_count)
        for stage in row["stages"]
        if stage["bound"] == "hbm" and stage["blocks"] is not None and stage["blocks"] < device.sm_count
    )
    return bool(lost_s > _NOTEWORTHY * row["roof_time_s"])
