"""One kernel a memory pattern: the counts that a profiler is expected to show for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnprof.emulator import Mode, Trace
from tests.unit.emulator.emulator_harness import Bench

SOURCE = (Path(__file__).parent / "micro_kernels.cu").read_text(encoding="utf-8")
GRID = 3

# Sectors of one warp's request.
SECTORS = {
    "global_coalesced": 4,
    "global_misaligned": 5,
    "global_reversed": 4,
    "global_stride_2": 8,
    "global_stride_8": 32,
    "global_broadcast": 1,
    "global_v2": 8,
    "global_v4": 16,
    "global_v4_stride_2": 32,
    "global_v4_broadcast": 1,
    "global_store_coalesced": 4,
    "global_store_stride_2": 8,
    "global_store_v4": 16,
}

# (wavefronts, conflicts) of one warp's request.
WAVEFRONTS = {
    "shared_plain": (1, 0),
    "shared_broadcast": (1, 0),
    "shared_two_words_of_a_bank": (2, 1),
    "shared_stride_2": (2, 1),
    "shared_column": (32, 31),
    "shared_column_padded": (1, 0),
    "shared_v2": (2, 0),
    "shared_v2_stride_2": (4, 2),
    "shared_v2_broadcast": (1, 0),
    "shared_v2_halves_alike": (2, 0),
    "shared_v4": (4, 0),
    "shared_v4_broadcast": (2, 0),
    "shared_v4_quarters_alike": (4, 0),
    "shared_v4_even_lanes_apart": (8, 4),
    "shared_v4_column": (32, 28),
    "shared_v4_column_padded": (4, 0),
    "shared_v4_column_swizzled": (4, 0),
    "ldmatrix_column": (32, 28),
    "ldmatrix_padded": (4, 0),
    "ldmatrix_swizzled": (4, 0),
    "ldmatrix_two_way": (16, 12),
    "ldmatrix_broadcast": (4, 0),
    "shared_store_plain": (1, 0),
    "shared_store_column": (32, 31),
    "shared_store_one_word": (1, 0),
    "shared_store_v4": (4, 0),
    "shared_store_v4_column": (32, 28),
    "shared_store_v4_swizzled": (4, 0),
}


def trace(bench: Bench, entry: str) -> Trace:
    arrays = {"in": np.zeros(4096, "u4"), "out": np.zeros(4096, "u4")}
    return bench.run(SOURCE, entry, arrays, outputs=("out",), grid=(GRID, 1, 1), mode=Mode.COUNTS).trace


@pytest.mark.parametrize("entry", SECTORS)
def test_sectors(bench: Bench, entry: str) -> None:
    counters = trace(bench, entry).counters
    assert counters.global_requests == GRID
    assert counters.global_sectors == GRID * SECTORS[entry]
    assert counters.shared_requests == 0


@pytest.mark.parametrize("entry", WAVEFRONTS)
def test_wavefronts(bench: Bench, entry: str) -> None:
    counters = trace(bench, entry).counters
    assert counters.shared_requests == GRID
    assert (counters.shared_wavefronts, counters.bank_conflicts) == tuple(GRID * n for n in WAVEFRONTS[entry])
    assert counters.global_requests == 0
