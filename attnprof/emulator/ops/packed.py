"""fp16, bf16 and their pairs: unpacked to fp32 (or fp64 for fma), computed, rounded once and packed again."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder, Source
from attnprof.emulator.formats import bf16_bits, bf16_values
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops import floating
from attnprof.emulator.ops.registry import Step
from attnprof.emulator.program import Instruction, Operand
from attnprof.emulator.types import TYPES, PtxType

_HALF_TINY = 2.0**-14


def unpack(bits: Any, kind: PtxType) -> Any:
    """fp32 values of 16-bit elements: shape (n,) for a scalar type, (n, 2) for a pair."""
    halves = np.ascontiguousarray(bits)
    if kind.bits == 32:
        halves = halves.view(np.uint32).view(np.uint16).reshape(-1, 2)
    if kind.name.startswith("bf16"):
        return bf16_values(halves)
    return halves.view(np.float16).astype(np.float32)


def pack(values: Any, kind: PtxType) -> Any:
    """Round to the element type and pack; the inverse of `unpack`."""
    is_bf16 = kind.name.startswith("bf16")
    bits = bf16_bits(values) if is_bf16 else values.astype(np.float16).view(np.uint16)
    return np.ascontiguousarray(bits).reshape(-1).view(kind.storage)


def half_source(d: Decoder, i: Instruction, operand: Operand, kind: PtxType) -> Source:
    """A source of 16-bit elements as fp32 values."""
    bits = d.alu(i, operand, _bits(kind))
    return lambda x: unpack(bits(x), kind)


def compare_source(d: Decoder, i: Instruction, operand: Operand, kind: PtxType) -> Source:
    """A source for a comparison: 16-bit floats as fp32 values, anything else as it is."""
    if kind.name in ("f16", "bf16", "f16x2", "bf16x2"):
        return half_source(d, i, operand, kind)
    return d.alu(i, operand, kind)


def _bits(kind: PtxType) -> PtxType:
    return TYPES[f"b{kind.bits}"]


def _flush_half(values: Any) -> Any:
    return np.where(np.abs(values) < _HALF_TINY, np.copysign(np.float32(0), values), values)


def _fma(a: Any, b: Any, c: Any) -> Any:
    return a.astype(np.float64) * b + c


_ARITHMETIC: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": _fma,
    "min": np.fmin,
    "max": np.fmax,
    "abs": np.abs,
    "neg": np.negative,
}


def decode_packed(d: Decoder, i: Instruction) -> Step:
    """add, sub, mul, fma, min, max, abs and neg of f16, f16x2, bf16 and bf16x2."""
    d.allow(i, "rn", "ftz", "sat", "relu", "NaN", "xorsign", "abs")
    kind = d.types(i)[-1]
    function = _ARITHMETIC.get(i.op)
    if function is None or "xorsign" in i.mods:
        raise d.unsupported(i)
    if "NaN" in i.mods:
        function = np.minimum if i.op == "min" else np.maximum
    count = {"fma": 4, "abs": 2, "neg": 2}.get(i.op, 3)
    operands = d.args(i, count)
    put = d.alu_put(i, operands[0], _bits(kind))
    sources = [half_source(d, i, v, kind) for v in operands[1:]]
    ftz, sat, relu = "ftz" in i.mods and not kind.name.startswith("b"), "sat" in i.mods, "relu" in i.mods

    def run(x: Active) -> None:
        values = [s(x) for s in sources]
        if ftz:
            values = [_flush_half(v) for v in values]
        result = function(*values)
        if sat:
            result = floating.saturate_unit(result)
        if relu:  # a NaN stays one
            result = np.where(result < 0, result.dtype.type(0), result)
        if ftz:
            result = _flush_half(result)
        put(x, pack(result, kind))

    return run


def decode_unary(d: Decoder, i: Instruction, function: Any) -> Step:
    """ex2 and tanh of 16-bit types."""
    kind = d.types(i)[-1]
    dest, a = d.args(i, 2)
    put, value = d.alu_put(i, dest, _bits(kind)), half_source(d, i, a, kind)
    return lambda x: put(x, pack(function(value(x)), kind))
