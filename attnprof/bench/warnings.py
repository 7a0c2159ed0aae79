"""What could make a row's figures misleading, found from the finished row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnprof.bench.rows import BenchRow, MeasuredRate, RowWarning, WarningKind
from attnprof.bench.sampler import StopReason
from attnprof.model.roofline import Roofline

# A clock that wanders by more than this during one row makes its samples differ by about as much.
DRIFT = 0.05
# Relative standard deviation above which a median is worth doubting.
NOISY = 0.05


def row_warnings(
    row: BenchRow, roof: Roofline, *, resolved: bool, rates: Sequence[MeasuredRate]
) -> tuple[RowWarning, ...]:
    """Every warning that applies to a row, gravest first; none for a row that has no samples."""
    if row.time is None:
        return ()
    return tuple(_warnings(row, roof, resolved, rates))


def _warnings(row: BenchRow, roof: Roofline, resolved: bool, rates: Sequence[MeasuredRate]) -> Iterator[RowWarning]:
    if not resolved and row.time is not None:
        launches = row.time.samples[0].launches
        yield RowWarning(
            WarningKind.BELOW_RESOLUTION,
            f"below resolution: {launches} launches take too short a time to be resolved; no rates are given",
        )
    if row.pct_of_roof is not None and row.pct_of_roof > 100.0:
        yield RowWarning(WarningKind.ABOVE_ROOF, f"{row.pct_of_roof:.1f} % of the roof{_residency(roof)}")
    yield from _above_rates(row, roof, rates)
    if roof.l2_resident is not None:
        yield RowWarning(WarningKind.FITS_L2, f"HBM may see less than the ledger{_residency(roof)}")
    yield from _device(row)
    noise = row.time.relative_std if row.time else None
    if noise is not None and noise > NOISY and row.stop_reason is not StopReason.INTERRUPTED:
        yield RowWarning(WarningKind.NOISY, f"samples vary by {100 * noise:.1f} % (relative standard deviation)")


def _above_rates(row: BenchRow, roof: Roofline, rates: Sequence[MeasuredRate]) -> Iterator[RowWarning]:
    for rate in rates:
        if rate.value is None or rate.dtype not in (None, str(row.workload.dtype)):
            continue
        if rate.unit == "byte/s" and row.hbm_bytes_per_s is not None and row.hbm_bytes_per_s > rate.value:
            yield RowWarning(
                WarningKind.ABOVE_COPY_RATE,
                f"{row.hbm_bytes_per_s / 1e12:.2f} TB/s of ledger bytes, above the {rate.name} rate of "
                f"{rate.value / 1e12:.2f} TB/s{_residency(roof)}",
            )
        if rate.unit == "FLOP/s" and row.flops_per_s is not None and row.flops_per_s > rate.value:
            yield RowWarning(
                WarningKind.ABOVE_MATMUL_RATE,
                f"{row.flops_per_s / 1e12:.1f} TFLOP/s, above the {rate.name} rate of {rate.value / 1e12:.1f} TFLOP/s",
            )


def _residency(roof: Roofline) -> str:
    if roof.l2_resident is None:
        return ""
    what = "all tensors fit" if roof.l2_resident == "footprint" else "the intermediates fit"
    return f": {what} the L2 cache"


def _device(row: BenchRow) -> Iterator[RowWarning]:
    readings = row.readings
    if readings is None or row.time is None:
        return
    low, high = readings.min_sm_clock_hz, readings.max_sm_clock_hz
    if low is not None and high is not None and high - low > DRIFT * high:
        first, last = (
            next(s.sm_clock_hz for s in samples if s.sm_clock_hz is not None)
            for samples in (row.time.samples, row.time.samples[::-1])
        )
        yield RowWarning(
            WarningKind.CLOCK_DRIFT,
            f"the SM clock went from {first / 1e6:.0f} to {last / 1e6:.0f} MHz "
            f"(range {low / 1e6:.0f} to {high / 1e6:.0f})",
        )
    if readings.throttled_samples:
        taken = len(row.time.samples)
        count = (
            "every sample"
            if readings.throttled_samples == taken
            else f"{readings.throttled_samples} of {taken} samples"
        )
        yield RowWarning(WarningKind.THROTTLED, f"{count} throttled: {', '.join(readings.throttle_reasons)}")
