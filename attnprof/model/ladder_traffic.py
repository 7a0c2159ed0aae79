"""The ledgers of the two rungs between three kernels and FlashAttention-2, built on that of the fused kernel.

The conventions are those of `attnprof.model.traffic`. Neither rung has a backward of its own: that is the fused one.

Source: Dao et al., FlashAttention (arXiv:2205.14135), algorithms 0 and 1, and theorem 2 for the traffic of algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attnprof.model.demand import Demand, Direction, LedgerLine, Schedule
from attnprof.model.traffic import STATISTIC_BYTES, fused_demand
from attnprof.model.workload import Pass, Workload

ACCUMULATOR_BYTES = 4  # O waits in fp32 between two steps

_NO_SCHEDULES: Mapping[str, Schedule] = {}


def exact_statistics_demand(
    workload: Workload, schedules: Mapping[str, Schedule] = _NO_SCHEDULES, *, k_from_l2: bool = True
) -> Demand:
    """One kernel, S on chip, but every row's exact maximum and sum before its first probability.

    The ledger is that of the fused kernel: Q, K, V and O once. K is streamed twice; the second time counts for nothing
    where L2 still has it, and where it has not there is a second line for it. QKᵀ is computed twice: three products,
    1.5 times the matrix FLOPs, and two exponentials a pair; the second needs one more subtraction (of the log-sum-exp,
    which also normalises).

    Args:
        workload: any workload.
        schedules: how a stage's blocks meet the SMs, by stage name.
        k_from_l2: whether L2 serves the second stream of K.
    """
    fused = fused_demand(workload, schedules)
    if workload.direction is not Pass.FWD:
        return fused
    (stage,) = fused.stages
    product = 2 * workload.head_dim * workload.pairs
    on_tensor_cores = stage.tensor_flops > 0
    k_line = next(line for line in stage.ledger if line.tensor == "K")
    again = replace(
        stage,
        ledger=stage.ledger if k_from_l2 else (k_line, *stage.ledger),
        tensor_flops=stage.tensor_flops + (product if on_tensor_cores else 0),
        fp32_flops=stage.fp32_flops + workload.pairs + (0 if on_tensor_cores else product),
        exponentials=2 * workload.pairs,
    )
    return replace(fused, stages=(again,))


def keys_outside_demand(
    workload: Workload, block_kv: int, schedules: Mapping[str, Schedule] = _NO_SCHEDULES, *, strip: int = 1
) -> Demand:
    """FlashAttention-1: a launch for each block of keys, through which O, m and l pass on their way from HBM and back.

    K and V count once. Each step takes the rows that see a key of its block, the first step all rows, since those
    without any key must become 0, and reads their Q. All steps of a row but its first read O, m and l, all but its
    last write them; O in fp32. The last writes O in the element type instead. The rescaling and the division of O at
    every step are part of the algorithm and counted: two multiplies an element of O and one exponential a row.

    Args:
        workload: any workload.
        block_kv: keys of a block.
        schedules: how a stage's blocks meet the SMs, by stage name.
        strip: rows that the kernel moves together: all of them when one sees a key.
    """
    fused = fused_demand(workload, schedules)
    if workload.direction is not Pass.FWD:
        return fused
    (stage,) = fused.stages
    size = {line.tensor: line.bytes for line in stage.ledger}
    later_rows = rows_that_see(workload, block_kv, strip=strip)[1:]
    # Between two steps of a row: as often as it sees a block other than the first.
    handovers = sum(later_rows) * workload.batch * workload.heads
    row_steps = workload.rows + handovers
    row_bytes = workload.head_dim * workload.dtype.itemsize
    accumulator = ACCUMULATOR_BYTES * workload.head_dim
    lines: tuple[tuple[str, Direction, int], ...] = (
        ("Q", "read", row_steps * row_bytes),
        ("K", "read", size["K"]),
        ("V", "read", size["V"]),
        ("O fp32", "read", handovers * accumulator),
        ("O fp32", "write", handovers * accumulator),
        ("m", "read", handovers * STATISTIC_BYTES),
        ("m", "write", handovers * STATISTIC_BYTES),
        ("l", "read", handovers * STATISTIC_BYTES),
        ("l", "write", handovers * STATISTIC_BYTES),
        ("O", "write", size["O"]),
    )
    stepwise = replace(
        stage,
        ledger=tuple(LedgerLine(stage.name, *line) for line in lines),
        # The fused stage divides O once; here it is once a step, besides the rescaling.
        fp32_flops=stage.fp32_flops - workload.q_elements + 2 * workload.head_dim * row_steps,
        exponentials=stage.exponentials + row_steps,
        launches=1 + len(later_rows),
    )
    waiting = workload.rows * (accumulator + 2 * STATISTIC_BYTES)
    return replace(
        fused, stages=(stepwise,), footprint_bytes=fused.footprint_bytes + waiting, intermediate_bytes=waiting
    )


def rows_that_see(workload: Workload, block_kv: int, *, strip: int = 1) -> tuple[int, ...]:
    """Query rows of one head that see a key of each KV block, first block first; whole strips of rows.

    The last row sees every key, so these are rows from some row on.
    """
    return tuple(
        workload.seq_q - first_row_that_sees(workload, first_key, strip=strip)
        for first_key in range(0, workload.seq_kv, block_kv)
    )


def first_row_that_sees(workload: Workload, key: int, *, strip: int = 1) -> int:
    """The first query row of the first strip that sees a key: row i sees keys up to i + seq_kv − seq_q if causal."""
    if not workload.causal:
        return 0
    return max(0, key - (workload.seq_kv - workload.seq_q)) // strip * strip
