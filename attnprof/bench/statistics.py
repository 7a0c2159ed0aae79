"""What a set of timed samples says: median, minimum, spread, clocks and throttling, with the raw samples kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from attnprof.kernels.executor import Sample


@dataclass(frozen=True, slots=True)
class TimeStats:
    """Times of one launch of the whole plan, in seconds, over every sample that was taken.

    Attributes:
        median_s: the figure to report; one slow sample does not move it.
        min_s: the fastest sample.
        mad_s: median absolute deviation from the median, unscaled.
        relative_std: standard deviation (n − 1) over mean; None for one sample or a mean of 0.
        samples: every sample, in the order taken.
        warmup_launches: launches before the first sample, which found how many launches a sample needs.
    """

    median_s: float
    min_s: float
    mad_s: float
    relative_std: float | None
    samples: tuple[Sample, ...]
    warmup_launches: int = 0

    @classmethod
    def of(cls, samples: Sequence[Sample], *, warmup_launches: int = 0) -> TimeStats | None:
        """The statistics of the samples, or None when there are none."""
        if not samples:
            return None
        times = [sample.time_s for sample in samples]
        middle = median(times)
        return cls(
            median_s=middle,
            min_s=min(times),
            mad_s=median(abs(time - middle) for time in times),
            relative_std=relative_std(times),
            samples=tuple(samples),
            warmup_launches=warmup_launches,
        )

    def as_dict(self) -> dict[str, object]:
        """The ``time_s`` object of a bench row: seconds throughout."""
        return {
            "median": self.median_s,
            "min": self.min_s,
            "mad": self.mad_s,
            "relative_std": self.relative_std,
            "samples": [sample.time_s for sample in self.samples],
            "launches_per_sample": self.samples[0].launches,
            "warmup_launches": self.warmup_launches,
        }


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """What the device reported while the samples ran; None where it reports nothing.

    ``throttled_samples`` counts samples with at least one throttle reason; ``throttle_reasons`` are all of them, in
    order of first appearance.
    """

    sm_clock_hz: int | None
    min_sm_clock_hz: int | None
    max_sm_clock_hz: int | None
    power_w: float | None
    temperature_c: float | None
    throttled_samples: int
    throttle_reasons: tuple[str, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> DeviceReadings:
        """Median clock, power and temperature, the range of the clock, and every throttle reason."""
        clocks = [sample.sm_clock_hz for sample in samples if sample.sm_clock_hz is not None]
        powers = [sample.power_w for sample in samples if sample.power_w is not None]
        temperatures = [sample.temperature_c for sample in samples if sample.temperature_c is not None]
        return cls(
            sm_clock_hz=round(median(clocks)) if clocks else None,
            min_sm_clock_hz=min(clocks, default=None),
            max_sm_clock_hz=max(clocks, default=None),
            power_w=median(powers) if powers else None,
            temperature_c=median(temperatures) if temperatures else None,
            throttled_samples=sum(1 for sample in samples if sample.throttle_reasons),
            throttle_reasons=tuple(dict.fromkeys(reason for sample in samples for reason in sample.throttle_reasons)),
        )


def relative_std(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n − 1) over the mean; None when fewer than two values or a mean of 0."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    if mean <= 0.0:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) / mean
