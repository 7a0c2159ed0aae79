"""The sampling loop: how many launches make a sample, who is sampled when, and when to stop.

Every contestant (a kernel and its peers) is sampled once a round, so that all of them meet the same clocks and
temperatures. A stopping rule, not a count, ends the loop; no sample is dropped.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import mean
from typing import Protocol

from attnprof.kernels.executor import Sample, Timed
from attnprof.model.errors import ContextLost, KernelFault

# CUDA events resolve about 0.5 µs (cudaEventElapsedTime in the CUDA Runtime API reference); a sample of fewer than
# 50 µs would be more than 1 % resolution.
RESOLVED_SAMPLE_S = 50e-6


class StopReason(StrEnum):
    """Why sampling ended."""

    STEADY = "steady"
    NOISE_SETTLED = "noise settled"
    TIME_LIMIT = "time limit"
    SAMPLE_LIMIT = "sample limit"
    INTERRUPTED = "interrupted"
    FAULT = "fault"


class Series:
    """The samples of one contestant, with running sums so that a stopping rule costs nothing.

    Args:
        name: the contestant.
        launches: runs of the plan in each sample.
        resolved: whether a sample of that many launches is well above the timer's resolution.
        warmup_launches: launches spent on finding that out.
    """

    TRAIL = 64

    def __init__(self, name: str, launches: int = 1, *, resolved: bool = True, warmup_launches: int = 0) -> None:
        self.name = name
        self.launches = launches
        self.resolved = resolved
        self.warmup_launches = warmup_launches
        self.samples: list[Sample] = []
        self.accumulated_s = 0.0
        self.noise_trail: deque[float] = deque(maxlen=self.TRAIL)
        self._mean = 0.0
        self._sum_of_squares = 0.0

    def add(self, sample: Sample) -> None:
        """Take a sample in (Welford's running variance)."""
        self.samples.append(sample)
        self.accumulated_s += sample.time_s * sample.launches
        delta = sample.time_s - self._mean
        self._mean += delta / len(self.samples)
        self._sum_of_squares += delta * (sample.time_s - self._mean)
        noise = self.relative_std
        if noise is not None:
            self.noise_trail.append(noise)

    @property
    def relative_std(self) -> float | None:
        """Standard deviation over mean so far; None before the second sample or when the mean is 0."""
        n = len(self.samples)
        if n < 2 or self._mean <= 0.0:
            return None
        return math.sqrt(max(self._sum_of_squares, 0.0) / (n - 1)) / self._mean


class StoppingRule(Protocol):
    """When to stop. Asked after each round."""

    def stop(self, series: Sequence[Series], elapsed_s: float) -> StopReason | None:
        """Why sampling ends now, or None to go on. ``elapsed_s`` is host time since the first sample."""
        ...


@dataclass(frozen=True, slots=True)
class UntilSteady:
    """NVBench's standard-deviation criterion, with limits that always end it.

    Every contestant needs ``min_samples`` samples and ``min_time_s`` of accumulated time, then a relative standard
    deviation under ``max_relative_std``; a contestant that is noisier by nature is done once its noise has settled:
    its last 64 values differ by less than ``settled`` of the present one (both from NVBench, stdrel criterion). Short
    kernels between cache flushes accumulate slowly: ``patience`` times ``min_time_s`` of host time will do instead.
    """

    min_samples: int = 10
    min_time_s: float = 0.5
    max_relative_std: float = 0.005
    settled: float = 0.05
    patience: float = 4.0
    time_limit_s: float = 15.0
    max_samples: int = 10_000

    def stop(self, series: Sequence[Series], elapsed_s: float) -> StopReason | None:
        """As `StoppingRule.stop`."""
        states = [self._state(one, elapsed_s) for one in series]
        if all(state is not None for state in states):
            return StopReason.NOISE_SETTLED if StopReason.NOISE_SETTLED in states else StopReason.STEADY
        if elapsed_s >= self.time_limit_s:
            return StopReason.TIME_LIMIT
        if all(len(one.samples) >= self.max_samples for one in series):
            return StopReason.SAMPLE_LIMIT
        return None

    def _state(self, series: Series, elapsed_s: float) -> StopReason | None:
        if len(series.samples) < self.min_samples:
            return None
        if not series.resolved:
            # Its figures are marked as below the resolution: more samples would not make them better.
            return StopReason.STEADY
        if series.accumulated_s < self.min_time_s and elapsed_s < self.patience * self.min_time_s:
            return None
        noise = series.relative_std
        if noise is None:
            return None
        if noise <= self.max_relative_std:
            return StopReason.STEADY
        trail = series.noise_trail
        if len(trail) == trail.maxlen and _rms_distance(trail, noise) < self.settled * noise:
            return StopReason.NOISE_SETTLED
        return None


@dataclass(frozen=True, slots=True)
class FixedSamples:
    """A fixed number of samples of each contestant."""

    samples: int

    def stop(self, series: Sequence[Series], elapsed_s: float) -> StopReason | None:
        """As `StoppingRule.stop`; the elapsed time plays no part."""
        del elapsed_s
        return StopReason.SAMPLE_LIMIT if all(len(one.samples) >= self.samples for one in series) else None


@dataclass
class Sampling:
    """One sampling loop over named contestants; the first is the kernel, the others are its peers.

    The series stay readable after an interrupt or a fault, so nothing that was measured is lost.

    Args:
        contestants: what to sample, by name.
        rule: when to stop.
        cold_l2: flush the L2 cache before each launch.
        target_sample_s: short kernels are launched several times a sample until a sample lasts this long.
        max_launches: the most launches a sample may hold.
        clock: host time in seconds.
    """

    contestants: Mapping[str, Timed]
    rule: StoppingRule
    cold_l2: bool = True
    target_sample_s: float = 5e-3
    max_launches: int = 2000
    clock: Callable[[], float] = time.monotonic
    series: dict[str, Series] = field(default_factory=dict, init=False)
    failed: dict[str, str] = field(default_factory=dict, init=False)
    stop_reason: StopReason | None = field(default=None, init=False)

    def run(self) -> None:
        """Sample until the rule says stop.

        A peer that faults drops out and is named in ``failed``, as is whoever takes the context with it.

        Raises:
            KernelFault: the kernel itself faulted, or a peer took the context with it.
            KeyboardInterrupt: as is, with the series so far kept.
        """
        try:
            for name in self.contestants:
                self._guarded(self._batch, name)
            start_s = self.clock()
            while self.stop_reason is None:
                for name in tuple(self.series):
                    self._guarded(self._sample, name)
                self.stop_reason = self.rule.stop(tuple(self.series.values()), self.clock() - start_s)
        except KeyboardInterrupt:
            self.stop_reason = StopReason.INTERRUPTED
            raise
        except KernelFault:
            self.stop_reason = StopReason.FAULT
            raise

    def _guarded(self, step: Callable[[str], None], name: str) -> None:
        try:
            step(name)
        except ContextLost as lost:
            self.failed[name] = lost.message
            raise
        except KernelFault as fault:
            if name == next(iter(self.contestants)):
                raise
            self.series.pop(name, None)
            self.failed[name] = fault.message

    def _sample(self, name: str) -> None:
        series = self.series[name]
        series.add(self.contestants[name].time(series.launches, cold_l2=self.cold_l2))

    def _batch(self, name: str) -> None:
        """Raise the launches per sample until a sample nears the target or ``max_launches`` is hit."""
        launches, spent = 1, 0
        while True:
            sample_s = self.contestants[name].time(launches, cold_l2=self.cold_l2).time_s * launches
            spent += launches
            if sample_s >= 0.8 * self.target_sample_s or launches >= self.max_launches:
                break
            # A reading near the resolution says little of the time: grow by ten rather than trust it.
            trusted = sample_s >= RESOLVED_SAMPLE_S
            wanted = math.ceil(launches * self.target_sample_s / sample_s) if trusted else 10 * launches
            launches = min(max(wanted, launches + 1), self.max_launches)
        self.series[name] = Series(name, launches, resolved=sample_s >= RESOLVED_SAMPLE_S, warmup_launches=spent)


def _rms_distance(values: Iterable[float], reference: float) -> float:
    return math.sqrt(mean((value - reference) ** 2 for value in values))
