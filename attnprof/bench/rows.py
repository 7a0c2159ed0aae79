"""The records that a benchmark yields: one row a kernel and workload, with its warnings, peers and verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Literal

from attnprof.bench.sampler import StopReason
from attnprof.bench.statistics import DeviceReadings, TimeStats
from attnprof.kernels.verify import Verification
from attnprof.model.workload import Workload

L2Mode = Literal["cold", "warm"]


class RowStatus(StrEnum):
    """What became of a row. Anything but ``OK`` carries a reason."""

    OK = "ok"
    SKIPPED = "skipped"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class WarningKind(Enum):
    """What can make a figure misleading: a stable code, and what to do about it."""

    ABOVE_ROOF = ("above-roof", "try --ceilings clock, or check that the demand counts what the kernel really does")
    FITS_L2 = ("fits-l2", "lengthen the sequence or the batch until the tensors exceed L2 to measure HBM")
    ABOVE_COPY_RATE = ("above-copy-rate", "the traffic is predicted, not counted: part of it stays in cache")
    ABOVE_MATMUL_RATE = (
        "above-matmul-rate",
        "measure again: the library's matrix product ran below its best, at a lower clock perhaps",
    )
    BELOW_RESOLUTION = ("below-resolution", "use a longer sequence, more heads or a larger batch")
    CLOCK_DRIFT = ("clock-drift", "let the GPU cool, or lock its clocks: nvidia-smi --lock-gpu-clocks")
    THROTTLED = ("throttled", "raise the power limit, cool the GPU, or compare only rows of one interleaved run")
    NOISY = ("noisy", "close other GPU programs, or raise the time limit")

    def __init__(self, code: str, advice: str) -> None:
        self.code = code
        self.advice = advice


@dataclass(frozen=True, slots=True)
class RowWarning:
    """A warning about one row: its kind, and what was seen."""

    kind: WarningKind
    message: str

    def as_dict(self) -> dict[str, object]:
        """Code, message and advice."""
        return {"code": self.kind.code, "message": self.message, "advice": self.kind.advice}


@dataclass(frozen=True, slots=True)
class PeerResult:
    """A library's time on the same workload, sampled in the same loop.

    ``speedup`` is the peer's median over the kernel's: above 1 the kernel is faster. ``reason`` says why there is no
    time.
    """

    name: str
    time: TimeStats | None
    flops_per_s: float | None
    speedup: float | None
    reason: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The peer's entry under ``peers``."""
        return {
            "time_s": self.time.as_dict() if self.time else None,
            "flops_per_s": self.flops_per_s,
            "speedup": self.speedup,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One kernel on one workload: the prediction, the measurement, and the gap.

    Attributes:
        kernel: the kernel's name.
        workload: what was computed.
        status: what became of it.
        reason: why it is not ``ok``, in one line; None when it is.
        prediction: the model's row, with the keys of ``attnprof roofline --json``.
        verification: how far the output is from the float64 reference; None when it did not come to that.
        time: the samples, in seconds a launch; None when none was taken.
        l2: whether each launch found a flushed (``cold``) or a filled (``warm``) L2 cache.
        stop_reason: why sampling ended.
        flops_per_s: the workload's matrix FLOPs over the median time.
        hbm_bytes_per_s: the ledger's bytes over the median time: predicted traffic, measured time.
        pct_of_roof: roof time over median time, in percent; not clamped.
        readings: clocks, power, temperature and throttling while the samples ran.
        compile_time_s: time spent compiling all of the plan's builds; 0.0 when the cache had every one.
        compile_cached: whether the cache had every one.
        peers: other implementations, sampled in the same loop.
        warnings: what could make a figure misleading.
        context_lost: nothing more can run in this process.
    """

    kernel: str
    workload: Workload
    status: RowStatus
    reason: str | None
    prediction: Mapping[str, object]
    arch: str
    l2: L2Mode
    verification: Verification | None = None
    time: TimeStats | None = None
    stop_reason: StopReason | None = None
    flops_per_s: float | None = None
    hbm_bytes_per_s: float | None = None
    pct_of_roof: float | None = None
    readings: DeviceReadings | None = None
    compile_time_s: float | None = None
    compile_cached: bool | None = None
    peers: Mapping[str, PeerResult] = field(default_factory=dict)
    warnings: tuple[RowWarning, ...] = ()
    context_lost: bool = False

    def as_row(self) -> dict[str, object]:
        """The row as plain values for the printers and for strict JSON: SI units, None for what is unknown."""
        readings, verification = self.readings, self.verification
        return {
            **self.prediction,
            "kernel": self.kernel,
            "status": str(self.status),
            # A row that is ok may still have no roof, and says why.
            "reason": self.reason or self.prediction.get("reason"),
            "arch": self.arch,
            "time_s": self.time.as_dict() if self.time else None,
            "l2": self.l2,
            "stop_reason": str(self.stop_reason) if self.stop_reason else None,
            "flops_per_s": self.flops_per_s,
            "hbm_bytes_per_s": self.hbm_bytes_per_s,
            "pct_of_roof": self.pct_of_roof,
            "sm_clock_hz": readings.sm_clock_hz if readings else None,
            "min_sm_clock_hz": readings.min_sm_clock_hz if readings else None,
            "max_sm_clock_hz": readings.max_sm_clock_hz if readings else None,
            "power_w": readings.power_w if readings else None,
            "temperature_c": readings.temperature_c if readings else None,
            "throttled": bool(readings.throttled_samples) if readings else None,
            "throttled_samples": readings.throttled_samples if readings else None,
            "throttle_reasons": list(readings.throttle_reasons) if readings else [],
            "compile_time_s": self.compile_time_s,
            "compile_cached": self.compile_cached,
            "verified": verification.passed if verification else None,
            "max_rel_error": verification.rel_error if verification else None,
            "max_rel_error_limit": verification.limit if verification else None,
            "rows_verified": verification.rows_checked if verification else None,
            "rows_total": verification.rows_total if verification else None,
            "peers": {name: peer.as_dict() for name, peer in self.peers.items()},
            "warnings": [warning.as_dict() for warning in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A rate measured in the same run: a device copy in byte/s (read + write), a matrix product in FLOP/s."""

    name: str
    unit: Literal["byte/s", "FLOP/s"]
    dtype: str | None
    value: float | None
    time: TimeStats | None
    reason: str | None = None

    @property
    def sm_clock_hz(self) -> int | None:
        """The median SM clock while it ran; None where that is not known."""
        return DeviceReadings.of(self.time.samples).sm_clock_hz if self.time else None

    def as_dict(self) -> dict[str, object]:
        """The rate for the run's header; ``value`` is None with a reason when it could not be measured."""
        return {
            "name": self.name,
            "unit": self.unit,
            "dtype": self.dtype,
            "value": self.value,
            "sm_clock_hz": self.sm_clock_hz,
            "time_s": self.time.as_dict() if self.time else None,
            "reason": self.reason,
        }
