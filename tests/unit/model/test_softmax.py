"""The online softmax, step by step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.errors import UsageError
from attnprof.model.softmax import naive_half_softmax, normalise, online_softmax, safe_softmax


def test_the_steps_of_the_documentation() -> None:
    first, second = online_softmax([1, 3, 2, 4], 2)
    assert (first.block, first.max, first.rescale) == ((1, 3), 3, None)
    assert round(first.sum, 4) == 1.1353
    assert (second.block, second.max) == ((2, 4), 4)
    assert second.rescale is not None
    assert round(second.rescale, 4) == 0.3679
    assert round(second.sum, 4) == 1.5530


@given(
    x=st.lists(st.floats(-1000, 1000) | st.just(-math.inf), min_size=1, max_size=40),
    block=st.integers(1, 50),
)
def test_one_pass_agrees_with_three(x: list[float], block: int) -> None:
    steps = online_softmax(x, block)
    assert [value for step in steps for value in step.block] == x
    probabilities = normalise(x, steps[-1])
    for a, b in zip(probabilities, safe_softmax(x), strict=True):
        assert abs(a - b) < 1e-12
    total = math.fsum(probabilities)
    assert total == 0 if max(x) == -math.inf else abs(total - 1) < 1e-12


def test_masked_blocks_count_for_nothing() -> None:
    steps = online_softmax([-math.inf, -math.inf, 5.0], 1)
    assert [(step.max, step.rescale, step.sum) for step in steps] == [
        (-math.inf, None, 0.0),
        (-math.inf, 0.0, 0.0),
        (5.0, 0.0, 1.0),
    ]


@pytest.mark.parametrize(("x", "block"), [([], 1), ([1.0], 0), ([math.nan], 1), ([1.0, math.inf], 1)])
def test_bad_input_is_the_users_error(x: list[float], block: int) -> None:
    with pytest.raises(UsageError):
        online_softmax(x, block)


def test_without_the_maximum_half_precision_overflows() -> None:
    naive = naive_half_softmax([10, 12, 11])
    assert naive.exponentials[1] == math.inf
    assert naive.sum == math.inf
    assert math.isnan(naive.probabilities[1])
    assert naive.probabilities[0] == 0
    # exp(11.0) = 59,874 is the last whole number's that fits; two of them do not add up.
    assert naive_half_softmax([11, 11]).sum == math.inf
    assert naive_half_softmax([11, 11]).probabilities == (0, 0)


def test_without_the_maximum_half_precision_underflows() -> None:
    naive = naive_half_softmax([-20.0, -30.0])
    assert naive.sum == 0
    assert all(map(math.isnan, naive.probabilities))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8))
def test_where_nothing_overflows_half_precision_is_close(x: list[float]) -> None:
    naive = naive_half_softmax(x)
    for a, b in zip(naive.probabilities, safe_softmax(x), strict=True):
        assert abs(a - b) < 0.01


@pytest.mark.parametrize("x", [1e300, 800.0, 70000.0])
def test_any_number_can_be_shown(x: float) -> None:
    assert naive_half_softmax([x]).sum == math.inf
    assert naive_half_softmax([-x]).sum == 0
