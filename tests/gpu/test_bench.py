"""The benchmark on a real device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnprof.bench.rates import RateProbe, measure_rates
from attnprof.bench.rows import BenchRow, RowStatus
from attnprof.bench.runner import BenchOptions, bench
from attnprof.bench.sampler import UntilSteady
from attnprof.bench.trials import Verdict
from attnprof.bench.tune import TuneOptions, Tuner
from attnprof.bench.winners import Winners
from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.catalogue import select
from attnprof.model.workload import Pass, Workload

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


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("fa2", Workload.of(1024, batch=4, heads=8, head_dim=256, causal=True)),
        ("fa2-bwd", Workload.of(1024, batch=4, heads=16, head_dim=64, direction=Pass.BWD)),
        ("fa2-decode", Workload.of(1, seq_kv=16_384, batch=4, heads=32, kv_heads=8)),
    ],
)
def test_every_tile_choice_is_right_and_the_winner_runs(
    executor: GpuExecutor, tmp_path: Path, name: str, workload: Workload
) -> None:
    options = TuneOptions(rule=QUICK, ahead=executor.ahead)
    tuner = Tuner(executor, options, Winners(tmp_path / "tiles.json"))
    (row,) = rows_of(executor, [name], [workload], tuner=tuner)
    (tuning,) = tuner.tunings
    assert tuning.winner is not None, tuning.reason
    verdicts = {trial.label: trial.verdict for trial in tuning.trials}
    # A choice that fits the shared memory may spill; none may be wrong or refused.
    assert not {Verdict.WRONG, Verdict.DOES_NOT_RUN} & set(verdicts.values()), verdicts
    assert row.status is RowStatus.OK
    assert row.as_row()["tiles"] == tuning.winner.label
    # Kept for the next run, and never slower than the built-in choice by more than noise.
    (spec,) = select([name])
    kept = Winners(tmp_path / "tiles.json").choosing(spec).tiles(workload, executor.device)
    assert kept is not None
    assert kept.label == tuning.winner.label
    assert tuning.winner.speedup is not None
    assert tuning.winner.speedup >= 1.0


def test_heads_inside_the_sequence_run_without_a_copy(executor: GpuExecutor) -> None:
    """The strided variant; copies of Q, K, V and O would cost more than a sixth."""
    workload = Workload.of(2048, batch=4, heads=16, head_dim=128)
    (fa2,) = select(["fa2"])
    outside, inside = bench([fa2, fa2.laid_out("bshd")], [workload], executor, BenchOptions(rule=QUICK))
    assert inside.status is RowStatus.OK, inside.reason
    assert inside.verification is not None
    assert inside.verification.passed
    assert outside.time is not None
    assert inside.time is not None
    assert inside.time.median_s < 1.1 * outside.time.median_s
