"""Split-KV attention (Flash-Decoding): how many splits a workload is worth, and what they cost in memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attnprof.model.demand import Demand, LedgerLine, Schedule, Stage
from attnprof.model.traffic import STATISTIC_BYTES, fused_demand
from attnprof.model.workload import Workload

_NO_SCHEDULES: Mapping[str, Schedule] = {}

# A choice that keeps the SMs busy for this much of the time that the best one does is good enough, in percent. Fewer
# splits leave fewer parts to combine. FlashAttention-2's num_splits_heuristic takes 85; on an H200, one KV head's worth
# of splits at 85 to 87 % took 2 to 4 % longer than at 97 %, and the parts that this saved cost nothing measurable.
GOOD_ENOUGH_PERCENT = 95


def wave_time(splits: int, *, blocks: int, steps: int, slots: int) -> int:
    """How long all blocks take, in steps: the number of waves times the longest block of a wave.

    Args:
        splits: how many blocks share the steps of one.
        blocks: thread blocks without splitting.
        steps: steps over the keys that each of them would take.
        slots: blocks that the GPU holds at once.
    """
    return -(-blocks * splits // slots) * -(-steps // splits)


def wave_efficiency(splits: int, *, blocks: int, steps: int, slots: int) -> float:
    """Which part of the slots' time is work: 1.0 if all are busy to the end. Arguments as in `wave_time`."""
    return blocks * steps / (slots * wave_time(splits, blocks=blocks, steps=steps, slots=slots))


def choose_splits(*, blocks: int, steps: int, slots: int, most: int) -> int:
    """The smallest number of splits whose wave efficiency is within 95 % of the best.

    Args:
        blocks: thread blocks without splitting.
        steps: steps over the keys that each of them would take.
        slots: blocks that the GPU holds at once.
        most: splits to consider at most.
    """
    times = [
        wave_time(splits, blocks=blocks, steps=steps, slots=slots) for splits in range(1, max(1, min(most, steps)) + 1)
    ]
    # Whole numbers throughout, so that the choice never hangs on a rounding.
    allowed = 100 * min(times)
    return next(splits for splits, time in enumerate(times, 1) if GOOD_ENOUGH_PERCENT * time <= allowed)


def part_bytes(workload: Workload, splits: int) -> tuple[int, int]:
    """Bytes of the parts that the splits leave, in fp32: of O, and of the two statistics of each row."""
    if splits == 1:
        return 0, 0
    return splits * workload.q_elements * STATISTIC_BYTES, splits * workload.rows * 2 * STATISTIC_BYTES


def split_kv_demand(workload: Workload, splits: int, schedules: Mapping[str, Schedule] = _NO_SCHEDULES) -> Demand:
    """Demand of a fused forward whose keys are split, with the log-sum-exp.

    ``attention`` is the fused stage; each split writes its unnormalised O and, for each row, a maximum and a sum. A
    second stage, ``combine``, reads all of them: one exponential a row and split, and a multiply-add for each element
    of O and each sum. With one split there is nothing to combine and the first stage writes O.

    Source: Dao et al., "Flash-Decoding for long-context inference" (2023).

    Args:
        workload: a forward.
        splits: blocks that share the keys of a row.
        schedules: how a stage's blocks meet the SMs, by stage name.
    """
    fused = fused_demand(workload, schedules, lse=True)
    if splits == 1:
        return fused
    (whole,) = fused.stages
    o_bytes, statistics_bytes = part_bytes(workload, splits)
    attention = replace(
        whole,
        ledger=(
            *(line for line in whole.ledger if line.direction == "read"),
            LedgerLine("attention", "O parts", "write", o_bytes),
            LedgerLine("attention", "statistics", "write", statistics_bytes),
        ),
        # O is divided by its sum in the other stage.
        fp32_flops=whole.fp32_flops - workload.q_elements,
    )
    combine = Stage(
        name="combine",
        ledger=(
            LedgerLine("combine", "O parts", "read", o_bytes),
            LedgerLine("combine", "statistics", "read", statistics_bytes),
            *(replace(line, stage="combine") for line in whole.ledger if line.direction == "write"),
        ),
        fp32_flops=2 * splits * (workload.q_elements + workload.rows) + workload.q_elements,
        exponentials=splits * workload.rows,
        schedule=schedules.get("combine"),
    )
    return Demand(
        stages=(attention, combine),
        footprint_bytes=fused.footprint_bytes + o_bytes + statistics_bytes,
        intermediate_bytes=o_bytes + statistics_bytes,
    )
