"""The benchmark on a real device."""

from __future__ import annotations

import json

import pytest

from attnprof.bench.rates import RateProbe, measure_rates
from attnprof.bench.rows import BenchRow, RowStatus
from attnprof.bench.runner import BenchOptions, bench
from attnprof.bench.sampler import UntilSteady
from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.catalogue import select
from attnprof.model.workload import Workload

pytestmark = pytest.mark.gpu

QUICK = UntilSteady(min_time_s=0.2, time_limit_s=3.0)


def rows_of(executor: GpuExecutor, names: list[str], workloads: list[Workload], **options: object) -> list[BenchRow]:
    return list(bench(select(names), workloads, executor, BenchOptions(rule=QUICK), **options))  # type: ignore[arg-type]


def test_every_row_is_verified_timed_and_below_its_roof_and_the_measured_rates(executor: GpuExecutor) -> None:
    import time

    copy = executor.peer("copy", Workload.of(64))
    rates = measure_rates([RateProbe("copy", "byte/s", copy.bytes, lambda: copy)], QUICK, clock=time.monotonic)
    assert rates[0].value is not None, rates[0].reason
    assert executor.device.hbm_bytes_per_s is None or 0.5 < rates[0].value / executor.device.hbm_bytes_per_s <= 1.0
    workloads = [Workload.of(4096, causal=causal) for causal in (False, True)]
    for row in rows_of(executor, ["naive", "fa2"], workloads, rates=rates):
        assert row.status is RowStatus.OK, row.reason
        assert row.verification is not None
        assert row.verification.passed
        assert row.pct_of_roof is not None
        assert 10 < row.pct_of_roof <= 100
        assert not {"above-roof", "above-copy-rate"} & {warning.kind.code for warning in row.warnings}
        assert row.readings is not None
        assert row.readings.sm_clock_hz is not None
        json.dumps(row.as_row(), allow_nan=False)


def test_the_same_bench_twice_agrees_and_compiles_once(executor: GpuExecutor) -> None:
    workload = Workload.of(2048)
    (first,) = rows_of(executor, ["fa2"], [workload])
    (second,) = rows_of(executor, ["fa2"], [workload])
    assert first.time is not None
    assert second.time is not None
    assert second.time.median_s == pytest.approx(first.time.median_s, rel=0.1)
    assert second.compile_cached
    assert second.compile_time_s == 0.0


def test_out_of_memory_is_a_row_and_what_comes_after_it_runs(executor: GpuExecutor) -> None:
    huge = Workload.of(131_072, batch=4, heads=32)  # S alone takes 4 TiB
    rows = rows_of(executor, ["naive"], [Workload.of(1024), huge, Workload.of(2048)])
    assert [row.status for row in rows] == [RowStatus.OK, RowStatus.SKIPPED, RowStatus.OK]
    assert rows[1].reason is not None
    assert "out of memory: needs 4" in rows[1].reason


def test_tiny_workloads_are_resolved_or_marked(executor: GpuExecutor) -> None:
    (row,) = rows_of(executor, ["fa2"], [Workload.of(16, heads=1)])
    assert row.time is not None
    codes = {warning.kind.code for warning in row.warnings}
    assert row.flops_per_s is not None or "below-resolution" in codes
