"""fp32 and fp64 arithmetic with rounding modes, saturation and flush-to-zero.

fp32 fma is computed in double precision: the product is exact there, and the sum is rounded twice only when it lies
within 2^-29 of a tie. fp64 fma uses an error-free product and sum (Dekker, Numer. Math. 18, 1971).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES

_TINY = {"f32": np.float32(2.0**-126), "f64": np.float64(2.0**-1022), "f16": np.float16(2.0**-14)}
_SIGN = np.uint32(0x80000000)


def flush(v: Any) -> Any:
    """fp32 subnormals to zero of the same sign."""
    if v.dtype != np.float32:
        return v
    small = np.abs(v) < _TINY["f32"]
    if not small.any():
        return v
    v = np.ascontiguousarray(v)
    return np.where(small, v.view(np.uint32) & _SIGN, v.view(np.uint32)).view(np.float32)


def to_f32(wide: Any, mode: str) -> Any:
    """Double to single precision, rounded to nearest even or in a direction (``rz``, ``rm``, ``rp``)."""
    nearest = wide.astype(np.float32)
    if mode == "rn":
        return nearest
    back = nearest.astype(np.float64)
    if mode == "rm":
        return np.where(back > wide, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    if mode == "rp":
        return np.where(back < wide, np.nextafter(nearest, np.float32(np.inf)), nearest)
    return np.where(np.abs(back) > np.abs(wide), np.nextafter(nearest, np.float32(0)), nearest)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    splitter = 134217729.0  # 2^27 + 1
    product = a * b
    a_high = a * splitter
    a_high = a_high - (a_high - a)
    b_high = b * splitter
    b_high = b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def fma64(a: Any, b: Any, c: Any) -> Any:
    """a·b + c in fp64 with (almost always) one rounding."""
    product, error = _two_product(a, b)
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)
    result = total + (error + rest)
    # Where the splitting overflows or meets an infinity the plain expression is as good as it gets.
    return np.where(np.isfinite(result) & np.isfinite(error), result, product + c)


def _directed64(op_name: str, mode: str) -> Any:
    """fp64 arithmetic rounded in a direction: the nearest result, moved one step where its error has the wrong sign."""

    def run(a: Any, b: Any, c: Any = 0.0) -> Any:
        if op_name in ("add", "sub"):
            b = -b if op_name == "sub" else b
            nearest = a + b
            part = nearest - a
            error = (a - (nearest - part)) + (b - part)
        elif op_name == "mul":
            nearest, error = _two_product(a, b)
        elif op_name == "div":
            nearest = a / b
            product, rest = _two_product(nearest, b)
            error = ((a - product) - rest) / b
        else:
            nearest = fma64(a, b, c)
            product, rest = _two_product(a, b)
            total = product + c
            part = total - product
            error = (total - nearest) + ((product - (total - part)) + (c - part)) + rest
        error = np.where(np.isfinite(nearest), error, 0.0)
        if mode == "rm":
            return np.where(error < 0, np.nextafter(nearest, -np.inf), nearest)
        if mode == "rp":
            return np.where(error > 0, np.nextafter(nearest, np.inf), nearest)
        return np.where(error * np.sign(nearest) < 0, np.nextafter(nearest, 0.0), nearest)

    return run


_MODES = ("rn", "rz", "rm", "rp")


def _mode(i: Instruction) -> str:
    return next((m for m in i.mods if m in _MODES), "rn")


def minimum(a: Any, b: Any) -> Any:
    """min.f: a NaN gives way to a number, and −0 is less than +0."""
    least = np.fmin(a, b)
    zero = least == 0
    return np.where(zero & (a == b), -(-a - b), least) if zero.any() else least


def maximum(a: Any, b: Any) -> Any:
    """max.f: a NaN gives way to a number, and +0 is greater than −0."""
    greatest = np.fmax(a, b)
    zero = greatest == 0
    return np.where(zero & (a == b), a + b, greatest) if zero.any() else greatest


def _xorsign(function: Any) -> Any:
    def run(a: Any, b: Any) -> Any:
        negative = np.signbit(a) ^ np.signbit(b)
        magnitude = function(np.abs(a), np.abs(b))
        return np.where(negative, -magnitude, magnitude)

    return run


def decode_float(d: Decoder, i: Instruction) -> Step:
    """add, sub, mul, fma, mad, div, min, max, abs and neg of f32 and f64."""
    kind = d.types(i)[-1]
    mode = _mode(i)
    single = kind.name == "f32"
    function = _function(d, i, mode, single)
    count = {"fma": 4, "mad": 4, "abs": 2, "neg": 2}.get(i.op, 3)
    operands = d.args(i, count)
    put = d.alu_put(i, operands[0], kind)
    sources = [d.alu(i, v, kind) for v in operands[1:]]
    ftz, sat = "ftz" in i.mods and single, "sat" in i.mods
    if not ftz and not sat:
        if count == 3:
            a, b = sources
            return lambda x: put(x, function(a(x), b(x)))
        if count == 4:
            a, b, c = sources
            return lambda x: put(x, function(a(x), b(x), c(x)))
        return lambda x: put(x, function(sources[0](x)))

    def run(x: Active) -> None:
        values = [flush(s(x)) for s in sources] if ftz else [s(x) for s in sources]
        result = function(*values)
        if ftz:
            result = flush(result)
        if sat:
            result = saturate_unit(result)
        put(x, result)

    return run


def saturate_unit(v: Any) -> Any:
    """.sat: clamped to [0, 1], NaN to 0."""
    return np.where(np.isnan(v), v.dtype.type(0), np.clip(v, 0, 1)).astype(v.dtype)


def _function(d: Decoder, i: Instruction, mode: str, single: bool) -> Any:
    op_name = i.op
    if op_name in ("add", "sub", "mul", "div", "fma", "mad"):
        d.allow(i, *_MODES, "ftz", "sat", "approx", "full")
        if not single and mode != "rn":
            return _directed64(op_name, mode)
        base: Any = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}.get(op_name)
        if base is None:
            if not single:
                return fma64
            return lambda a, b, c: to_f32(a.astype(np.float64) * b + c, mode)
        if mode == "rn":
            return base
        return lambda a, b: to_f32(base(a.astype(np.float64), b.astype(np.float64)), mode)
    if op_name in ("min", "max"):
        d.allow(i, "ftz", "NaN", "xorsign", "abs")
        keep_nan = "NaN" in i.mods
        pick: Any = np.minimum if op_name == "min" else np.maximum
        if not keep_nan:
            pick = minimum if op_name == "min" else maximum
        return _xorsign(pick) if "xorsign" in i.mods else pick
    if op_name not in ("abs", "neg"):
        raise d.malformed(i, "no floating-point form")
    d.allow(i, "ftz")
    return np.abs if op_name == "abs" else np.negative


@op("copysign")
def _copysign(d: Decoder, i: Instruction) -> Step:
    """The sign of a on the magnitude of b."""
    d.allow(i)
    kind = d.types(i)[-1]
    dest, a, b = d.args(i, 3)
    put, sign, magnitude = d.alu_put(i, dest, kind), d.alu(i, a, kind), d.alu(i, b, kind)
    return lambda x: put(x, np.copysign(magnitude(x), sign(x)))


@op("testp")
def _test(d: Decoder, i: Instruction) -> Step:
    kind = d.types(i)[-1]
    tests: dict[str, Any] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & (np.abs(v) >= _TINY[kind.name]),
        "subnormal": lambda v: (v != 0) & (np.abs(v) < _TINY[kind.name]),
    }
    d.allow(i, *tests)
    test = next((tests[m] for m in i.mods if m in tests), None)
    if test is None:
        raise d.malformed(i, "no test")
    dest, a = d.args(i, 2)
    put, value = d.alu_put(i, dest, TYPES["pred"]), d.alu(i, a, kind)
    return lambda x: put(x, test(value(x)))
