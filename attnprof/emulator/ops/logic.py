"""Moves, bit operations and shifts."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active, AnyArray
from attnprof.emulator.ops.integer import binary, unary
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Immediate, Instruction, Register, Vector
from attnprof.emulator.types import TYPES

_BITWISE: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_PREDICATE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@op("mov")
def _mov(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.types(i)[-1]
    dest, source = d.args(i, 2)
    for operand in (dest, source):
        items = operand.items if isinstance(operand, Vector) else ()
        for item in items:
            if isinstance(item, Register) and item.type.bits * len(items) != kind.bits:
                raise d.malformed(i, f"{len(items)} registers of {item.type.bits} bits are not {kind.bits} bits")
    if isinstance(source, Vector):
        part = TYPES[f"b{kind.bits // len(source.items)}"]
        parts = [d.alu(i, item, part) for item in source.items]
        put = d.alu_put(i, dest, kind)

        def pack(x: Active) -> None:
            values = np.broadcast_arrays(*(p(x) for p in parts))
            put(x, np.stack(values, axis=-1).reshape(-1).view(kind.storage))

        return pack
    if isinstance(dest, Vector):
        part = TYPES[f"b{kind.bits // len(dest.items)}"]
        puts = [d.alu_put(i, item, part) for item in dest.items]
        value = d.alu(i, source, kind)

        def unpack(x: Active) -> None:
            halves = np.ascontiguousarray(value(x)).view(part.storage).reshape(-1, len(puts))
            for at, put_part in enumerate(puts):
                put_part(x, halves[:, at].copy())

        return unpack
    put, value = d.alu_put(i, dest, kind), d.alu(i, source, kind)
    # A copy: two registers must never share an array, for one may be written in part.
    return lambda x: put(x, value(x).copy())


@op("and", "or", "xor")
def _bitwise(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.types(i)[-1] if i.mods[-1:] == ("pred",) else d.whole(i)
    return binary(d, i, kind, (_PREDICATE if kind.bits == 1 else _BITWISE)[i.op])


@op("not", "cnot")
def _not(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.types(i)[-1] if i.mods[-1:] == ("pred",) else d.whole(i)
    if i.op == "cnot":
        return unary(d, i, kind, lambda a: (a == 0).astype(kind.storage))
    return unary(d, i, kind, np.logical_not if kind.bits == 1 else np.invert)


@op("shl", "shr")
def _shift(d: Decoder, i: Instruction) -> Step:
    """Amounts past the width shift everything out (or fill with the sign), unlike C."""
    d.allow(i)
    kind = d.whole(i)
    dest, a, b = d.args(i, 3)
    put, value, amount = d.alu_put(i, dest, kind), d.alu(i, a, kind), d.alu(i, b, TYPES["u32"])
    left = i.op == "shl"
    width = kind.bits

    def run(x: Active) -> None:
        n = amount(x)
        v = value(x)
        if n.size == 1 and int(n[0]) < width:
            by = v.dtype.type(n[0])
            put(x, (v << by) if left else (v >> by))
            return
        clipped = np.minimum(n, width - 1).astype(v.dtype)
        if left:
            put(x, np.where(n >= width, v.dtype.type(0), v << clipped))
        elif kind.kind == "s":
            put(x, v >> clipped)
        else:
            put(x, np.where(n >= width, v.dtype.type(0), v >> clipped))

    return run


@op("shf")
def _funnel_shift(d: Decoder, i: Instruction) -> Step:
    """shf.{l,r}.{wrap,clamp}.b32: 64 bits {b, a} shifted, one half kept."""
    d.allow(i, "l", "r", "wrap", "clamp")
    u32 = TYPES["b32"]
    dest, a, b, c = d.args(i, 4)
    put = d.alu_put(i, dest, u32)
    low, high, amount = (d.alu(i, v, u32) for v in (a, b, c))
    left, wrap = "l" in i.mods, "wrap" in i.mods

    def run(x: Active) -> None:
        n = amount(x)
        by = (n & np.uint32(31) if wrap else np.minimum(n, 32)).astype(np.uint64)
        pair = (high(x).astype(np.uint64) << np.uint64(32)) | low(x)
        shifted = (pair << by) >> np.uint64(32) if left else pair >> by
        put(x, shifted.astype(np.uint32))

    return run


@op("lop3")
def _lop3(d: Decoder, i: Instruction) -> Step:
    """Any function of three bits: bit (4a + 2b + c) of the table is the result."""
    d.allow(i)
    dest, a, b, c, table = d.args(i, 5)
    if not isinstance(table, Immediate):
        raise d.malformed(i, "its table must be a constant")
    value = int(table.value) & 0xFF
    b32 = TYPES["b32"]
    put = d.alu_put(i, dest, b32)
    sources = [d.alu(i, v, b32) for v in (a, b, c)]

    def run(x: Active) -> None:
        u, v, w = (s(x) for s in sources)
        result: Any = np.zeros(1, np.uint32)
        for term in range(8):
            if value >> term & 1:
                result = result | ((u if term & 4 else ~u) & (v if term & 2 else ~v) & (w if term & 1 else ~w))
        put(x, result)

    return run


@op("popc", "clz", "brev", "bfind")
def _bit_counts(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "shiftamt")
    kind = d.whole(i)
    dest, a = d.args(i, 2)
    value = d.alu(i, a, kind)
    if i.op == "brev":
        put = d.alu_put(i, dest, kind)
        return lambda x: put(x, _reverse_bits(value(x)))
    put = d.alu_put(i, dest, TYPES["u32"])
    if i.op == "popc":
        return lambda x: put(x, count_bits(value(x)).astype(np.uint32))
    if i.op == "clz":
        return lambda x: put(x, (kind.bits - 1 - _highest_bit(value(x))).astype(np.uint32))

    def find(x: Active) -> None:
        v = value(x)
        if kind.kind == "s":
            v = np.where(v < 0, ~v, v)
        position = _highest_bit(v.view(kind.storage))
        if "shiftamt" in i.mods:
            position = np.where(position < 0, -1, kind.bits - 1 - position)
        put(x, position.astype(np.int32).view(np.uint32))

    return find


_BYTE_COUNTS = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def count_bits(v: AnyArray) -> Any:
    """Set bits of each element."""
    return _BYTE_COUNTS[np.ascontiguousarray(v).view(np.uint8).reshape(-1, v.dtype.itemsize)].sum(
        axis=1, dtype=np.int64
    )


def _highest_bit(v: AnyArray) -> Any:
    """Index of the highest set bit, −1 for zero."""
    smeared: Any = v.copy()
    by = 1
    while by < v.dtype.itemsize * 8:
        smeared |= smeared >> smeared.dtype.type(by)
        by *= 2
    return count_bits(smeared) - 1


def _reverse_bits(v: AnyArray) -> AnyArray:
    as_bytes = np.ascontiguousarray(v).view(np.uint8).reshape(-1, v.dtype.itemsize)[:, ::-1]
    bits = np.unpackbits(as_bytes, axis=1, bitorder="big")
    return np.packbits(bits, axis=1, bitorder="little").reshape(-1).view(v.dtype)


@op("bfe")
def _bit_field_extract(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.whole(i)
    dest, a, b, c = d.args(i, 4)
    put, value = d.alu_put(i, dest, kind), d.alu(i, a, kind)
    start, length = d.alu(i, b, TYPES["u32"]), d.alu(i, c, TYPES["u32"])
    width, signed = kind.bits, kind.kind == "s"

    def run(x: Active) -> None:
        u = value(x).view(kind.storage).astype(np.uint64)
        at, count = (start(x) & np.uint32(255)).astype(np.int64), (length(x) & np.uint32(255)).astype(np.int64)
        by = np.minimum(at, 63).astype(np.uint64)
        kept = np.minimum(count, np.maximum(width - at, 0))
        mask = _low_bits(kept)
        field = np.where(at >= width, 0, u >> by) & mask
        if signed:
            top = np.minimum(at + count - 1, width - 1)
            sign = np.where(count == 0, 0, (u >> np.clip(top, 0, 63).astype(np.uint64)) & np.uint64(1))
            field = np.where(sign != 0, field | ~mask, field)
        put(x, field.astype(np.uint64).astype(kind.storage))

    return run


def _low_bits(count: Any) -> Any:
    """A mask of the lowest ``count`` bits (0 … 64)."""
    clipped = np.minimum(count, 63).astype(np.uint64)
    return np.where(count >= 64, np.uint64(0xFFFFFFFFFFFFFFFF), (np.uint64(1) << clipped) - np.uint64(1))


@op("bfi")
def _bit_field_insert(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.whole(i)
    dest, a, b, c, e = d.args(i, 5)
    put = d.alu_put(i, dest, kind)
    insert, base = d.alu(i, a, kind), d.alu(i, b, kind)
    start, length = d.alu(i, c, TYPES["u32"]), d.alu(i, e, TYPES["u32"])

    def run(x: Active) -> None:
        at, count = (start(x) & np.uint32(255)).astype(np.int64), (length(x) & np.uint32(255)).astype(np.int64)
        by = np.minimum(at, 63).astype(np.uint64)
        mask = np.where(at >= kind.bits, 0, _low_bits(count) << by).astype(np.uint64)
        field = (insert(x).astype(np.uint64) << by) & mask
        put(x, ((base(x).astype(np.uint64) & ~mask) | field).astype(kind.storage))

    return run


@op("bmsk")
def _bit_mask(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "clamp", "wrap")
    u32 = TYPES["b32"]
    dest, a, b = d.args(i, 3)
    put, start, length = d.alu_put(i, dest, u32), d.alu(i, a, u32), d.alu(i, b, u32)
    wrap = "wrap" in i.mods

    def run(x: Active) -> None:
        at, count = start(x).astype(np.int64), length(x).astype(np.int64)
        if wrap:
            at, count = at & 31, count & 31
        mask = np.where(at >= 32, 0, _low_bits(np.minimum(count, 32)) << np.minimum(at, 63).astype(np.uint64))
        put(x, mask.astype(np.uint64).astype(np.uint32))

    return run


@op("prmt")
def _permute(d: Decoder, i: Instruction) -> Step:
    """Four bytes chosen among eight; the selector's fourth bit replicates the byte's sign."""
    d.allow(i)
    b32 = TYPES["b32"]
    dest, a, b, c = d.args(i, 4)
    put = d.alu_put(i, dest, b32)
    low, high, selector = (d.alu(i, v, b32) for v in (a, b, c))

    def run(x: Active) -> None:
        pair = (high(x).astype(np.uint64) << np.uint64(32)) | low(x)
        choose = selector(x).astype(np.uint64)
        result: Any = np.zeros(1, np.uint64)
        for at in range(4):
            nibble = (choose >> np.uint64(4 * at)) & np.uint64(15)
            byte = (pair >> ((nibble & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
            sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
            result = result | (np.where(nibble & np.uint64(8), sign, byte) << np.uint64(8 * at))
        put(x, result.astype(np.uint32))

    return run
