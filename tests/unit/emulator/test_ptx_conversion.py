"""cvt in its usual pairs against NumPy and against exhaustive tables of the small formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnprof.emulator.formats import bf16_bits, fp8_bits, fp8_values, tf32_bits
from attnprof.model import rounding
from attnprof.model.dtypes import Dtype
from tests.unit.emulator.emulator_harness import Bench, apply_op

ALL_HALVES = np.arange(1 << 16, dtype="u4").astype("u2")


def wide_floats() -> np.ndarray:
    rng = np.random.default_rng(1)
    values = (rng.standard_normal(1024) * 10.0 ** rng.integers(-9, 12, 1024)).astype("f4")
    values[:8] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -2.5]
    return values


def test_half_to_float_and_back_is_the_identity(bench: Bench) -> None:
    halves = ALL_HALVES[:4096].view("f2")
    wide = apply_op(bench, "cvt.f32.f16 %d, %a;", halves, output="f4")
    assert np.array_equal(wide, halves.astype("f4"), equal_nan=True)
    with np.errstate(all="ignore"):
        values = ALL_HALVES[::16].view("f2").astype("f4") * np.float32(1.0003)
        expected = values.astype("f2")
    assert np.array_equal(apply_op(bench, "cvt.rn.f16.f32 %d, %a;", values, output="f2"), expected, equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), [("f16x2", Dtype.FP16), ("bf16x2", Dtype.BF16)])
def test_packed_conversion_puts_the_first_source_above(bench: Bench, name: str, dtype: Dtype) -> None:
    a, b = wide_floats(), wide_floats()[::-1].copy()
    packed = apply_op(bench, f"cvt.rn.{name}.f32 %d, %a, %b;", a, b, output="u4")
    with np.errstate(all="ignore"):
        high, low = rounding.encode(a, dtype), rounding.encode(b, dtype)
    decoded = [
        rounding.decode(v.view(low.dtype), dtype) for v in ((packed & 0xFFFF).astype("u2"), (packed >> 16).astype("u2"))
    ]
    assert np.array_equal(decoded[0], rounding.decode(low, dtype), equal_nan=True)
    assert np.array_equal(decoded[1], rounding.decode(high, dtype), equal_nan=True)


@pytest.mark.parametrize(
    ("mode", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u8", "s16"])
def test_float_to_integer_rounds_and_clamps(bench: Bench, mode: str, function: Any, to: str) -> None:
    values = wide_floats()
    bits = int(to[1:])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if to[0] == "s" else (0, 2**bits - 1)
    expected = [0 if np.isnan(v) else int(min(max(function(v), low), high)) for v in values.astype("f8")]
    output = f"{'i' if to[0] == 's' else 'u'}{max(bits, 16) // 8}"
    with np.errstate(all="ignore"):
        result = apply_op(bench, f"cvt.{mode}.{to}.f32 %d, %a;", values, output=output)
    assert result.tolist() == expected


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64", "s16"])
def test_integer_to_float(bench: Bench, kind: str) -> None:
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    limits = np.iinfo(dtype)
    values = np.random.default_rng(2).integers(limits.min, limits.max, 256, dtype=dtype, endpoint=True)
    assert np.array_equal(apply_op(bench, f"cvt.rn.f32.{kind} %d, %a;", values, output="f4"), values.astype("f4"))
    assert np.array_equal(apply_op(bench, f"cvt.rn.f64.{kind} %d, %a;", values, output="f8"), values.astype("f8"))
    down = apply_op(bench, f"cvt.rm.f32.{kind} %d, %a;", values, output="f4")
    assert all(int(d) <= int(v) for d, v in zip(down, values, strict=True))


@pytest.mark.parametrize(
    ("body", "source", "output", "expected"),
    [
        ("cvt.s64.s32 %d, %a;", "i4", "i8", lambda v: v.astype("i8")),
        ("cvt.u64.u32 %d, %a;", "u4", "u8", lambda v: v.astype("u8")),
        ("cvt.u32.u64 %d, %a;", "u8", "u4", lambda v: v.astype("u4")),
        ("cvt.u16.u32 %d, %a;", "u4", "u2", lambda v: v.astype("u2")),
        ("cvt.s32.s16 %d, %a;", "i2", "i4", lambda v: v.astype("i4")),
        ("cvt.u32.u8 %d, %a;", "u4", "u4", lambda v: v & 255),
        ("cvt.s32.s8 %d, %a;", "u4", "i4", lambda v: v.astype("i1").astype("i4")),
        ("cvt.sat.u8.s32 %d, %a;", "i4", "u4", lambda v: np.clip(v, 0, 255)),
        ("cvt.sat.s16.s32 %d, %a;", "i4", "i4", lambda v: np.clip(v, -32768, 32767)),
    ],
)
def test_between_integers(bench: Bench, body: str, source: str, output: str, expected: Any) -> None:
    limits = np.iinfo(source)
    values = np.random.default_rng(3).integers(limits.min, limits.max, 256, dtype=source, endpoint=True)
    values[:64] = values[:64] >> (values.itemsize * 8 - 9)
    assert np.array_equal(apply_op(bench, body, values, output=output), expected(values).astype(output))


def test_between_float_widths(bench: Bench) -> None:
    values = wide_floats()
    assert np.array_equal(
        apply_op(bench, "cvt.f64.f32 %d, %a;", values, output="f8"), values.astype("f8"), equal_nan=True
    )
    wide = values.astype("f8") * 1.00000003
    with np.errstate(all="ignore"):
        expected = wide.astype("f4")
    assert np.array_equal(apply_op(bench, "cvt.rn.f32.f64 %d, %a;", wide, output="f4"), expected, equal_nan=True)
    assert np.array_equal(
        apply_op(bench, "cvt.rmi.f32.f32 %d, %a;", values, output="f4"), np.floor(values), equal_nan=True
    )
    clamped = apply_op(bench, "cvt.sat.f32.f32 %d, %a;", values, output="f4")
    assert np.array_equal(clamped, np.where(np.isnan(values), 0, np.clip(values, 0, 1)))


def test_rounding_towards_zero_to_half(bench: Bench) -> None:
    values = np.random.default_rng(4).standard_normal(256).astype("f4")
    result = apply_op(bench, "cvt.rz.f16.f32 %d, %a;", values, output="f2").astype("f4")
    assert np.all(np.abs(result) <= np.abs(values))
    assert np.all(np.abs(result - values) < 2.0**-10 * np.abs(values) + 2.0**-24)


def test_tf32_rounds_ties_away(bench: Bench) -> None:
    values = np.array([1 + 2.0**-11, 1 + 2.0**-10, -1 - 2.0**-11, 1.5] * 8, "f4")
    result = apply_op(bench, "cvt.rna.tf32.f32 %d, %a;", values, output="f4")
    assert np.array_equal(result, np.array([1 + 2.0**-10, 1 + 2.0**-10, -1 - 2.0**-10, 1.5] * 8, "f4"))
    assert np.array_equal(tf32_bits(values, "rn").view("f4")[:2], np.array([1, 1 + 2.0**-10], "f4"))


def test_bf16_formats_agree_with_the_models() -> None:
    values = np.random.default_rng(5).standard_normal(4096).astype("f4")
    assert np.array_equal(bf16_bits(values), rounding.encode(values, Dtype.BF16))
    wide = np.random.default_rng(6).standard_normal(4096)
    assert np.array_equal(bf16_bits(wide), rounding.encode(wide, Dtype.BF16))


@pytest.mark.parametrize(("name", "largest"), [("e4m3", 448.0), ("e5m2", 57344.0)])
def test_fp8_formats(name: str, largest: float) -> None:
    codes = np.arange(256).astype("u1")
    values = fp8_values(codes, name)
    finite = np.isfinite(values)
    assert values[finite].max() == largest
    assert np.array_equal(fp8_bits(values[finite], name), codes[finite])
    # Between two neighbours the nearer one wins, and even at the middle.
    positive = np.sort(values[finite & (codes < 128)])
    middle = ((positive[:-1].astype("f8") + positive[1:]) / 2)[1:]
    nearest = fp8_values(fp8_bits(middle, name), name)
    assert np.all(np.isin(nearest, positive))
    assert np.all(fp8_bits(middle, name) % 2 == 0)
    assert fp8_values(fp8_bits(np.array([1e9, -1e9]), name), name).tolist() == [largest, -largest]


def test_fp8_conversions(bench: Bench) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(256).astype("f4") * 20 for _ in range(2))
    packed = apply_op(bench, "cvt.rn.satfinite.e4m3x2.f32 %d, %a, %b;", a, b, output="u2")
    assert np.array_equal(packed & 255, fp8_bits(b, "e4m3"))
    assert np.array_equal(packed >> 8, fp8_bits(a, "e4m3"))
    halves = apply_op(bench, "cvt.rn.f16x2.e4m3x2 %d, %a;", packed, output="u4").view("f2")
    assert np.array_equal(halves.reshape(-1, 2)[:, 0], fp8_values(fp8_bits(b, "e4m3"), "e4m3").astype("f2"))
