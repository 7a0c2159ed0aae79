"""Rates of the library's own copy and matrix product, measured in the run whose rows they bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from attnprof.bench.rows import MeasuredRate
from attnprof.bench.sampler import Sampling, StoppingRule
from attnprof.bench.statistics import TimeStats
from attnprof.kernels.executor import Timed
from attnprof.model.errors import AttnprofError, ContextLost


@dataclass(frozen=True, slots=True)
class RateProbe:
    """Something whose rate is to be measured.

    Attributes:
        name: ``copy`` or ``matmul``.
        unit: what ``work`` counts, a second.
        work: bytes (read and written) or FLOPs of one launch.
        open: allocates it, ready to be timed.
        dtype: the element type that the rate holds for; None for any.
    """

    name: str
    unit: Literal["byte/s", "FLOP/s"]
    work: int
    open: Callable[[], AbstractContextManager[Timed]]
    dtype: str | None = None


def measure_rates(
    probes: Sequence[RateProbe], rule: StoppingRule, *, clock: Callable[[], float]
) -> tuple[MeasuredRate, ...]:
    """Measure each probe; one that fails has a reason instead of a value.

    Probes run one after another: a copy and a matrix product at once would only heat each other.
    """
    return tuple(_measure(probe, rule, clock) for probe in probes)


def _measure(probe: RateProbe, rule: StoppingRule, clock: Callable[[], float]) -> MeasuredRate:
    try:
        with probe.open() as timed:
            sampling = Sampling({probe.name: timed}, rule, cold_l2=False, clock=clock)
            sampling.run()
    except ContextLost:
        raise
    except AttnprofError as error:
        return MeasuredRate(probe.name, probe.unit, probe.dtype, None, None, error.message)
    series = sampling.series[probe.name]
    stats = TimeStats.of(series.samples, warmup_launches=series.warmup_launches)
    if stats is None or not series.resolved:
        return MeasuredRate(probe.name, probe.unit, probe.dtype, None, stats, "below the timer's resolution")
    return MeasuredRate(probe.name, probe.unit, probe.dtype, rate_of(probe.work, stats.median_s), stats)


def rate_of(work: int, time_s: float | None) -> float | None:
    """Work a second, or None where the time is unknown or 0."""
    return work / time_s if time_s else None
