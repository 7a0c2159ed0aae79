"""Element formats that NumPy lacks: bf16, tf32 and the two fp8 formats, as bit patterns.

Sources: bf16 is the upper half of fp32; tf32 keeps 10 mantissa bits of fp32 (PTX ISA, "Alternate Floating-Point Data
Formats"); e4m3 and e5m2 are the OCP 8-bit formats (Micikevicius et al., arXiv:2209.05433).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_QUIET_BF16 = np.uint16(0x7FFF)


def bf16_values(bits: Any) -> Any:
    """fp32 values of bf16 bit patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(values: Any, mode: str = "rn") -> Any:
    """bf16 bit patterns of fp32 or fp64 values, rounded to nearest even or towards zero; NaN becomes 0x7FFF."""
    if values.dtype == np.float64:
        values = _odd_f32(values)
    bits = np.ascontiguousarray(values).view(np.uint32)
    if mode == "rz":
        rounded = (bits >> np.uint32(16)).astype(np.uint16)
    else:
        bias = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = ((bits + bias) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), _QUIET_BF16, rounded)


def _odd_f32(values: Any) -> Any:
    """fp64 to fp32 rounded to odd, so that a second rounding to fewer bits is the right one."""
    nearest = values.astype(np.float32)
    back = nearest.astype(np.float64)
    toward_zero = np.where(np.abs(back) > np.abs(values), np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (toward_zero.astype(np.float64) != values) & np.isfinite(values)
    bits = np.ascontiguousarray(toward_zero).view(np.uint32)
    return np.where(inexact, bits | np.uint32(1), bits).view(np.float32)


def tf32_values(bits: Any) -> Any:
    """What the tensor core sees of a tf32 register: fp32 with the lowest 13 bits dropped."""
    return (np.ascontiguousarray(bits).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def tf32_bits(values: Any, mode: str) -> Any:
    """tf32 patterns of fp32 values; ``rna`` rounds ties away from zero, ``rn`` to even, ``rz`` drops."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    special = ~np.isfinite(values)
    if mode == "rna":
        bits = np.where(special, bits, bits + np.uint32(0x1000))
    elif mode == "rn":
        bits = np.where(special, bits, bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1)))
    return bits & np.uint32(0xFFFFE000)


@cache
def _fp8_table(name: str) -> NDArray[np.float32]:
    """The 256 values of a format."""
    mantissa_bits, bias = (3, 7) if name == "e4m3" else (2, 15)
    codes = np.arange(256)
    exponent = (codes & 0x7F) >> mantissa_bits
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    values = np.where(
        exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, np.maximum(exponent, 1) - bias)
    )
    if name == "e4m3":
        values[(codes & 0x7F) == 0x7F] = np.nan
    else:
        values[(codes & 0x7F) == 0x7C] = np.inf
        values[(codes & 0x7F) > 0x7C] = np.nan
    return np.where(codes & 0x80, -values, values).astype(np.float32)


def fp8_values(bits: Any, name: str) -> Any:
    """fp32 values of ``e4m3`` or ``e5m2`` bit patterns."""
    return _fp8_table(name)[bits]


def fp8_bits(values: Any, name: str) -> Any:
    """Patterns of fp32 values, to nearest even, what is too large clamped to the largest finite (``.satfinite``)."""
    mantissa_bits, bias = (3, 7) if name == "e4m3" else (2, 15)
    largest = 448.0 if name == "e4m3" else 57344.0
    wide = np.asarray(values, np.float64)
    magnitude = np.minimum(np.abs(wide), largest)
    exponent = np.frexp(np.where(magnitude == 0, 1, magnitude))[1] - 1
    exponent = np.maximum(exponent, 1 - bias)
    step = np.ldexp(1.0, exponent - mantissa_bits)
    rounded = np.minimum(np.rint(magnitude / step) * step, largest)
    exponent = np.maximum(np.frexp(np.where(rounded == 0, 1, rounded))[1] - 1, 1 - bias)
    subnormal = rounded < np.ldexp(1.0, 1 - bias)
    scaled = np.ldexp(rounded, mantissa_bits - exponent)
    code = np.where(subnormal, scaled, scaled - (1 << mantissa_bits) + ((exponent + bias) << mantissa_bits))
    code = np.where(np.isnan(wide), 0x7F, code).astype(np.uint8)
    return code | np.where(np.signbit(wide) & ~np.isnan(wide), np.uint8(0x80), np.uint8(0))
