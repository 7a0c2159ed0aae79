"""How long thread blocks take on the SMs beyond what a perfect division of their work would take.

A ceiling assumes that every SM is busy to the end. Two things spoil that: the last wave is not full (wave
quantisation), and causal blocks have unequal work.
"""

from __future__ import annotations

from heapq import heapreplace

from attnprof.model.demand import Schedule

# Of so many unequal blocks only the last are placed one by one: the end is where an imbalance is made.
_MOST_PLACED_BLOCKS = 2048


def imbalance(schedule: Schedule, sm_count: int) -> float:
    """Time that the SMs need for these blocks, over the time at perfect balance: 1.0 or more.

    The model is list scheduling: the next block, in launch order, goes to the SM that is free first, and an SM
    works at its full rate while it has work. Blocks that share an SM share its units, so they finish together no
    sooner than one after the other, and ``blocks_per_sm`` does not enter: n equal blocks on S SMs take
    ceil(n / S) block times whether an SM holds one block or four. (Too few resident blocks may not fill the units
    of an SM; that is a loss the measurement shows, not one that the schedule predicts.)

    The list schedule of n unequal blocks ends by total / S + (1 − 1/S) · largest at the latest (R. L. Graham, "Bounds
    on Multiprocessing Timing Anomalies", 1969). Of thousands of them only the last 2048 are placed one by one, on SMs
    that the others have kept busy equally long.

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
    if len(runs) == 1:
        return -(-blocks // sm_count) * sm_count / blocks
    return _list_schedule(runs, sm_count) / total


def _list_schedule(runs: tuple[tuple[int, int], ...], sm_count: int) -> int:
    """When the last SM finishes, times the number of SMs, in units of relative work."""
    first = len(runs)
    placed = 0
    while first and placed <= _MOST_PLACED_BLOCKS:
        first -= 1
        placed += runs[first][0] % sm_count
    # Everything is counted sm_count-fold, so that an equal share of the first blocks is a whole number.
    everyone = sum(count * work for count, work in runs[:first])
    busy_until = [0] * sm_count
    for count, work in runs[first:]:
        # A long run of equal blocks gives every SM the same number of them before the rest is placed.
        each, rest = divmod(count, sm_count)
        everyone += each * work * sm_count
        for _ in range(rest):
            heapreplace(busy_until, busy_until[0] + work * sm_count)
    return everyone + max(busy_until)
