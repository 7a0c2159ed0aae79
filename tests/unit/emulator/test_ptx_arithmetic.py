"""Every arithmetic instruction against NumPy, one lane an element."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attnprof.model import rounding
from attnprof.model.dtypes import Dtype
from tests.unit.emulator.emulator_harness import Bench, apply_op

N = 256


def ints(kind: str, seed: int = 1) -> np.ndarray:
    """Random integers with the corners among them."""
    dtype = np.dtype(kind)
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    values = rng.integers(limits.min, limits.max, N, dtype=dtype, endpoint=True)
    corners = [limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1, 2, 31]
    values[: len(corners)] = corners
    values[32:64] = rng.integers(0, 70, 32).astype(dtype)
    return values


def floats(kind: str, seed: int = 1) -> np.ndarray:
    """Random floats with zeros, infinities, NaN and subnormals among them."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(N) * 4.0 ** rng.integers(-4, 5, N)).astype(kind)
    corners = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5], kind)
    at = rng.permutation(N)[: corners.size]
    values[at] = corners
    return values


def same(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Equal, with NaN equal to NaN."""
    expected = np.asarray(expected).astype(actual.dtype) if actual.dtype.kind == "f" else np.asarray(expected)
    return bool(np.array_equal(actual, expected, equal_nan=actual.dtype.kind == "f"))


def trunc_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def wrap(value: int, dtype: Any) -> int:
    bits = np.dtype(dtype).itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if np.dtype(dtype).kind == "i" and value >> (bits - 1) else value


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("op", INTEGER)
@pytest.mark.parametrize("kind", ["u2", "i2", "u4", "i4", "u8", "i8"])
def test_integer_arithmetic(bench: Bench, op: str, kind: str) -> None:
    a, b = ints(kind, 1), ints(kind, 2)
    name = f"{'s' if kind[0] == 'i' else 'u'}{8 * int(kind[1])}"
    expected = [wrap(INTEGER[op](int(x), int(y)), kind) for x, y in zip(a, b, strict=True)]
    assert same(apply_op(bench, f"{op}.{name} %d, %a, %b;", a, b, output=kind), np.array(expected, kind))


@pytest.mark.parametrize("kind", ["u2", "i2", "u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("op", ["div", "rem"])
def test_division_truncates(bench: Bench, op: str, kind: str) -> None:
    a, b = ints(kind, 1), ints(kind, 2)
    b[b == 0] = 3
    name = f"{'s' if kind[0] == 'i' else 'u'}{8 * int(kind[1])}"
    expected = [
        wrap(q if op == "div" else int(x) - q * int(y), kind)
        for x, y in zip(a, b, strict=True)
        for q in (trunc_div(int(x), int(y)),)
    ]
    assert same(apply_op(bench, f"{op}.{name} %d, %a, %b;", a, b, output=kind), np.array(expected, kind))


@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8", "u2", "i2"])
def test_multiply_high(bench: Bench, kind: str) -> None:
    a, b = ints(kind, 1), ints(kind, 2)
    bits = 8 * int(kind[1])
    name = f"{'s' if kind[0] == 'i' else 'u'}{bits}"
    expected = [wrap((int(x) * int(y)) >> bits, kind) for x, y in zip(a, b, strict=True)]
    assert same(apply_op(bench, f"mul.hi.{name} %d, %a, %b;", a, b, output=kind), np.array(expected, kind))


@pytest.mark.parametrize(("kind", "wide"), [("u4", "u8"), ("i4", "i8"), ("u2", "u4"), ("i2", "i4")])
def test_multiply_wide_and_add(bench: Bench, kind: str, wide: str) -> None:
    a, b, c = ints(kind, 1), ints(kind, 2), ints(wide, 3)
    name = f"{'s' if kind[0] == 'i' else 'u'}{8 * int(kind[1])}"
    expected = [wrap(int(x) * int(y) + int(z), wide) for x, y, z in zip(a, b, c, strict=True)]
    assert same(apply_op(bench, f"mad.wide.{name} %d, %a, %b, %c;", a, b, c, output=wide), np.array(expected, wide))


def test_saturated_add(bench: Bench) -> None:
    a, b = ints("i4", 1), ints("i4", 2)
    expected = np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1).astype(np.int32)
    assert same(apply_op(bench, "add.sat.s32 %d, %a, %b;", a, b, output="i4"), expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("and.b32 %d, %a, %b;", lambda a, b: a & b),
        ("or.b32 %d, %a, %b;", lambda a, b: a | b),
        ("xor.b32 %d, %a, %b;", lambda a, b: a ^ b),
        ("not.b32 %d, %a;", lambda a, b: ~a),
        ("cnot.b32 %d, %a;", lambda a, b: int(a == 0)),
        ("popc.b32 %d, %a;", lambda a, b: bin(a).count("1")),
        ("clz.b32 %d, %a;", lambda a, b: 32 - a.bit_length()),
        ("brev.b32 %d, %a;", lambda a, b: int(f"{a:032b}"[::-1], 2)),
        ("bfind.u32 %d, %a;", lambda a, b: a.bit_length() - 1),
        ("bfind.shiftamt.u32 %d, %a;", lambda a, b: 32 - a.bit_length() if a else -1),
        ("shl.b32 %d, %a, %b;", lambda a, b: a << b if b < 32 else 0),
        ("shr.u32 %d, %a, %b;", lambda a, b: a >> b if b < 32 else 0),
        ("shl.b32 %d, %a, 5;", lambda a, b: a << 5),
        ("shr.u32 %d, %a, 40;", lambda a, b: 0),
        ("shf.l.wrap.b32 %d, %a, %b, 37;", lambda a, b: ((b << 32 | a) << 5) >> 32),
        ("shf.r.wrap.b32 %d, %a, %b, 37;", lambda a, b: (b << 32 | a) >> 5),
        ("shf.r.clamp.b32 %d, %a, %b, 37;", lambda a, b: b),
        ("sad.u32 %d, %a, %b, 7;", lambda a, b: abs(a - b) + 7),
        ("lop3.b32 %d, %a, %b, 0xF0F0F0F0, 0xE8;", lambda a, b: (a & b) | (b & 0xF0F0F0F0) | (a & 0xF0F0F0F0)),
        ("prmt.b32 %d, %a, %b, 0x5410;", lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16),
        ("bfe.u32 %d, %a, 5, 9;", lambda a, b: (a >> 5) & 0x1FF),
        ("bfe.u32 %d, %a, 28, 9;", lambda a, b: a >> 28),
        ("bfe.s32 %d, %a, 5, 9;", lambda a, b: ((a >> 5) & 0x1FF) - (0x200 if a >> 13 & 1 else 0)),
        ("bfe.s32 %d, %a, 5, 0;", lambda a, b: 0),
        ("bfi.b32 %d, %a, %b, 5, 9;", lambda a, b: (b & ~(0x1FF << 5)) | (a & 0x1FF) << 5),
        ("bmsk.clamp.b32 %d, 4, 8;", lambda a, b: 0xFF0),
        ("mul24.lo.u32 %d, %a, %b;", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        ("mul24.hi.u32 %d, %a, %b;", lambda a, b: ((a & 0xFFFFFF) * (b & 0xFFFFFF)) >> 16),
        ("dp4a.u32.u32 %d, %a, %b, 9;", lambda a, b: 9 + sum((a >> s & 255) * (b >> s & 255) for s in (0, 8, 16, 24))),
        ("dp2a.lo.u32.u32 %d, %a, %b, 9;", lambda a, b: 9 + (a & 0xFFFF) * (b & 255) + (a >> 16) * (b >> 8 & 255)),
        ("setp.hi.u32 %p, %a, %b; selp.b32 %d, 7, 8, %p;", lambda a, b: 7 if a > b else 8),
        ("setp.lt.s32 %p|%q, %a, %b; selp.b32 %d, 7, 8, %q;", lambda a, b: 8 if wrap(a, "i4") < wrap(b, "i4") else 7),
        ("set.gt.u32.u32 %d, %a, %b;", lambda a, b: 0xFFFFFFFF if a > b else 0),
        ("mov.b32 %d, 0xdeadbeef;", lambda a, b: 0xDEADBEEF),
        ("mov.u32 %d, -1;", lambda a, b: 0xFFFFFFFF),
        ("slct.u32.s32 %d, %a, %b, %a;", lambda a, b: a if wrap(a, "i4") >= 0 else b),
    ],
)
def test_bits(bench: Bench, body: str, expected: Any) -> None:
    a, b = ints("u4", 1), ints("u4", 2)
    values = [expected(int(x), int(y)) & 0xFFFFFFFF for x, y in zip(a, b, strict=True)]
    assert same(apply_op(bench, body, a, b, output="u4"), np.array(values, "u4"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("popc.b64 %r, %a; cvt.u64.u32 %d, %r;", lambda a: bin(a).count("1")),
        ("clz.b64 %r, %a; cvt.u64.u32 %d, %r;", lambda a: 64 - a.bit_length()),
        ("brev.b64 %d, %a;", lambda a: int(f"{a:064b}"[::-1], 2)),
        ("bfe.u64 %d, %a, 40, 20;", lambda a: a >> 40 & 0xFFFFF),
        ("bfe.u64 %d, %a, 0, 64;", lambda a: a),
        ("shr.s64 %d, %a, 70;", lambda a: -(a >> 63)),
        ("shl.b64 %d, %a, 63;", lambda a: a << 63),
        ("mov.b64 {%r, %s}, %a; mov.b64 %d, {%s, %r};", lambda a: (a & 0xFFFFFFFF) << 32 | a >> 32),
        ("mov.b64 {%r, _}, %a; cvt.u64.u32 %d, %r;", lambda a: a & 0xFFFFFFFF),
    ],
)
def test_wide_bits(bench: Bench, body: str, expected: Any) -> None:
    a = ints("u8")
    values = [expected(int(x)) & (2**64 - 1) for x in a]
    assert same(apply_op(bench, ".reg .b32 %r, %s; " + body, a, output="u8"), np.array(values, "u8"))


def test_carry_chain_adds_128_bits(bench: Bench) -> None:
    a, b = ints("u8", 1), ints("u8", 2)
    body = """.reg .b32 %a0, %a1, %b0, %b1, %r0, %r1, %r2;
    mov.b64 {%a0, %a1}, %a; mov.b64 {%b0, %b1}, %b;
    add.cc.u32 %r0, %a0, %b0; addc.cc.u32 %r1, %a1, %b1; addc.u32 %r2, 0, 0;
    xor.b32 %r1, %r1, %r2; mov.b64 %d, {%r0, %r1};"""
    expected = [((x + y) & (2**64 - 1)) ^ ((x + y) >> 64 << 32) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert same(apply_op(bench, body, a, b, output="u8"), np.array(expected, "u8"))


def test_borrow_chain_subtracts_64_bits(bench: Bench) -> None:
    a, b = ints("u8", 1), ints("u8", 2)
    body = """.reg .b32 %a0, %a1, %b0, %b1, %r0, %r1;
    mov.b64 {%a0, %a1}, %a; mov.b64 {%b0, %b1}, %b;
    sub.cc.u32 %r0, %a0, %b0; subc.u32 %r1, %a1, %b1; mov.b64 %d, {%r0, %r1};"""
    assert same(apply_op(bench, body, a, b, output="u8"), a - b)


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("add.rn", np.add),
        ("sub.rn", np.subtract),
        ("mul.rn", np.multiply),
        ("div.rn", np.divide),
        ("min", np.fmin),
        ("max", np.fmax),
    ],
)
def test_float_arithmetic(bench: Bench, kind: str, op: str, function: Any) -> None:
    a, b = floats(kind, 1), floats(kind, 2)
    name = f"f{8 * int(kind[1])}"
    with np.errstate(all="ignore"):
        expected = function(a, b)
    assert same(apply_op(bench, f"{op}.{name} %d, %a, %b;", a, b, output=kind), expected)


def test_max_that_propagates_nan(bench: Bench) -> None:
    a, b = floats("f4", 1), floats("f4", 2)
    assert same(apply_op(bench, "max.NaN.f32 %d, %a, %b;", a, b, output="f4"), np.maximum(a, b))


def test_fma_rounds_once(bench: Bench) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(N).astype("f4") for _ in range(2))
    c = -(a * b)  # what is left is the product's rounding error: 0 if the product were rounded first
    exact = (a.astype("f8") * b + c).astype("f4")
    assert np.count_nonzero(exact) > N // 2
    assert same(apply_op(bench, "fma.rn.f32 %d, %a, %b, %c;", a, b, c, output="f4"), exact)


def test_fp64_fma_rounds_once(bench: Bench) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(N) for _ in range(2))
    c = -(a * b)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert same(apply_op(bench, "fma.rn.f64 %d, %a, %b, %c;", a, b, c, output="f8"), np.array(exact))


@pytest.mark.parametrize(("mode", "direction"), [("rm", -math.inf), ("rp", math.inf), ("rz", 0.0)])
def test_directed_rounding(bench: Bench, mode: str, direction: float) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(N).astype("f4") for _ in range(2))
    exact = a.astype("f8") * b
    result = apply_op(bench, f"mul.{mode}.f32 %d, %a, %b;", a, b, output="f4").astype("f8")
    assert np.all(np.abs(result - exact) < np.abs(np.spacing(exact.astype("f4"))) * 1.01)
    if mode == "rm":
        assert np.all(result <= exact)
    elif mode == "rp":
        assert np.all(result >= exact)
    else:
        assert np.all(np.abs(result) <= np.abs(exact))


def test_ftz_flushes_inputs_and_results(bench: Bench) -> None:
    a = np.full(32, 2.0**-130, "f4")
    b = np.full(32, -(2.0**-100), "f4")
    assert np.all(apply_op(bench, "add.ftz.f32 %d, %a, 0f00000000;", a, output="f4") == 0)
    assert np.all(apply_op(bench, "add.f32 %d, %a, 0f00000000;", a, output="f4") == a)
    flushed = apply_op(bench, "mul.ftz.f32 %d, %a, 0f2B800000;", b, output="f4")
    assert np.all(flushed == 0)
    assert np.all(np.signbit(flushed))


def test_saturation(bench: Bench) -> None:
    a = np.array([-1, 0.25, 2, np.nan] * 8, "f4")
    expected = np.array([0, 0.25, 1, 0] * 8, "f4")
    assert same(apply_op(bench, "add.sat.f32 %d, %a, 0f00000000;", a, output="f4"), expected)


@pytest.mark.parametrize(
    ("op", "function", "tolerance"),
    [
        ("ex2.approx.f32", np.exp2, 2.0**-22),
        ("ex2.approx.ftz.f32", np.exp2, 2.0**-22),
        ("lg2.approx.f32", np.log2, 2.0**-22),
        ("rcp.approx.f32", lambda v: 1 / v, 2.0**-23),
        ("rcp.rn.f32", lambda v: 1 / v, 2.0**-24),
        ("sqrt.rn.f32", np.sqrt, 2.0**-24),
        ("sqrt.approx.f32", np.sqrt, 2.0**-22),
        ("rsqrt.approx.f32", lambda v: 1 / np.sqrt(v), 2.0**-22),
        ("sin.approx.f32", np.sin, 2.0**-20),
        ("cos.approx.f32", np.cos, 2.0**-20),
        ("tanh.approx.f32", np.tanh, 2.0**-10),
    ],
)
def test_special_functions(bench: Bench, op: str, function: Any, tolerance: float) -> None:
    a = np.random.default_rng(5).uniform(0.01, 3, N).astype("f4")
    exact = function(a.astype("f8"))
    result = apply_op(bench, f"{op} %d, %a;", a, output="f4")
    assert np.all(np.abs(result - exact) <= tolerance * np.maximum(np.abs(exact), 1e-3) * 1.01)


def test_exponential_of_minus_infinity_is_zero(bench: Bench) -> None:
    a = np.full(32, -np.inf, "f4")
    assert np.all(apply_op(bench, "ex2.approx.ftz.f32 %d, %a;", a, output="f4") == 0)


def bf16(values: np.ndarray) -> np.ndarray:
    """bf16 patterns of fp32 values that are exact in bf16."""
    return (np.asarray(values, "f4").view("u4") >> 16).astype("u2")


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype("u4") << 16).view("f4")


HALF_OPS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.fmin,
    "max": np.fmax,
}


@pytest.mark.parametrize("op", HALF_OPS)
def test_half_pairs(bench: Bench, op: str) -> None:
    a, b = floats("f2", 1), floats("f2", 2)
    with np.errstate(all="ignore"):
        expected = HALF_OPS[op](a, b)
    assert same(apply_op(bench, f"{op}.f16 %d, %a, %b;", a, b, output="f2"), expected)
    pairs = apply_op(bench, f"{op}.f16x2 %d, %a, %b;", a.view("u4"), b.view("u4"), output="u4").view("f2")
    assert same(pairs, expected)


@pytest.mark.parametrize("op", ["max", "min", "fma"])
def test_bf16_pairs(bench: Bench, op: str) -> None:
    rng = np.random.default_rng(6)
    a, b, c = (from_bf16(bf16(rng.standard_normal(2 * N).astype("f4"))) for _ in range(3))
    packed = [bf16(v).view("u4") for v in (a, b, c)]
    if op == "fma":
        exact = a.astype("f8") * b + c
        body = "fma.rn.bf16x2 %d, %a, %b, %c;"
    else:
        exact = (np.maximum if op == "max" else np.minimum)(a, b).astype("f8")
        body = f"{op}.bf16x2 %d, %a, %b;"
    result = from_bf16(apply_op(bench, body, *packed[: 3 if op == "fma" else 2], output="u4").view("u2"))
    assert np.array_equal(result, rounding.decode(rounding.encode(exact, Dtype.BF16), Dtype.BF16))


def test_relu_keeps_nan(bench: Bench) -> None:
    a = np.array([-2, 3, np.nan, 0] * 8, "f2")
    one, zero = np.full(32, 1, "f2"), np.zeros(32, "f2")
    result = apply_op(bench, "fma.rn.relu.f16 %d, %a, %b, %c;", a, one, zero, output="f2")
    assert same(result, np.array([0, 3, np.nan, 0] * 8, "f2"))


@pytest.mark.parametrize(
    ("comparison", "function"),
    [
        ("lt", lambda a, b: a < b),
        ("eq", lambda a, b: a == b),
        ("ne", lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)),
        ("neu", lambda a, b: a != b),
        ("equ", lambda a, b: (a == b) | np.isnan(a) | np.isnan(b)),
        ("geu", lambda a, b: ~(a < b)),
        ("num", lambda a, b: ~np.isnan(a) & ~np.isnan(b)),
        ("nan", lambda a, b: np.isnan(a) | np.isnan(b)),
    ],
)
def test_float_comparison(bench: Bench, comparison: str, function: Any) -> None:
    a, b = floats("f4", 1), floats("f4", 2)
    b[:40] = a[:40]
    result = apply_op(bench, f"setp.{comparison}.f32 %p, %a, %b; selp.u32 %d, 1, 0, %p;", a, b, output="u4")
    assert np.array_equal(result.astype(bool), function(a, b))
    halves = apply_op(
        bench,
        f"setp.{comparison}.f16x2 %p|%q, %a, %b; selp.u32 %d, 1, 0, %p; @%q add.u32 %d, %d, 2;",
        a.astype("f2").view("u4"),
        b.astype("f2").view("u4"),
        output="u4",
    )
    expected = function(a.astype("f2"), b.astype("f2")).reshape(-1, 2)
    assert np.array_equal(halves, expected[:, 0] + 2 * expected[:, 1])


def test_boolean_combination(bench: Bench) -> None:
    a, b = ints("i4", 1), ints("i4", 2)
    body = "setp.gt.s32 %p, %a, 0; setp.lt.and.s32 %q, %a, %b, !%p; selp.u32 %d, 1, 0, %q;"
    assert np.array_equal(apply_op(bench, body, a, b, output="u4"), ((a < b) & (a <= 0)).astype("u4"))


@pytest.mark.parametrize("mode", ["rm", "rp", "rz"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "fma"])
def test_directed_rounding_of_doubles(bench: Bench, op: str, mode: str) -> None:
    rng = np.random.default_rng(9)
    a, b, c = (rng.standard_normal(N) for _ in range(3))
    operands = [a, b, c][: 3 if op == "fma" else 2]
    result = apply_op(
        bench, f"{op}.{mode}.f64 %d, {'%a, %b, %c' if op == 'fma' else '%a, %b'};", *operands, output="f8"
    )
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), result.tolist(), strict=True):
        fx, fy = Fraction(x), Fraction(y)
        exact = {"add": fx + fy, "sub": fx - fy, "mul": fx * fy, "div": fx / fy, "fma": fx * fy + Fraction(z)}[op]
        below = Fraction(got) <= exact
        assert abs(Fraction(got) - exact) < Fraction(float(np.spacing(abs(got))))
        if mode == "rm":
            assert below
        elif mode == "rp":
            assert Fraction(got) >= exact
        else:
            assert abs(Fraction(got)) <= abs(exact)


def test_minimum_and_maximum_of_zeros(bench: Bench) -> None:
    a = np.array([0.0, -0.0, -0.0, 0.0] * 8, "f4")
    b = np.array([-0.0, 0.0, -0.0, 0.0] * 8, "f4")
    assert (
        np.signbit(apply_op(bench, "max.f32 %d, %a, %b;", a, b, output="f4")).tolist()
        == [False, False, True, False] * 8
    )
    assert (
        np.signbit(apply_op(bench, "min.f32 %d, %a, %b;", a, b, output="f4")).tolist() == [True, True, True, False] * 8
    )
