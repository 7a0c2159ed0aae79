from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnprof.bench.rates import RateProbe, measure_rates
from attnprof.bench.rows import BenchRow, MeasuredRate, RowStatus
from attnprof.bench.runner import BenchOptions, bench
from attnprof.bench.sampler import UntilSteady
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import (
    CompileError,
    ContextLost,
    EnvironmentProblem,
    KernelFault,
    LaunchLimitError,
    UnsupportedWorkload,
)
from attnprof.model.workload import Pass, Workload
from tests.fakes import FakeExecutor, FakeTimed, ReusingExecutor, attend, fake_spec, opener


def sweep(
    executor: FakeExecutor, specs: list[KernelSpec], workloads: list[Workload], peers: Any = None, **options: Any
) -> list[BenchRow]:
    rates = options.pop("rates", ())
    chosen = BenchOptions(clock=executor.clock, **options)
    return list(bench(specs, workloads, executor, chosen, peers=peers, rates=rates))


def small(seq: int = 64, **changes: Any) -> Workload:
    return Workload.of(seq, **{"heads": 2, "head_dim": 64, **changes})


def codes(row: BenchRow) -> set[str]:
    return {warning.kind.code for warning in row.warnings}


def raiser(error: BaseException, *, when: Callable[[LaunchPlan], bool] = lambda _: True) -> Callable[..., None]:
    def raise_(plan: LaunchPlan, *_: object) -> None:
        if when(plan):
            raise error

    return raise_


def seq_of(plan: LaunchPlan) -> int:
    return plan.tensor("q").shape[2]


def test_a_row_sets_what_was_measured_beside_what_was_predicted() -> None:
    executor = FakeExecutor(time_s=lambda plan, index: 2e-3)
    workload = small(causal=True)
    (row,) = sweep(executor, [fake_spec()], [workload])
    as_row = row.as_row()
    assert as_row["status"] == "ok"
    assert as_row["reason"] is None
    assert as_row["flops_per_s"] == workload.flops / 2e-3
    assert as_row["hbm_bytes_per_s"] == as_row["hbm_bytes"] / 2e-3  # type: ignore[operator]
    assert as_row["pct_of_roof"] == pytest.approx(100 * as_row["roof_time_s"] / 2e-3)  # type: ignore[operator]
    assert as_row["sm_clock_hz"] == 1_980_000_000
    assert as_row["throttled"] is False
    assert as_row["compile_time_s"] == 1.5
    assert as_row["compile_cached"] is False
    assert as_row["verified"] is True
    assert 0 < as_row["max_rel_error"] <= as_row["max_rel_error_limit"]  # type: ignore[operator]
    assert as_row["rows_verified"] == as_row["rows_total"] == 128
    assert as_row["l2"] == "cold"
    assert as_row["stop_reason"] == "steady"
    assert len(as_row["time_s"]["samples"]) >= 10  # type: ignore[index]
    json.dumps(as_row, allow_nan=False)


def test_every_workload_meets_every_kernel_in_order() -> None:
    specs = [fake_spec("a"), fake_spec("b")]
    workloads = [small(64), small(65)]
    rows = sweep(FakeExecutor(), specs, workloads)
    assert [(row.kernel, row.workload.seq_q) for row in rows] == [("a", 64), ("b", 64), ("a", 65), ("b", 65)]


def test_the_cache_shows_as_no_compile_time() -> None:
    executor = FakeExecutor()
    first, second = (sweep(executor, [fake_spec()], [small()])[0] for _ in range(2))
    assert (first.compile_time_s, first.compile_cached) == (1.5, False)
    assert (second.compile_time_s, second.compile_cached) == (0.0, True)
    assert first.time == second.time


def test_memory_is_freed_after_each_row() -> None:
    executor = FakeExecutor(on_time=raiser(KernelFault("bad address"), when=lambda plan: seq_of(plan) == 65))
    sweep(executor, [fake_spec()], [small(64), small(65), small(66)])
    assert executor.open_runs == 0


@pytest.mark.parametrize("order", [(64, 256, 128), (256, 64, 128), (128, 64, 256)])
def test_out_of_memory_names_both_sizes_and_the_sweep_goes_on_in_any_order(order: tuple[int, ...]) -> None:
    roomy = {row.workload: row.as_row() for row in sweep(FakeExecutor(), [fake_spec()], [small(n) for n in order])}
    need = 2 * 4 * 2 * 256 * 64 + 4 * 2 * 256
    rows = sweep(FakeExecutor(memory_bytes=need - 1), [fake_spec()], [small(n) for n in order])
    assert [row.workload.seq_q for row in rows] == list(order)
    for row in rows:
        if row.workload.seq_q == 256:
            assert row.status is RowStatus.SKIPPED
            assert row.reason is not None
            assert row.reason.startswith("out of memory: needs")
            assert "free" in row.reason
        else:
            same = roomy[row.workload]["time_s"]["median"], roomy[row.workload]["max_rel_error"]  # type: ignore[index]
            assert (row.time.median_s, row.as_row()["max_rel_error"]) == same  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnsupportedWorkload("no such head dim"), RowStatus.SKIPPED),
        (LaunchLimitError("needs 300000 bytes of shared memory, 232448 available"), RowStatus.SKIPPED),
        (CompileError("expected a ';'"), RowStatus.ERROR),
        (EnvironmentProblem("cuda_fp16.h is missing"), RowStatus.ERROR),
        (KernelFault("illegal address"), RowStatus.ERROR),
    ],
)
def test_a_row_that_cannot_run_says_why_and_the_others_run(error: Exception, status: RowStatus) -> None:
    executor = FakeExecutor(on_prepare=raiser(error, when=lambda plan: seq_of(plan) == 65))
    rows = sweep(executor, [fake_spec()], [small(64), small(65), small(66)])
    assert [row.status for row in rows] == [RowStatus.OK, status, RowStatus.OK]
    assert rows[1].reason == str(error)
    assert rows[1].as_row()["time_s"] is None
    assert rows[1].as_row()["pct_of_roof"] is None
    json.dumps(rows[1].as_row(), allow_nan=False)


def test_wrong_architecture_pass_and_shape_are_skipped_before_anything_runs() -> None:
    hopper = fake_spec("hopper", arches=("sm_90a",))
    plain = fake_spec("plain")
    executor = FakeExecutor(device=find("RTX 4090"), arch="sm_89")
    rows = sweep(executor, [hopper, plain], [small(), small(head_dim=40), small(direction=Pass.BWD)])
    reasons = [(row.kernel, row.reason) for row in rows if row.status is RowStatus.SKIPPED]
    assert reasons == [
        ("hopper", "needs sm_90a, this GPU is sm_89"),
        ("hopper", "needs sm_90a, this GPU is sm_89"),
        ("plain", "head_dim must be 64 or 128"),
        ("hopper", "computes the fwd pass only"),
        ("plain", "computes the fwd pass only"),
    ]


def corrupt(change: Callable[[np.ndarray], None]) -> Callable[[LaunchPlan, Mapping[str, np.ndarray]], Any]:
    def compute(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> Any:
        outputs = attend(plan, memory)
        change(outputs["o"])
        return outputs

    return compute


def test_a_wrong_result_is_an_error_and_is_not_timed() -> None:
    def halve(o: np.ndarray) -> None:
        o *= np.float16(0.5)

    def no_timing(plan: LaunchPlan, index: int) -> None:
        raise AssertionError("a wrong kernel was timed")

    executor = FakeExecutor(compute=corrupt(halve), on_time=no_timing)
    (row,) = sweep(executor, [fake_spec()], [small()])
    assert row.status is RowStatus.ERROR
    assert row.reason is not None
    assert row.reason.startswith("wrong result, not timed: relative error 0.5")
    assert row.as_row()["verified"] is False
    assert row.as_row()["max_rel_error"] == pytest.approx(0.5, rel=1e-3)
    assert row.time is None


def test_what_another_kernel_left_in_memory_is_no_result() -> None:
    executor = ReusingExecutor(lambda plan: plan.launches[0].build.file.stem == "right")
    right, idle = sweep(executor, [fake_spec("right"), fake_spec("idle")], [small()])
    assert right.status is RowStatus.OK
    assert idle.status is RowStatus.ERROR
    assert (idle.reason or "").startswith("wrong result, not timed: ")


def test_without_verification_the_row_says_so() -> None:
    (row,) = sweep(FakeExecutor(), [fake_spec()], [small()], verify=False)
    assert row.status is RowStatus.OK
    assert row.as_row()["verified"] is None


def test_a_lost_context_keeps_the_rows_before_it_and_names_itself_after_it() -> None:
    bad, good = fake_spec("bad"), fake_spec("good")
    executor = FakeExecutor(
        on_launch=raiser(
            ContextLost("illegal address: the context is lost"),
            when=lambda plan: seq_of(plan) == 65 and plan.launches[0].build.file.stem == "bad",
        )
    )
    rows = sweep(executor, [bad, good], [small(64), small(65), small(66)])
    assert [row.status.value for row in rows] == ["ok", "ok", "error", "skipped", "skipped", "skipped"]
    assert rows[2].context_lost
    assert "illegal address" in (rows[2].reason or "")
    assert {row.reason for row in rows[3:]} == {"context lost: bad crashed on b1 h2 s65 d64 fp16"}


def test_a_fault_while_timing_keeps_the_samples_but_gives_no_rates() -> None:
    def fault(plan: LaunchPlan, index: int) -> None:
        if index == 6:
            raise KernelFault("illegal address")

    (row,) = sweep(FakeExecutor(on_time=fault), [fake_spec()], [small()])
    assert (row.status, row.reason) == (RowStatus.ERROR, "illegal address")
    assert row.time is not None
    assert len(row.time.samples) == 4
    assert row.flops_per_s is row.pct_of_roof is None
    assert row.stop_reason == "fault"


def test_an_interrupt_keeps_the_samples_of_its_row_and_ends_the_sweep() -> None:
    def interrupt(plan: LaunchPlan, index: int) -> None:
        if seq_of(plan) == 65 and index == 6:
            raise KeyboardInterrupt

    rows = sweep(FakeExecutor(on_time=interrupt), [fake_spec()], [small(64), small(65), small(66)])
    assert [row.status.value for row in rows] == ["ok", "interrupted"]
    assert rows[1].time is not None
    assert len(rows[1].time.samples) == 4
    assert rows[1].as_row()["stop_reason"] == "interrupted"


def test_an_interrupt_before_the_first_sample_leaves_a_row_without_time() -> None:
    (row,) = sweep(FakeExecutor(on_launch=raiser(KeyboardInterrupt())), [fake_spec()], [small()])
    assert row.status is RowStatus.INTERRUPTED
    assert row.time is None


def test_above_the_roof_is_flagged_and_not_clamped() -> None:
    workload = Workload.of(512, heads=8, head_dim=64)
    executor = FakeExecutor(time_s=lambda plan, index: 2.5e-7)
    (row,) = sweep(executor, [fake_spec()], [workload])
    as_row = row.as_row()
    assert as_row["pct_of_roof"] == pytest.approx(100 * as_row["roof_time_s"] / 2.5e-7)  # type: ignore[operator]
    assert as_row["pct_of_roof"] > 100  # type: ignore[operator]
    assert {"above-roof", "fits-l2"} <= codes(row)
    message = next(warning.message for warning in row.warnings if warning.kind.code == "above-roof")
    assert "fit the L2 cache" in message


def test_below_resolution_has_no_rates_and_says_so() -> None:
    (row,) = sweep(FakeExecutor(time_s=lambda plan, index: 0.0), [fake_spec()], [small(16)])
    assert row.status is RowStatus.OK
    assert row.flops_per_s is row.pct_of_roof is row.hbm_bytes_per_s is None
    assert "below-resolution" in codes(row)
    json.dumps(row.as_row(), allow_nan=False)


def test_a_falling_clock_is_warned_of_with_the_clocks() -> None:
    executor = FakeExecutor(sm_clock_hz=lambda index: 1_980_000_000 if index < 60 else 1_580_000_000)
    (row,) = sweep(executor, [fake_spec()], [small()])
    (message,) = (warning.message for warning in row.warnings if warning.kind.code == "clock-drift")
    assert "from 1980 to 1580 MHz" in message


def test_a_small_wander_of_the_clock_is_not_drift() -> None:
    executor = FakeExecutor(sm_clock_hz=lambda index: 1_980_000_000 - 15_000_000 * (index % 3))
    (row,) = sweep(executor, [fake_spec()], [small()])
    assert "clock-drift" not in codes(row)


def test_every_sample_throttled_still_has_figures_and_says_why() -> None:
    executor = FakeExecutor(throttle_reasons=lambda index: ("software power cap",))
    (row,) = sweep(executor, [fake_spec()], [small()])
    assert row.as_row()["throttled"] is True
    assert row.flops_per_s is not None
    (message,) = (warning.message for warning in row.warnings if warning.kind.code == "throttled")
    assert message == "every sample throttled: software power cap"


def test_clocks_that_are_not_reported_are_null() -> None:
    (row,) = sweep(FakeExecutor(sm_clock_hz=lambda index: None), [fake_spec()], [small()])
    assert row.as_row()["sm_clock_hz"] is None
    assert "clock-drift" not in codes(row)


def test_a_noisy_row_is_marked() -> None:
    executor = FakeExecutor(time_s=lambda plan, index: 1e-3 * (1 + 0.3 * (index % 2)))
    (row,) = sweep(executor, [fake_spec()], [small()])
    assert "noisy" in codes(row)


def test_an_unknown_roof_gives_no_percentage_but_a_reason() -> None:
    device = replace(find("H200"), hbm_bytes_per_s=None, memory_clock_hz=None, memory_bus_bits=None)
    (row,) = sweep(FakeExecutor(device=device), [fake_spec()], [small()])
    as_row = row.as_row()
    assert as_row["status"] == "ok"
    assert as_row["pct_of_roof"] is None
    assert "bandwidth" in str(as_row["reason"])


def test_peers_are_sampled_beside_the_kernel() -> None:
    executor = FakeExecutor(time_s=lambda plan, index: 2e-3)
    peer = FakeTimed(1e-3, clock=executor.clock)
    (row,) = sweep(executor, [fake_spec()], [small()], peers={"torch": opener(peer)})
    result = row.as_row()["peers"]["torch"]  # type: ignore[index]
    assert result["speedup"] == pytest.approx(0.5)
    assert result["flops_per_s"] == row.workload.flops / 1e-3
    assert result["reason"] is None
    assert len(result["time_s"]["samples"]) == len(row.time.samples)  # type: ignore[union-attr]


def test_a_peer_that_cannot_run_says_why_and_the_kernel_is_timed() -> None:
    def refuse(workload: Workload) -> Any:
        raise UnsupportedWorkload("torch has no kernel for this")

    def fault(index: int) -> None:
        raise KernelFault("the library crashed")

    executor = FakeExecutor()
    crashing = opener(FakeTimed(1e-3, clock=executor.clock, on_time=fault))
    (row,) = sweep(executor, [fake_spec()], [small()], peers={"torch": refuse, "cudnn": crashing})
    assert row.status is RowStatus.OK
    peers: Any = row.as_row()["peers"]
    assert peers["torch"] == {
        "time_s": None,
        "flops_per_s": None,
        "speedup": None,
        "reason": "torch has no kernel for this",
    }
    assert peers["cudnn"]["reason"] == "the library crashed"


def test_a_peer_may_bear_the_kernels_name() -> None:
    executor = FakeExecutor(time_s=lambda plan, index: 2e-3)
    peer = opener(FakeTimed(1e-3, clock=executor.clock))
    (row,) = sweep(executor, [fake_spec("fa2")], [small()], peers={"fa2": peer})
    assert row.time is not None
    assert row.time.median_s == 2e-3
    assert row.peers["fa2"].speedup == pytest.approx(0.5)


def test_rates_of_the_same_run_flag_the_rows_that_exceed_them() -> None:
    executor = FakeExecutor(time_s=lambda plan, index: 1e-3)
    clock = executor.clock
    probes = [
        RateProbe("copy", "byte/s", 10**6, opener(FakeTimed(1e-2, clock=clock))),
        RateProbe("matmul", "FLOP/s", 10**9, opener(FakeTimed(1e-2, clock=clock)), "fp16"),
    ]
    rates = measure_rates(probes, UntilSteady(), clock=clock)
    assert [rate.value for rate in rates] == [1e8, 1e11]
    fast, bf16 = sweep(
        executor, [fake_spec()], [small(512, heads=4), small(512, heads=4, dtype=Dtype.BF16)], rates=rates
    )
    assert {"above-copy-rate", "above-matmul-rate"} <= codes(fast)
    assert "above-matmul-rate" not in codes(bf16)
    assert "above-copy-rate" in codes(bf16)


def test_a_rate_that_cannot_be_measured_has_a_reason() -> None:
    def refuse() -> Any:
        raise EnvironmentProblem("PyTorch is not installed")

    executor = FakeExecutor()
    probes = [
        RateProbe("matmul", "FLOP/s", 1, refuse, "fp16"),
        RateProbe("copy", "byte/s", 1, opener(FakeTimed(0.0, clock=executor.clock))),
    ]
    matmul, copy = measure_rates(probes, UntilSteady(), clock=executor.clock)
    assert matmul == MeasuredRate("matmul", "FLOP/s", "fp16", None, None, "PyTorch is not installed")
    assert copy.value is None
    assert copy.reason == "below the timer's resolution"
    json.dumps([matmul.as_dict(), copy.as_dict()], allow_nan=False)


def test_progress_names_every_phase_of_every_row() -> None:
    seen: list[tuple[int, int, str]] = []
    sweep(
        FakeExecutor(),
        [fake_spec()],
        [small(64), small(65)],
        progress=lambda progress: seen.append((progress.index, progress.total, progress.phase)),
    )
    phases = ["compiling", "filling inputs", "verifying", "sampling"]
    assert seen == [(index, 2, phase) for index in (0, 1) for phase in phases]


def test_inputs_are_made_once_for_all_kernels_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.kernels import inputs

    made: list[object] = []
    original = inputs._normal
    monkeypatch.setattr(inputs, "_normal", lambda *a, **k: made.append(a) or original(*a, **k))
    inputs._inputs.cache_clear()
    sweep(FakeExecutor(), [fake_spec("a"), fake_spec("b"), fake_spec("c")], [small(71)])
    assert len(made) == 3  # q, k and v
