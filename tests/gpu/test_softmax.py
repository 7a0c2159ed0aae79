"""The softmax kernels on a real device: every place where a row can stay, and what they reach."""

from __future__ import annotations

import pytest

from attnprof.bench.rows import BenchRow, RowStatus
from attnprof.bench.runner import BenchOptions, bench
from attnprof.bench.sampler import UntilSteady
from attnprof.check.numerics import check_numerics, check_overflow
from attnprof.check.rows import CheckStatus
from attnprof.check.softmax_workloads import matrix, overflow_case
from attnprof.check.workloads import NumericsCase
from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.catalogue import select
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.ladder.softmax import SPECS
from attnprof.model.dtypes import Dtype

pytestmark = pytest.mark.gpu

NAIVE, SAFE, ONLINE, FUSED = SPECS
QUICK = UntilSteady(min_time_s=0.2, time_limit_s=3.0)


def timed(executor: GpuExecutor, name: str, columns: int, dtype: Dtype = Dtype.FP16) -> BenchRow:
    """One row on a matrix of 1 GiB."""
    workload = matrix(2**30 // (columns * dtype.itemsize), columns, dtype)
    (row,) = bench(select([name]), [workload], executor, BenchOptions(rule=QUICK))
    return row


def test_matrices_of_more_than_two_to_the_31_elements(executor: GpuExecutor) -> None:
    cases = tuple(
        NumericsCase(matrix(rows, columns, dtype), operation="softmax")
        for rows, columns, dtype in ((2**21 + 1, 1025, Dtype.FP16), (2050, 2**20, Dtype.BF16))
    )
    for spec in (SAFE, FUSED):
        rows = list(check_numerics(spec, cases, executor))
        assert {row.status for row in rows} == {CheckStatus.PASS}, [row.detail for row in rows]


def test_masked_rows_at_every_place_of_the_fused_kernel(executor: GpuExecutor) -> None:
    lengths = (63, 1001, 3001, 16_385, 32_769, 65_537, 131_071, 200_001, 1_000_001)
    cases = tuple(
        NumericsCase(matrix(11, columns, dtype), Distribution.MASKED, "softmax")
        for columns in lengths
        for dtype in Dtype
    )
    rows = list(check_numerics(FUSED, cases, executor))
    assert {row.status for row in rows} == {CheckStatus.PASS}, [row.detail for row in rows]


def test_softmax_naive_overflows_as_documented(executor: GpuExecutor) -> None:
    row = check_overflow(NAIVE, overflow_case(), executor)
    assert row.status is CheckStatus.PASS, row.detail


@pytest.mark.parametrize("columns", [1024, 4096, 16_384, 32_768, 131_072])
def test_the_fused_kernel_moves_each_byte_once(executor: GpuExecutor, columns: int) -> None:
    row = timed(executor, "softmax-fused", columns)
    assert row.status is RowStatus.OK, row.reason
    assert row.verification is not None
    assert row.verification.passed
    assert row.pct_of_roof is not None
    # A second pass over HBM would leave at most two thirds.
    assert 67 < row.pct_of_roof <= 100


@pytest.mark.parametrize("name", ["softmax-safe", "softmax-online"])
def test_rereads_that_miss_l2_cost_what_the_ledger_says(executor: GpuExecutor, name: str) -> None:
    row = timed(executor, name, 2**20)
    assert row.status is RowStatus.OK, row.reason
    assert row.pct_of_roof is not None
    assert 70 < row.pct_of_roof <= 105  # a few of the re-reads may still be in L2
