"""What a device can do per second for each unit, with where the figure comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype

Unit = Literal["hbm", "tensor", "exp", "fp32"]
Source = Literal["datasheet", "clock"]

UNITS: tuple[Unit, ...] = ("hbm", "tensor", "exp", "fp32")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that one unit does in a second: bytes (hbm), FLOPs (tensor, fp32) or exponentials (exp).

    ``source`` is what this figure really is, which differs from what was asked for where only the other is known;
    ``detail`` says how it came about.
    """

    unit: Unit
    per_s: float
    source: Source
    detail: str


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of one device for one element type, and why those that are missing are missing."""

    known: tuple[Ceiling, ...]
    missing: tuple[tuple[Unit, str], ...] = ()

    def get(self, unit: Unit) -> Ceiling | None:
        """The ceiling of that unit, or ``None`` where its rate is unknown."""
        return next((ceiling for ceiling in self.known if ceiling.unit == unit), None)

    def reason(self, unit: Unit) -> str | None:
        """Why that unit has no ceiling, or ``None`` where it has one."""
        return next((reason for name, reason in self.missing if name == unit), None)

    @property
    def knee_flops_per_byte(self) -> float | None:
        """The arithmetic intensity at which HBM and tensor cores take the same time."""
        hbm, tensor = self.get("hbm"), self.get("tensor")
        return None if hbm is None or tensor is None else tensor.per_s / hbm.per_s


def ceilings(device: DeviceSpec, dtype: Dtype, source: Source = "datasheet") -> Ceilings:
    """The ceilings of a device for one element type.

    ``datasheet`` takes the published memory and dense tensor rates; ``clock`` takes units × the maximum clock. The
    special-function and FP32 rates are units × the published clock of the vector units, or × the maximum clock.
    FP32 counts two FLOPs a lane and clock (multiply-add), so the ceiling holds for any mix. Where the asked-for
    figure is unknown and the other known, the other stands in and its ``source`` says so.
    """
    candidates = {
        "hbm": (_published_hbm(device), _clocked_hbm(device)),
        "tensor": (_published_tensor(device, dtype), _clocked_tensor(device, dtype)),
        "exp": _special(device),
        "fp32": _fp32(device),
    }
    known: list[Ceiling] = []
    missing: list[tuple[Unit, str]] = []
    for unit in UNITS:
        published, clocked = candidates[unit]
        first, second = (published, clocked) if source == "datasheet" else (clocked, published)
        chosen = first or second
        if chosen is None:
            missing.append((unit, _why_missing(device, dtype, unit)))
        else:
            known.append(chosen)
    return Ceilings(tuple(known), tuple(missing))


def knees(device: DeviceSpec, source: Source = "datasheet") -> dict[Dtype, float]:
    """FLOPs per HBM byte at which a kernel turns from memory-bound to tensor-bound, by element type, where known."""
    found = {dtype: ceilings(device, dtype, source).knee_flops_per_byte for dtype in Dtype}
    return {dtype: knee for dtype, knee in found.items() if knee is not None}


def _published_hbm(device: DeviceSpec) -> Ceiling | None:
    rate = device.hbm_bytes_per_s
    return None if rate is None else Ceiling("hbm", rate, "datasheet", f"published {rate / 1e9:g} GB/s")


def _clocked_hbm(device: DeviceSpec) -> Ceiling | None:
    rate = device.hbm_bytes_per_s_at_max_clock()
    if rate is None or device.memory_clock_hz is None:
        return None
    detail = f"2 × {device.memory_clock_hz / 1e6:g} MHz × {device.memory_bus_bits} bit / 8"
    return Ceiling("hbm", rate, "clock", detail)


def _published_tensor(device: DeviceSpec, dtype: Dtype) -> Ceiling | None:
    rate = device.tensor_flops_per_s.get(dtype)
    if rate is None:
        return None
    return Ceiling("tensor", rate, "datasheet", f"published {rate / 1e12:g} TFLOP/s, dense {dtype}, FP32 accumulation")


def _clocked_tensor(device: DeviceSpec, dtype: Dtype) -> Ceiling | None:
    rate = None if device.tensor_cap else device.tensor_flops_per_s_at_max_clock(dtype)
    if rate is None or device.architecture is None:
        return None
    per_clock = device.architecture.tensor_rate(dtype, half=device.half_tensor_rate)
    return Ceiling("tensor", rate, "clock", _units(device, f"{per_clock} FLOP", device.max_clock_hz))


def _special(device: DeviceSpec) -> tuple[Ceiling | None, Ceiling | None]:
    per_clock = None if device.architecture is None else device.architecture.exponentials_per_clock
    return _both_clocks(device, "exp", per_clock, "exponentials")


def _fp32(device: DeviceSpec) -> tuple[Ceiling | None, Ceiling | None]:
    per_clock = None if device.architecture is None else 2 * device.architecture.fp32_lanes
    return _both_clocks(device, "fp32", per_clock, "FLOP")


def _both_clocks(
    device: DeviceSpec, unit: Unit, per_clock: int | None, noun: str
) -> tuple[Ceiling | None, Ceiling | None]:
    def at(clock_hz: int | None, source: Source) -> Ceiling | None:
        if per_clock is None or clock_hz is None:
            return None
        rate = float(device.sm_count * per_clock * clock_hz)
        return Ceiling(unit, rate, source, _units(device, f"{per_clock} {noun}", clock_hz))

    return at(device.vector_clock_hz, "datasheet"), at(device.max_clock_hz, "clock")


def _units(device: DeviceSpec, per_clock: str, clock_hz: int | None) -> str:
    return f"{device.sm_count} SMs × {per_clock} a clock × {(clock_hz or 0) / 1e6:g} MHz"


def _why_missing(device: DeviceSpec, dtype: Dtype, unit: Unit) -> str:
    sm = f"sm_{device.compute_capability[0]}{device.compute_capability[1]}"
    if unit == "hbm":
        return f"{device.name}: no published bandwidth, and no memory clock and bus width to derive it from"
    if unit == "tensor" and dtype is Dtype.FP32:
        return "tensor cores have no full FP32 rate (TF32 rounds the inputs)"
    facts = device.architecture
    if unit == "tensor" and dtype is Dtype.BF16 and facts is not None and not facts.has_bf16:
        return f"the tensor cores of {sm} take no bf16 (sm_80 and later do)"
    if facts is None or (unit == "tensor" and facts.tensor_flops_per_clock is None):
        return f"no sourced {unit} rate for {sm}"
    if unit == "tensor" and device.half_tensor_rate is None and facts.has_half_rate_boards:
        return (
            f"{device.name}: tensor cores of {sm} run at full or half rate by board, and which is not known of this one"
        )
    return f"{device.name}: its SM clock is unknown"
