"""How many splits, and what they cost."""

from __future__ import annotations

import pytest

from attnprof.model.split_kv import choose_splits, part_bytes, split_kv_demand, wave_efficiency, wave_time
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Workload


def test_waves_times_the_longest_block() -> None:
    # 8 blocks of 100 steps on 16 slots: halves fill them exactly; thirds need two waves of 34 steps.
    assert [wave_time(n, blocks=8, steps=100, slots=16) for n in (1, 2, 3, 4)] == [100, 50, 68, 50]
    assert wave_efficiency(1, blocks=8, steps=100, slots=16) == 0.5
    assert wave_efficiency(2, blocks=8, steps=100, slots=16) == 1.0
    assert wave_efficiency(3, blocks=8, steps=100, slots=16) == 800 / (16 * 68)


@pytest.mark.parametrize(
    ("blocks", "steps", "slots", "expected"),
    [
        (264, 1000, 264, 1),  # full as it is
        (520, 1000, 264, 1),  # 1.97 waves of 2
        (300, 1000, 264, 6),  # 1.1 waves of 2 are bad, 3.4 of 4 hardly better; 6.8 of 7 will do
        (128, 8192, 264, 2),  # 0.97 of a wave
        (8, 2048, 132, 16),  # 128 of 132 slots: 97 %
        (1, 3, 264, 3),  # no more splits than steps
        (1, 1, 264, 1),
    ],
)
def test_the_smallest_that_is_good_enough(blocks: int, steps: int, slots: int, expected: int) -> None:
    assert choose_splits(blocks=blocks, steps=steps, slots=slots, most=512) == expected


@pytest.mark.parametrize("blocks", [1, 7, 8, 100, 131, 132, 133, 264, 265, 1000])
@pytest.mark.parametrize("steps", [1, 5, 64, 2048, 8191])
@pytest.mark.parametrize("slots", [80, 132, 264])
def test_the_choice_is_within_95_percent_and_nothing_smaller_is(blocks: int, steps: int, slots: int) -> None:
    most = 128
    chosen = choose_splits(blocks=blocks, steps=steps, slots=slots, most=most)
    efficiency = {
        n: wave_efficiency(n, blocks=blocks, steps=steps, slots=slots) for n in range(1, min(most, steps) + 1)
    }
    good = 0.95 * max(efficiency.values()) - 1e-12
    assert efficiency[chosen] >= good
    assert all(efficiency[n] < good + 2e-12 for n in range(1, chosen))
    assert max(efficiency.values()) <= 1.0


def test_most_is_a_limit_that_leaves_at_least_one() -> None:
    assert choose_splits(blocks=1, steps=1000, slots=264, most=4) == 4
    assert choose_splits(blocks=1, steps=1000, slots=264, most=0) == 1


def test_one_split_is_the_fused_kernel() -> None:
    workload = Workload.of(4, seq_kv=1000, heads=8, kv_heads=2)
    assert split_kv_demand(workload, 1) == fused_demand(workload, lse=True)
    assert part_bytes(workload, 1) == (0, 0)


def test_parts_are_written_once_and_read_once() -> None:
    workload = Workload.of(2, seq_kv=1000, batch=3, heads=8, kv_heads=2, head_dim=64)
    rows, splits = 3 * 8 * 2, 5
    o_bytes, statistics_bytes = part_bytes(workload, splits)
    assert (o_bytes, statistics_bytes) == (4 * splits * rows * 64, 8 * splits * rows)
    asked, fused = split_kv_demand(workload, splits), fused_demand(workload, lse=True)
    assert asked.hbm_bytes == fused.hbm_bytes + 2 * (o_bytes + statistics_bytes)
    assert asked.footprint_bytes == fused.footprint_bytes + o_bytes + statistics_bytes
    assert asked.intermediate_bytes == o_bytes + statistics_bytes
    assert asked.tensor_flops == fused.tensor_flops
    attention, combine = asked.stages
    assert attention.exponentials == fused.exponentials
    assert combine.exponentials == splits * rows
    # A multiply-add for each column and for the sum of each part, and one multiply an element of O.
    assert combine.fp32_flops == 2 * splits * rows * 65 + rows * 64
    assert {line.stage for line in asked.ledger} == {"attention", "combine"}
