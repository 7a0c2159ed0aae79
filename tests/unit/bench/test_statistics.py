from __future__ import annotations

import math
import statistics

import pytest

from attnprof.bench.statistics import DeviceReadings, TimeStats, relative_std
from attnprof.kernels.executor import Sample


def samples(*times: float) -> list[Sample]:
    return [Sample(time, 3) for time in times]


def test_median_min_and_mad_of_a_known_set() -> None:
    stats = TimeStats.of(samples(1.0, 2.0, 3.0, 4.0, 100.0))
    assert stats is not None
    assert (stats.median_s, stats.min_s, stats.mad_s) == (3.0, 1.0, 1.0)
    assert stats.relative_std == pytest.approx(statistics.stdev([1, 2, 3, 4, 100]) / 22)


def test_no_samples_give_no_statistics() -> None:
    assert TimeStats.of([]) is None


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0, 0.0]])
def test_relative_spread_is_unknown_rather_than_nan(values: list[float]) -> None:
    assert relative_std(values) is None


def test_every_raw_sample_is_in_the_row() -> None:
    stats = TimeStats.of(samples(2.0, 1.0, 5.0), warmup_launches=7)
    assert stats is not None
    as_dict = stats.as_dict()
    assert as_dict["samples"] == [2.0, 1.0, 5.0]
    assert as_dict["launches_per_sample"] == 3
    assert as_dict["warmup_launches"] == 7


def test_readings_that_a_device_does_not_report_are_none() -> None:
    readings = DeviceReadings.of(samples(1.0, 2.0))
    assert readings == DeviceReadings(None, None, None, None, None, 0, ())


def test_readings_keep_the_range_of_the_clock_and_every_reason_once() -> None:
    taken = [
        Sample(1.0, 1, 1_980_000_000, 600.0, 50.0, ("power cap",)),
        Sample(1.0, 1, 1_580_000_000, 700.0, 60.0, ("power cap", "thermal")),
        Sample(1.0, 1, 1_900_000_000, None, None, ()),
    ]
    readings = DeviceReadings.of(taken)
    assert readings.sm_clock_hz == 1_900_000_000
    assert (readings.min_sm_clock_hz, readings.max_sm_clock_hz) == (1_580_000_000, 1_980_000_000)
    assert readings.power_w == 650.0
    assert readings.throttled_samples == 2
    assert readings.throttle_reasons == ("power cap", "thermal")


def test_running_spread_of_a_series_equals_the_two_pass_one() -> None:
    from attnprof.bench.sampler import Series

    times = [1e-3 * (1 + 0.01 * math.sin(7 * i)) for i in range(100)]
    series = Series("x")
    for sample in samples(*times):
        series.add(sample)
    assert series.relative_std == pytest.approx(relative_std(times), rel=1e-9)
    assert series.accumulated_s == pytest.approx(3 * sum(times))
