"""Wave quantisation and unequal blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.demand import Schedule
from attnprof.model.schedule import imbalance

RUNS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=12)


def list_schedule(works: list[int], sms: int) -> int:
    """Each block in turn goes to the SM that is free first: the definition, with no shortcut."""
    busy = [0] * sms
    for work in works:
        first = busy.index(min(busy))
        busy[first] += work
    return max(busy)


def of_runs(runs: list[tuple[int, int]]) -> Schedule:
    return Schedule(sum(count for count, _ in runs), 1, tuple(runs))


@given(blocks=st.integers(1, 500), sms=st.integers(1, 40))
def test_equal_blocks_come_in_waves(blocks: int, sms: int) -> None:
    waves = -(-blocks // sms)
    assert imbalance(Schedule(blocks, 2), sms) == pytest.approx(waves * sms / blocks)


@given(runs=RUNS, sms=st.integers(1, 10))
def test_imbalance_lies_between_one_and_grahams_bound(runs: list[tuple[int, int]], sms: int) -> None:
    total = sum(count * work for count, work in runs)
    found = imbalance(of_runs(runs), sms)
    assert found >= 1.0
    if total:
        largest = max(work for _, work in runs)
        assert found * total <= (total + (sms - 1) * largest) * (1 + 1e-12)


@given(works=st.lists(st.integers(1, 50), min_size=2, max_size=60), sms=st.integers(2, 9))
def test_single_blocks_are_scheduled_as_the_definition_says(works: list[int], sms: int) -> None:
    schedule = of_runs([(1, work) for work in works])
    assert imbalance(schedule, sms) == pytest.approx(list_schedule(works, sms) * sms / sum(works))


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=8),
    works=st.lists(st.integers(1, 10), min_size=8, max_size=8),
    sms=st.integers(2, 9),
)
def test_runs_are_close_to_block_by_block(counts: list[int], works: list[int], sms: int) -> None:
    """Handing every SM the same number of a run's blocks at once shifts the end by less than the largest block."""
    runs = list(zip(counts, works, strict=False))
    expanded = [work for count, work in runs for _ in range(count)]
    total = sum(expanded)
    exact = list_schedule(expanded, sms)
    assert abs(imbalance(of_runs(runs), sms) * total / sms - exact) <= max(works)


def test_largest_first_balances_better_than_largest_last() -> None:
    rising = [(1, m) for m in range(1, 65)] * 3
    assert imbalance(of_runs(rising[::-1]), 132) < imbalance(of_runs(rising), 132)


@pytest.mark.parametrize("order", [1, -1])
def test_of_many_blocks_the_last_tell(order: int) -> None:
    works = [1 + index % 256 for index in range(8192)][::order]
    total = sum(works)
    exact = list_schedule(works, 132) * 132 / total
    assert imbalance(of_runs([(1, work) for work in works]), 132) == pytest.approx(exact, rel=0.01)


def test_no_work_is_balanced() -> None:
    assert imbalance(Schedule(5, 1, ((5, 0),)), 8) == 1.0


def test_work_must_cover_the_blocks() -> None:
    with pytest.raises(ValueError, match="3 blocks of work but launches 4"):
        imbalance(Schedule(4, 1, ((3, 1),)), 8)
