"""What the softmax rungs ask of a device: passes over a matrix of rows · columns, and which of them reach HBM.

The matrix has the shape of an attention's scores: batch · heads · seq_q rows of seq_kv columns. A rung that goes over
its rows more than once reads them from HBM again only if the rows in flight do not fit L2: between two passes over a
row, the device touches every other row in flight once, so a least-recently-used cache keeps all of it or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.model.demand import Demand, LedgerLine, Schedule, Stage
from attnprof.model.workload import Workload

# Compare, subtract, exponential, add, divide: the operations of the definition, by which a FLOP/s figure divides.
FLOPS_PER_ELEMENT = 5

STAGE = "softmax"


@dataclass(frozen=True, slots=True)
class Rung:
    """How a softmax kernel goes over a row.

    Attributes:
        reads: the passes that read the row, in order; the last one also writes.
        fp32_flops_per_element: additions, comparisons and multiplications, those of the exponent's scaling by
            log2(e) included.
        exponentials_per_element: evaluations; two where the last pass computes again what the sum was made of.
    """

    reads: tuple[str, ...]
    fp32_flops_per_element: int
    exponentials_per_element: int = 2


# scale, add | scale, multiply
NAIVE = Rung(("sum", "normalise"), 4)
# compare | subtract, scale, add | subtract, scale, multiply
SAFE = Rung(("maximum", "sum", "normalise"), 7)
ONLINE = Rung(("statistics", "normalise"), 7)
FUSED = Rung(("load",), 7)
# Of softmax-online's variant that rescales for each element:
# compare | subtract, scale, multiply | subtract, scale, add | subtract, scale, multiply
ONLINE_PER_ELEMENT = Rung(ONLINE.reads, 10, exponentials_per_element=3)


def softmax_flops(workload: Workload) -> int:
    """FLOPs of the softmax of a workload's score matrix: `FLOPS_PER_ELEMENT` an element, whatever the kernel."""
    return FLOPS_PER_ELEMENT * workload.rows * workload.seq_kv


def matrix_bytes(workload: Workload) -> int:
    """Size of the matrix, and of its softmax."""
    return workload.rows * workload.seq_kv * workload.dtype.itemsize


def rereads_hit_l2(workload: Workload, rows_in_flight: int, l2_bytes: int | None) -> bool:
    """Whether a second pass over a row finds it in L2: all rows in flight fit there. Not, where L2 is unknown."""
    window_bytes = min(rows_in_flight, workload.rows) * workload.seq_kv * workload.dtype.itemsize
    return l2_bytes is not None and window_bytes <= l2_bytes


def softmax_demand(
    workload: Workload,
    rung: Rung,
    *,
    schedule: Schedule | None = None,
    rereads_in_l2: bool = False,
    resident_columns: int | None = None,
) -> Demand:
    """The demand of a softmax kernel.

    Args:
        workload: its score matrix is what the softmax is taken of; the mask is ignored.
        rung: how the kernel goes over a row.
        schedule: how its blocks meet the SMs.
        rereads_in_l2: passes after the first are served by L2; their ledger lines say so and count no byte.
        resident_columns: columns of a row that stay on the chip after a single-pass kernel has loaded it; the others
            are read once more. None: all of them.
    """
    elements = workload.rows * workload.seq_kv
    size = matrix_bytes(workload)
    lines = [LedgerLine(rung.reads[0], "x", "read", size)]
    lines.extend(_reread(stage, size, rereads_in_l2) for stage in rung.reads[1:])
    if resident_columns is not None and resident_columns < workload.seq_kv:
        beyond = workload.rows * (workload.seq_kv - resident_columns) * workload.dtype.itemsize
        lines.append(_reread("normalise what the chip cannot hold", beyond, rereads_in_l2))
    lines.append(LedgerLine("normalise", "y", "write", size))
    stage = Stage(
        name=STAGE,
        ledger=tuple(lines),
        fp32_flops=rung.fp32_flops_per_element * elements,
        exponentials=rung.exponentials_per_element * elements,
        schedule=schedule,
    )
    return Demand(stages=(stage,), footprint_bytes=2 * size)


def _reread(stage: str, size_bytes: int, in_l2: bool) -> LedgerLine:
    return LedgerLine(f"{stage}, from L2", "x", "read", 0) if in_l2 else LedgerLine(stage, "x", "read", size_bytes)
