"""How long thread blocks take on the SMs beyond what a perfect division of their work would take.

A ceiling assumes that every SM is busy to the end. Two things spoil that: the last wave is not full (wave
quantisation), and causal blocks have unequal work.
"""

from __future__ import annotations

from heapq import heapreplace

from attnprof.model.demand import Schedule

# Above so many unequal blocks the simulation gives way to Graham's bound, which is then within a few per cent of it.
_MOST_SIMULATED_BLOCKS = 8192


def imbalance(schedule: Schedule, sm_count: int) -> float:
    """Time that the SMs need for these blocks, over the time at perfect balance: 1.0 or more.

    The model is list scheduling: the next block, in launch order, goes to the SM that is free first, and an SM
    works at its full rate while it has work. Blocks that share an SM share its units, so they finish together no
    sooner than one after the other, and ``blocks_per_sm`` does not enter: n equal blocks on S SMs take
    ceil(n / S) block times whether an SM holds one block or four. (Too few resident blocks may not fill the units
    of an SM; that is a loss the measurement shows, not one that the schedule predicts.)

    Many unequal blocks take Graham's bound on list scheduling instead (R. L. Graham, "Bounds on Multiprocessing
    Timing Anomalies", 1969): makespan ≤ total / S + (1 − 1/S) · largest.

    Raises:
        ValueError: the runs of ``schedule.work`` don't add up to ``schedule.blocks``.
    """
    runs = schedule.work or ((schedule.blocks, 1),)
    blocks = sum(count for count, _ in runs)
    if blocks != schedule.blocks:
        raise ValueError(f"the schedule names {blocks} blocks of work but launches {schedule.blocks}")
    total = sum(count * work for count, work in runs)
    if total == 0:
        return 1.0
    largest = max(work for count, work in runs if count)
    if len(runs) == 1:
        makespan_times_sms = -(-blocks // sm_count) * largest * sm_count
    elif sum(count % sm_count for count, _ in runs) > _MOST_SIMULATED_BLOCKS:
        makespan_times_sms = total + (sm_count - 1) * largest
    else:
        makespan_times_sms = _list_schedule(runs, sm_count) * sm_count
    return makespan_times_sms / total


def _list_schedule(runs: tuple[tuple[int, int], ...], sm_count: int) -> int:
    """When the last SM finishes, in units of relative work."""
    busy_until = [0] * sm_count
    everyone = 0  # time added to every SM alike: a long run of equal blocks gives each SM the same number first
    for count, work in runs:
        each, rest = divmod(count, sm_count)
        everyone += each * work
        for _ in range(rest):
            heapreplace(busy_until, busy_until[0] + work)
    return everyone + max(busy_until)
