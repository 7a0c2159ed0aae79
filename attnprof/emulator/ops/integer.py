"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions"), and the opcodes shared with floating point.

``add``, ``sub``, ``mul``, ``fma``, ``min``, … name both kinds; the type decides who decodes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active, AnyArray
from attnprof.emulator.ops import floating, packed
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES, PtxType

Any2 = Callable[[Any, Any], Any]
_PACKED = ("f16", "f16x2", "bf16", "bf16x2")
_WIDER = {16: 32, 32: 64}


def divide(a: Any, b: Any) -> Any:
    """Quotient rounded towards zero; a zero divisor gives all ones, as NVIDIA hardware does."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a // np.where(b == 0, 1, b).astype(b.dtype))
    a, b = np.broadcast_arrays(a, b)
    unsigned = a.dtype.str.replace("i", "u")
    magnitude = np.abs(a).view(unsigned) // np.where(b == 0, 1, np.abs(b)).astype(a.dtype).view(unsigned)
    quotient = magnitude.view(a.dtype)
    return np.where(b == 0, a.dtype.type(-1), np.where((a < 0) != (b < 0), -quotient, quotient))


def remainder(a: Any, b: Any) -> Any:
    """What `divide` leaves: the sign is the dividend's."""
    return np.where(b == 0, a, a - divide(a, b) * b)


def multiply_high(a: Any, b: Any) -> Any:
    """The upper half of the double-width product."""
    a, b = np.broadcast_arrays(a, b)
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(a.dtype)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    u, v = np.ascontiguousarray(a).view(np.uint64), np.ascontiguousarray(b).view(np.uint64)
    u0, u1, v0, v1 = u & low, u >> shift, v & low, v >> shift
    middle = u1 * v0 + ((u0 * v0) >> shift)
    high = u1 * v1 + (middle >> shift) + (((middle & low) + u0 * v1) >> shift)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, v, 0).astype(np.uint64) - np.where(b < 0, u, 0).astype(np.uint64)
    return high.view(a.dtype)


def saturate(value: Any, wide: Any) -> Any:
    """``wide`` clamped to the range of ``value``'s type."""
    limits = np.iinfo(value)
    return np.clip(wide, limits.min, limits.max).astype(value)


def binary(d: Decoder, i: Instruction, kind: PtxType, function: Any2) -> Step:
    """D = function(a, b), all of one type."""
    dest, a, b = d.args(i, 3)
    put, left, right = d.alu_put(i, dest, kind), d.alu(i, a, kind), d.alu(i, b, kind)
    return lambda x: put(x, function(left(x), right(x)))


def unary(d: Decoder, i: Instruction, kind: PtxType, function: Callable[[Any], Any]) -> Step:
    """D = function(a)."""
    dest, a = d.args(i, 2)
    put, value = d.alu_put(i, dest, kind), d.alu(i, a, kind)
    return lambda x: put(x, function(value(x)))


def _is_float(d: Decoder, i: Instruction) -> bool:
    return d.types(i)[-1].kind == "f" and d.types(i)[-1].bits > 16


def _is_packed(d: Decoder, i: Instruction) -> bool:
    return d.types(i)[-1].name in _PACKED


_SIMPLE: dict[str, Any2] = {"add": np.add, "sub": np.subtract, "div": divide, "rem": remainder}


@op("add", "sub", "div", "rem")
def _additive(d: Decoder, i: Instruction) -> Step:
    if i.mods[:1] == ("cc",):
        from attnprof.emulator.ops.carry import decode_carry

        return decode_carry(d, i)
    if _is_packed(d, i):
        return packed.decode_packed(d, i)
    if _is_float(d, i):
        return floating.decode_float(d, i)
    kind = d.types(i)[-1]
    function = _SIMPLE[i.op]
    if "sat" in i.mods:
        d.allow(i, "sat")
        base: Any = np.add if i.op == "add" else np.subtract
        return binary(d, i, kind, lambda a, b: saturate(a.dtype, base(a.astype(np.int64), b.astype(np.int64))))
    d.allow(i)
    if kind.kind == "b" or (kind.name.endswith("x2")):
        raise d.unsupported(i)
    return binary(d, i, kind, function)


@op("min", "max")
def _min_max(d: Decoder, i: Instruction) -> Step:
    if _is_packed(d, i):
        return packed.decode_packed(d, i)
    if _is_float(d, i):
        return floating.decode_float(d, i)
    kind = d.types(i)[-1]
    base: Any2 = np.minimum if i.op == "min" else np.maximum
    if kind.name in ("s16x2", "u16x2"):
        d.allow(i, "relu")
        half = np.dtype(f"{'i' if kind.name[0] == 's' else 'u'}2")
        relu = "relu" in i.mods

        def pairwise(a: AnyArray, b: AnyArray) -> AnyArray:
            a, b = np.broadcast_arrays(a, b)
            result = base(np.ascontiguousarray(a).view(half), np.ascontiguousarray(b).view(half))
            bits: AnyArray = (np.maximum(result, 0) if relu else result).astype(half).view(np.uint32)
            return bits

        return binary(d, i, kind, pairwise)
    d.allow(i, "relu")
    if "relu" in i.mods:
        return binary(d, i, kind, lambda a, b: np.maximum(base(a, b), 0).astype(a.dtype))
    return binary(d, i, kind, base)


@op("mul", "mul24")
def _multiply(d: Decoder, i: Instruction) -> Step:
    if _is_packed(d, i):
        return packed.decode_packed(d, i)
    if _is_float(d, i):
        return floating.decode_float(d, i)
    return _product(d, i, add=False)


@op("mad", "mad24", "fma")
def _multiply_add(d: Decoder, i: Instruction) -> Step:
    if i.op == "mad" and "cc" in i.mods:
        from attnprof.emulator.ops.carry import decode_carry

        return decode_carry(d, i)
    if _is_packed(d, i):
        return packed.decode_packed(d, i)
    if _is_float(d, i):
        return floating.decode_float(d, i)
    return _product(d, i, add=True)


def product_function(i: Instruction, kind: PtxType) -> Any2 | None:
    """The product that the instruction's .lo, .hi or .wide names, or None if it names none."""
    if i.op in ("mul24", "mad24"):
        low = "lo" in i.mods

        def narrow(a: Any, b: Any) -> Any:
            wide = np.int64 if kind.kind == "s" else np.uint64
            a24, b24 = (((v.astype(wide) << wide(40)) >> wide(40)) for v in (a, b))
            product = a24 * b24
            return (product if low else product >> wide(16)).astype(a.dtype)

        return narrow
    if "wide" in i.mods:
        wide_type = np.dtype(f"{kind.dtype.kind}{2 * kind.nbytes}")
        return lambda a, b: a.astype(wide_type) * b.astype(wide_type)
    if "hi" in i.mods:
        return multiply_high
    return np.multiply if "lo" in i.mods else None


def _product(d: Decoder, i: Instruction, *, add: bool) -> Step:
    kind = d.types(i)[-1]
    d.allow(i, "wide", "hi", "lo", "sat")
    product = product_function(i, kind)
    if product is None or kind.kind not in "us":
        raise d.malformed(i, "no .lo, .hi or .wide")
    result = kind
    if "wide" in i.mods:
        if kind.bits not in _WIDER:
            raise d.malformed(i, "no .wide of this type")
        result = TYPES[f"{kind.kind}{_WIDER[kind.bits]}"]
    operands = d.args(i, 4 if add else 3)
    put = d.alu_put(i, operands[0], result)
    a, b = d.alu(i, operands[1], kind), d.alu(i, operands[2], kind)
    if not add:
        return lambda x: put(x, product(a(x), b(x)))
    c = d.alu(i, operands[3], result)
    if "sat" in i.mods:
        return lambda x: put(x, saturate(kind.dtype, product(a(x), b(x)).astype(np.int64) + c(x)))
    return lambda x: put(x, product(a(x), b(x)) + c(x))


@op("abs", "neg")
def _sign(d: Decoder, i: Instruction) -> Step:
    if _is_packed(d, i):
        return packed.decode_packed(d, i)
    if _is_float(d, i):
        return floating.decode_float(d, i)
    d.allow(i)
    return unary(d, i, d.whole(i), np.abs if i.op == "abs" else np.negative)


@op("sad")
def _sad(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.whole(i)
    dest, a, b, c = d.args(i, 4)
    put = d.alu_put(i, dest, kind)
    left, right, base = d.alu(i, a, kind), d.alu(i, b, kind), d.alu(i, c, kind)

    def run(x: Active) -> None:
        u, v = left(x), right(x)
        put(x, (np.maximum(u, v) - np.minimum(u, v) + base(x)).astype(kind.dtype))

    return run


@op("dp4a", "dp2a")
def _dot_product(d: Decoder, i: Instruction) -> Step:
    """Four byte products, or two of halves with bytes, added to c (PTX ISA, dp4a and dp2a)."""
    d.allow(i, "lo", "hi")
    d.whole(i)
    kinds = d.types(i, 2)
    dest, a, b, c = d.args(i, 4)
    result = TYPES["s32" if "s" in (kinds[0].kind, kinds[1].kind) else "u32"]
    put = d.alu_put(i, dest, result)
    left, right, base = (d.alu(i, v, TYPES["u32"]) for v in (a, b, c))
    width = 1 if i.op == "dp4a" else 2
    left_type = np.dtype(f"{'i' if kinds[0].kind == 's' else 'u'}{width}")
    right_type = np.dtype(f"{'i' if kinds[1].kind == 's' else 'u'}1")

    def run(x: Active) -> None:
        u = np.ascontiguousarray(left(x)).view(left_type).reshape(-1, 4 // width).astype(np.int64)
        v = np.ascontiguousarray(right(x)).view(right_type).reshape(-1, 4).astype(np.int64)
        if i.op == "dp2a":
            v = v[:, :2] if "lo" in i.mods else v[:, 2:]
        put(x, ((u * v).sum(axis=1).astype(np.uint64).astype(np.uint32) + base(x)).astype(np.uint32))

    return run
