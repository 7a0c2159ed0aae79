"""The sample of rows: no row twice, both ends, and every place in a tile as soon as the budget allows it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.kernels.sampling import CHUNK, sampled_chunks


def rows_of(chunks: list[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    return [(head, row) for head, start in chunks for row in range(start, min(start + CHUNK, rows))]


@given(heads=st.integers(1, 300), rows=st.integers(1, 3000), budget=st.integers(1, 600))
@settings(deadline=None)
def test_chunks_are_within_the_heads_and_the_budget_and_none_overlap(heads: int, rows: int, budget: int) -> None:
    chunks = sampled_chunks(heads, rows, budget)
    assert 1 <= len(chunks) <= budget
    assert chunks == sorted(chunks) == sampled_chunks(heads, rows, budget)
    found = rows_of(chunks, rows)
    assert len(found) == len(set(found))
    assert all(0 <= head < heads and 0 <= row < rows for head, row in found)
    assert (heads - 1, rows - 1) in found


@pytest.mark.parametrize("heads", [1, 2, 8, 32, 257])
@pytest.mark.parametrize("rows", [200, 1024, 4097, 16_384, 65_537, 1_000_000])
@pytest.mark.parametrize(("budget", "tile"), [(16, 64), (47, 128), (400, 128)])
def test_every_place_in_a_tile_is_compared(heads: int, rows: int, budget: int, tile: int) -> None:
    """A kernel that forgets one warp's rows in every tile is found in one of the heads at the least."""
    found = rows_of(sampled_chunks(heads, rows, budget), rows)
    assert {row % tile for _, row in found} == set(range(tile))
    assert {0, heads - 1} <= {head for head, _ in found}


@pytest.mark.parametrize(("heads", "rows"), [(32, 4096), (1, 40_000), (8, 65_537)])
def test_edges_are_compared(heads: int, rows: int) -> None:
    seen = {row for _, row in rows_of(sampled_chunks(heads, rows, 16), rows)}
    last = (rows - 1) // 128 * 128
    assert {0, rows - 1, 127, 128, last - 1, last, rows // 2 // 128 * 128} <= seen


def test_where_the_budget_holds_whole_heads_they_are_whole() -> None:
    found = rows_of(sampled_chunks(4100, 64, 4096), 64)
    assert len(found) == 512 * 64
    assert {0, 4099} <= {head for head, _ in found}


def test_a_large_budget_reaches_all_of_a_small_output() -> None:
    assert len(rows_of(sampled_chunks(3, 131, 1000), 131)) == 3 * 131
    assert len(rows_of(sampled_chunks(100, 131, 1000), 131)) > 900 * CHUNK
