"""Bank conflicts from addresses: known ones, and the emulator's own count on any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.emulator.traffic import wavefronts
from attnprof.model.banks import WIDTHS_BYTES, Conflicts, conflicts, ldmatrix_conflicts
from attnprof.model.errors import UsageError

LANES = range(32)


@pytest.mark.parametrize(
    ("nbytes", "addresses", "expected"),
    [
        (4, [4 * i for i in LANES], (1, 1)),
        (4, [0] * 32, (1, 1)),  # a broadcast
        (4, [4 * (i % 2) for i in LANES], (1, 1)),  # two of them
        (4, [8 * i for i in LANES], (2, 1)),
        (4, [128 * i for i in LANES], (32, 1)),
        (4, [132 * i for i in LANES], (1, 1)),
        (4, [128 * (i % 2) for i in LANES], (2, 1)),
        (2, [2 * i for i in LANES], (1, 1)),  # pairs of halves share a word
        (2, [128 * i for i in LANES], (32, 1)),
        (2, [144 * i for i in LANES], (4, 1)),  # eight rows apart is four times around the banks
        (2, [132 * i for i in LANES], (1, 1)),
        (1, [128 * i for i in LANES], (32, 1)),
        (8, [8 * i for i in LANES], (2, 2)),
        (8, [16 * i for i in LANES], (4, 2)),
        (16, [16 * i for i in LANES], (4, 4)),
        (16, [128 * i for i in LANES], (32, 4)),
        (16, [144 * i for i in LANES], (4, 4)),
        (16, [16 * (i % 8) for i in LANES], (4, 4)),
        (8, [8 * (i // 2) for i in LANES], (1, 1)),  # lanes in pairs: the whole warp goes at once
        (16, [16 * (i // 2) for i in LANES], (2, 2)),
        (16, [16 * (i // 4 * 2 + i % 2) for i in LANES], (2, 2)),  # t and t xor 2
        (16, [128 * (i // 2) for i in LANES], (16, 2)),
        (4, [None] * 32, (0, 0)),
        (4, [0, None, 128, *[None] * 29], (2, 1)),
        (16, [0, *[None] * 31], (1, 1)),  # three quarters of the warp have nothing to do
        (4, [0], (1, 1)),
    ],
)
def test_known_conflicts(nbytes: int, addresses: list[int | None], expected: tuple[int, int]) -> None:
    found = conflicts(addresses, nbytes)
    assert (found.wavefronts, found.ideal) == expected


def test_a_store_gains_nothing_from_pairs() -> None:
    found = conflicts([16 * (i // 2) for i in LANES], 16, load=False)
    assert (found.wavefronts, found.ideal) == (4, 4)


def test_the_degree() -> None:
    assert Conflicts(32, 4).degree == 8
    assert Conflicts(7, 4).degree == 1.75
    assert Conflicts(0, 0).degree == 1


@pytest.mark.parametrize(("rows", "expected"), [(8, (8, 1)), (16, (16, 2)), (32, (32, 4))])
def test_ldmatrix_of_plain_rows(rows: int, expected: tuple[int, int]) -> None:
    found = ldmatrix_conflicts([128 * row for row in range(rows)])
    assert (found.wavefronts, found.ideal) == expected
    assert ldmatrix_conflicts([144 * row for row in range(rows)]).degree == 1


@given(
    nbytes=st.sampled_from(WIDTHS_BYTES),
    units=st.lists(st.none() | st.integers(0, 700), min_size=32, max_size=32),
    load=st.booleans(),
    shared_by=st.sampled_from([1, 2, 4]),
)
def test_the_emulator_counts_the_same(nbytes: int, units: list[int | None], load: bool, shared_by: int) -> None:
    addresses = [None if units[i // shared_by] is None else units[i // shared_by] * nbytes for i in LANES]
    found = conflicts(addresses, nbytes, load=load)
    counted = wavefronts(np.array([[-1 if a is None else a for a in addresses]]), nbytes, load=load)
    assert (found.wavefronts, found.ideal) == counted


@given(st.lists(st.integers(0, 500), min_size=1, max_size=32), st.integers(0, 40))
def test_moving_everything_by_all_banks_changes_nothing(words: list[int], lines: int) -> None:
    here = conflicts([4 * word for word in words], 4)
    there = conflicts([4 * word + 128 * lines for word in words], 4)
    assert here == there
    assert here.ideal <= here.wavefronts <= len(words)


@pytest.mark.parametrize(
    ("addresses", "nbytes"), [([0], 3), ([0], 32), ([2], 4), ([0, 8], 16), ([-4], 4), ([0] * 33, 4)]
)
def test_impossible_accesses_are_refused(addresses: list[int], nbytes: int) -> None:
    with pytest.raises(UsageError):
        conflicts(addresses, nbytes)


def test_ldmatrix_of_another_number_of_rows_is_refused() -> None:
    with pytest.raises(UsageError):
        ldmatrix_conflicts([0] * 12)
