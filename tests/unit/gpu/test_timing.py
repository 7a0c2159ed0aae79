"""The stopwatch on a simulated device: one that works while the host enqueues, on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from attnprof.gpu.timing import Stopwatch

US = 1e-6


@dataclass
class Device:
    """Work is done in order, and never before the host has enqueued it."""

    flush_s: float = 40 * US
    mark_cost_s: float = 1 * US
    host_s: float = 0.0
    free_at_s: float = 0.0
    flushes: int = 0

    def put(self, duration_s: float, cost_s: float) -> float:
        self.host_s += cost_s
        self.free_at_s = max(self.free_at_s, self.host_s) + duration_s
        return self.free_at_s

    def begin(self) -> None:
        return None

    def mark(self) -> float:
        return self.put(0.0, self.mark_cost_s)

    def passed(self, mark: float) -> bool:
        return mark <= self.host_s

    def wait(self, mark: float) -> None:
        self.host_s = max(self.host_s, mark)

    def seconds(self, start: float, stop: float) -> float:
        return stop - start

    def flush(self) -> None:
        self.flushes += 1
        self.put(self.flush_s, 3 * US)


@dataclass
class Kernels:
    device: Device
    durations_s: tuple[float, ...]
    cost_s: float = 6 * US
    graphs: bool = True
    enqueued: int = 0
    captured: list[int] = field(default_factory=list)
    name: str = "k"

    @property
    def total_s(self) -> float:
        return sum(self.durations_s)

    def enqueue(self) -> None:
        self.enqueued += 1
        for duration_s in self.durations_s:
            self.device.put(duration_s, self.cost_s)

    def capture(self, launches: int):
        self.captured.append(launches)
        if not self.graphs:
            return None

        def replay() -> None:
            self.enqueued += launches
            self.device.put(launches * self.total_s, 8 * US)

        return replay


class FixedSensors:
    def sm_clock_hz(self) -> int:
        return 1_700_000_000

    def power_w(self) -> None:
        return None

    def temperature_c(self) -> float:
        return 55.0

    def throttle_reasons(self) -> tuple[str, ...]:
        return ("power cap",)


@pytest.mark.parametrize("durations_us", [(2.0,), (3.0, 1.0, 2.0), (5000.0,)])
@pytest.mark.parametrize("launches", [1, 7])
def test_cold_counts_neither_flush_nor_gap(durations_us: tuple[float, ...], launches: int) -> None:
    device = Device()
    kernels = Kernels(device, tuple(d * US for d in durations_us))
    sample = Stopwatch(kernels, device, None).sample(launches, cold_l2=True)
    assert sample.time_s == pytest.approx(kernels.total_s, rel=1e-6)
    assert sample.launches == launches
    assert kernels.enqueued == launches
    assert device.flushes >= launches + 2


def test_a_flush_too_short_to_hide_the_host_is_repeated() -> None:
    device = Device(flush_s=10 * US)
    kernels = Kernels(device, (2 * US, 2 * US, 2 * US), cost_s=20 * US)
    watch = Stopwatch(kernels, device, None)
    assert watch.sample(5, cold_l2=True).time_s == pytest.approx(6 * US, rel=1e-6)
    enqueued = kernels.enqueued
    assert enqueued > 5
    # What was learnt is kept: the next sample is right at once.
    assert watch.sample(5, cold_l2=True).time_s == pytest.approx(6 * US, rel=1e-6)
    assert kernels.enqueued == enqueued + 5


def test_a_host_that_is_hopelessly_slow_still_ends() -> None:
    device = Device(flush_s=1 * US)
    sample = Stopwatch(Kernels(device, (2 * US,), cost_s=1e-3), device, None).sample(2, cold_l2=True)
    assert sample.time_s > 0


@pytest.mark.parametrize(("launches", "batches"), [(1, {1}), (64, {64}), (150, {64, 22}), (128, {64})])
@pytest.mark.parametrize("durations_us", [(2.0, 1.0), (500.0,)])
def test_warm_replays_graphs_of_exactly_that_many(
    launches: int, batches: set[int], durations_us: tuple[float, ...]
) -> None:
    device = Device()
    kernels = Kernels(device, tuple(d * US for d in durations_us))
    watch = Stopwatch(kernels, device, None)
    for _ in range(2):
        before = kernels.enqueued
        sample = watch.sample(launches, cold_l2=False)
        assert sample.time_s == pytest.approx(kernels.total_s, rel=1e-6)
        assert sample.launches == launches
        # A long kernel is not run 64 times over just to warm up.
        assert launches < kernels.enqueued - before <= launches + (66 if kernels.total_s < 1e-4 else 2)
    assert batches <= set(kernels.captured)
    assert len(kernels.captured) <= 3
    assert device.flushes == 0


def test_warm_without_graphs_launches_one_by_one() -> None:
    device = Device()
    kernels = Kernels(device, (100 * US,), graphs=False)
    watch = Stopwatch(kernels, device, None)
    watch.sample(10, cold_l2=False)
    assert watch.sample(10, cold_l2=False).time_s == pytest.approx(100 * US, rel=1e-6)


def test_the_device_is_read_while_it_works() -> None:
    device = Device()

    class InFlight(FixedSensors):
        def sm_clock_hz(self) -> int:
            assert not device.passed(device.free_at_s)
            return super().sm_clock_hz()

    for cold in (True, False):
        sample = Stopwatch(Kernels(device, (1e-3,)), device, InFlight()).sample(3, cold_l2=cold)
        assert (sample.sm_clock_hz, sample.power_w, sample.temperature_c) == (1_700_000_000, None, 55.0)
        assert sample.throttle_reasons == ("power cap",)


def test_an_empty_kernel_gives_what_the_clock_says_and_ends() -> None:
    device = Device()
    watch = Stopwatch(Kernels(device, (0.0,)), device, None)
    assert watch.sample(3, cold_l2=True).time_s == 0.0
    # Nothing hides the host from a device that has nothing to do: a few µs, which the sampler marks as unresolved.
    assert 0.0 <= watch.sample(3, cold_l2=False).time_s < 10 * US


def test_no_launches_is_a_mistake_of_the_caller() -> None:
    device = Device()
    with pytest.raises(ValueError, match="at least 1"):
        Stopwatch(Kernels(device, (1.0,)), device, None).sample(0, cold_l2=True)
