from __future__ import annotations

import math

import pytest

from attnprof.bench.sampler import RESOLVED_SAMPLE_S, FixedSamples, Sampling, StopReason, UntilSteady
from attnprof.model.errors import ContextLost, KernelFault
from tests.fakes import FakeClock, FakeTimed


def run(*timed: FakeTimed, rule: object = None, **options: object) -> Sampling:
    names = ["kernel", *(f"peer {i}" for i in range(1, len(timed)))]
    sampling = Sampling(dict(zip(names, timed, strict=True)), rule or UntilSteady(), clock=timed[0].clock, **options)  # type: ignore[arg-type]
    sampling.run()
    return sampling


def alternating(low_s: float, high_s: float):
    return lambda index: (low_s, high_s)[index % 2]


def test_a_steady_kernel_gets_ten_samples_and_half_a_second() -> None:
    timed = FakeTimed(1e-3)
    sampling = run(timed)
    series = sampling.series["kernel"]
    assert sampling.stop_reason is StopReason.STEADY
    assert len(series.samples) >= 10
    assert 0.5 <= series.accumulated_s < 0.52


def test_a_long_kernel_still_gets_ten_samples() -> None:
    sampling = run(FakeTimed(0.4))
    assert len(sampling.series["kernel"].samples) == 10
    assert sampling.series["kernel"].launches == 1


def test_short_kernels_are_batched_well_above_the_resolution() -> None:
    sampling = run(FakeTimed(2e-6))
    series = sampling.series["kernel"]
    assert series.resolved
    assert series.launches * 2e-6 >= 50 * 1e-6
    assert all(sample.launches == series.launches for sample in series.samples)


def test_a_timer_that_returns_zero_ends_and_is_marked() -> None:
    clock = FakeClock()
    sampling = run(FakeTimed(0.0, clock=clock))
    series = sampling.series["kernel"]
    assert not series.resolved
    assert len(series.samples) == 10
    assert series.relative_std is None


def test_a_timer_that_returns_zero_and_a_clock_that_stands_still_end_too() -> None:
    class Frozen(FakeClock):
        def advance(self, seconds: float) -> None:
            pass

    assert run(FakeTimed(0.0, clock=Frozen())).stop_reason is StopReason.STEADY


def test_the_first_slow_reading_does_not_fix_the_batch() -> None:
    timed = FakeTimed(lambda index: 0.1 if index == 0 else 1e-3)
    # The very first launch met cold clocks: one launch a sample, which is resolved all the same.
    assert run(timed).series["kernel"].launches * 1e-3 >= RESOLVED_SAMPLE_S


def test_noise_below_the_limit_is_steady_and_above_it_settles() -> None:
    assert run(FakeTimed(alternating(0.999e-3, 1.001e-3))).stop_reason is StopReason.STEADY
    noisy = run(FakeTimed(alternating(0.9e-3, 1.1e-3)))
    assert noisy.stop_reason is StopReason.NOISE_SETTLED
    assert len(noisy.series["kernel"].samples) > 64


def test_a_kernel_that_keeps_getting_slower_runs_into_the_time_limit() -> None:
    timed = FakeTimed(lambda index: 1e-3 * 1.05**index)
    sampling = run(timed, rule=UntilSteady(time_limit_s=3.0))
    assert sampling.stop_reason is StopReason.TIME_LIMIT
    assert timed.clock.now_s > 3.0


def test_the_sample_limit_ends_what_nothing_else_does() -> None:
    class Frozen(FakeClock):
        def advance(self, seconds: float) -> None:
            pass

    timed = FakeTimed(lambda index: 1e-3 * 1.05 ** min(index, 1000), clock=Frozen())
    assert run(timed, rule=UntilSteady(max_samples=50)).stop_reason is StopReason.SAMPLE_LIMIT
    assert run(FakeTimed(1e-3), rule=FixedSamples(3)).stop_reason is StopReason.SAMPLE_LIMIT


def test_a_short_kernel_between_flushes_does_not_wait_for_half_a_second_of_its_own_time() -> None:
    timed = FakeTimed(5e-6, overhead_s=100e-6)
    sampling = run(timed)
    assert sampling.stop_reason is StopReason.STEADY
    assert len(sampling.series["kernel"].samples) >= 10
    assert timed.clock.now_s < 2.5


def test_contestants_take_turns() -> None:
    order: list[str] = []
    clock = FakeClock()
    kernel = FakeTimed(5e-3, clock=clock, on_time=lambda _: order.append("kernel"))
    peer = FakeTimed(5e-3, clock=clock, on_time=lambda _: order.append("peer"))
    sampling = run(kernel, peer, rule=FixedSamples(5))
    assert order[2:] == ["kernel", "peer"] * 5
    assert {len(series.samples) for series in sampling.series.values()} == {5}


def test_cold_and_warm_reach_the_timer() -> None:
    for cold in (True, False):
        timed = FakeTimed(5e-3)
        run(timed, cold_l2=cold)
        assert {cold_l2 for _, cold_l2 in timed.calls} == {cold}


def test_a_peer_that_faults_drops_out_and_the_kernel_goes_on() -> None:
    def fault(index: int) -> None:
        if index == 4:
            raise KernelFault("the peer crashed")

    clock = FakeClock()
    sampling = run(FakeTimed(5e-3, clock=clock), FakeTimed(5e-3, clock=clock, on_time=fault))
    assert sampling.failed == {"peer 1": "the peer crashed"}
    assert sampling.stop_reason is StopReason.STEADY
    assert list(sampling.series) == ["kernel"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), StopReason.INTERRUPTED), (KernelFault("bad address"), StopReason.FAULT)],
)
def test_what_was_sampled_survives_an_interrupt_or_a_fault(error: BaseException, reason: StopReason) -> None:
    def stop(index: int) -> None:
        if index == 8:
            raise error

    timed = FakeTimed(5e-3, on_time=stop)
    sampling = Sampling({"kernel": timed}, UntilSteady(), clock=timed.clock)
    with pytest.raises(type(error)):
        sampling.run()
    assert len(sampling.series["kernel"].samples) == 7
    assert sampling.stop_reason is reason


def test_a_peer_that_loses_the_context_ends_the_loop() -> None:
    def lose(index: int) -> None:
        raise ContextLost("gone")

    clock = FakeClock()
    with pytest.raises(ContextLost):
        run(FakeTimed(5e-3, clock=clock), FakeTimed(5e-3, clock=clock, on_time=lose))


def test_no_sample_is_dropped() -> None:
    timed = FakeTimed(lambda index: 5e-3 * (10 if index == 20 else 1))
    sampling = run(timed)
    times = [sample.time_s for sample in sampling.series["kernel"].samples]
    assert math.isclose(max(times), 5e-2)
    assert len(times) == len(timed.calls) - 1
