"""cvt in all its pairs, and the address conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder, Source
from attnprof.emulator.formats import bf16_bits, bf16_values, fp8_bits, fp8_values, tf32_bits
from attnprof.emulator.lanes import Active
from attnprof.emulator.memory import LOCAL_WINDOW, SHARED_WINDOW
from attnprof.emulator.ops.floating import flush, saturate_unit
from attnprof.emulator.ops.packed import pack, unpack
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES, PtxType

_INTEGER_ROUNDING: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_ROUNDING = ("rn", "rz", "rm", "rp", "rna")
_FP8 = ("e4m3x2", "e5m2x2")


def round_float(values: Any, dtype: Any, mode: str) -> Any:
    """Floats to a narrower (or the same) float type, rounded as ``mode`` says."""
    nearest = values.astype(dtype)
    if mode in ("rn", "rna"):
        return nearest
    back = nearest.astype(values.dtype)
    if mode == "rm":
        return np.where(back > values, np.nextafter(nearest, dtype.type(-np.inf)), nearest)
    if mode == "rp":
        return np.where(back < values, np.nextafter(nearest, dtype.type(np.inf)), nearest)
    return np.where(np.abs(back) > np.abs(values), np.nextafter(nearest, dtype.type(0)), nearest)


@op("cvt")
def _convert(d: Decoder, i: Instruction) -> Step:
    if i.mods[:1] == ("pack",):
        return _convert_pack(d, i)
    d.allow(i, *_ROUNDING, *_INTEGER_ROUNDING, "ftz", "sat", "satfinite", "relu")
    to, source = d.types(i, 2)[-2:]
    mode = next((m for m in i.mods if m in _ROUNDING), "")
    if to.name in ("f16x2", "bf16x2", *_FP8) or source.name in _FP8:
        return _convert_pair(d, i, to, source, mode)
    operands = d.args(i, 2)
    if to.name == "tf32":
        put, value = d.alu_put(i, operands[0], TYPES["b32"]), d.alu(i, operands[1], TYPES["f32"])
        relu = "relu" in i.mods
        return lambda x: put(x, tf32_bits(np.maximum(value(x), 0) if relu else value(x), mode or "rn"))
    to_float = to.kind == "f" or to.name == "bf16"
    from_float = source.kind == "f" or source.name == "bf16"
    value = _read(d, i, source)
    if to.kind == "b" and to.name != "bf16":
        raise d.malformed(i, f"no conversion to .{to.name}")
    put = d.alu_put(i, operands[0], TYPES["b16"] if to.name == "bf16" else to)
    function: Any
    if to_float and from_float:
        function = _float_to_float(i, to, mode)
    elif from_float:
        function = _float_to_int(d, i, to)
    elif to_float:
        function = _int_to_float(to, mode or "rn", "sat" in i.mods)
    elif "sat" in i.mods:
        limits = np.iinfo(to.dtype)

        def function(v: Any) -> Any:
            low = v.dtype.type(max(limits.min, np.iinfo(v.dtype).min))
            high = v.dtype.type(min(limits.max, np.iinfo(v.dtype).max))
            return np.clip(v, low, high).astype(to.dtype)
    else:

        def function(v: Any) -> Any:
            # astype copies even when the type stays: two registers must not share an array.
            return v.astype(to.dtype)

    return lambda x: put(x, function(value(x)))


def _read(d: Decoder, i: Instruction, kind: PtxType) -> Source:
    """A source; bf16 comes as fp32."""
    if kind.name == "bf16":
        bits = d.alu(i, i.operands[1], TYPES["b16"])
        return lambda x: bf16_values(bits(x))
    return d.alu(i, i.operands[1], kind)


def _float_to_float(i: Instruction, to: PtxType, mode: str) -> Any:
    to_integer = next((f for name, f in _INTEGER_ROUNDING.items() if name in i.mods), None)
    ftz, sat, relu = "ftz" in i.mods, "sat" in i.mods, "relu" in i.mods
    finite = "satfinite" in i.mods
    plain = not (ftz or sat or relu or finite or to_integer) and to.name != "bf16"
    if plain and mode in ("", "rn"):
        return lambda v: v.astype(to.dtype)

    def run(v: Any) -> Any:
        if ftz:
            v = flush(v)
        if to_integer is not None:
            v = to_integer(v)
        if relu:
            v = np.where(v < 0, v.dtype.type(0), v)
        if sat:
            v = saturate_unit(v)
        if finite:
            largest = 65504.0 if to.name == "f16" else 3.3895313892515355e38
            v = np.clip(v, -largest, largest).astype(v.dtype)
        if to.name == "bf16":
            return bf16_bits(v, mode or "rn")
        result = round_float(v, to.dtype, mode or "rn")
        return flush(result) if ftz else result

    return run


def _float_to_int(d: Decoder, i: Instruction, to: PtxType) -> Any:
    """Rounded to a whole number and clamped to the type's range; NaN gives 0."""
    rounding = next((f for name, f in _INTEGER_ROUNDING.items() if name in i.mods), None)
    if rounding is None:
        raise d.malformed(i, "a conversion to an integer needs .rni, .rzi, .rmi or .rpi")
    limits = np.iinfo(to.dtype)
    ftz = "ftz" in i.mods
    # 2^bits is a float64, limits.max of 64 bits is not: compare with the first value that is too large.
    too_large = float(limits.max) if to.bits < 64 else float(2 ** (to.bits - (to.kind == "s")))

    def run(v: Any) -> Any:
        whole = rounding((flush(v) if ftz else v).astype(np.float64))
        whole = np.where(np.isnan(whole), 0.0, whole)
        high = whole >= too_large
        low = whole <= float(limits.min)
        inside = np.where(high | low, 0.0, whole).astype(to.dtype)
        return np.where(high, to.dtype.type(limits.max), np.where(low, to.dtype.type(limits.min), inside))

    return run


def _int_to_float(to: PtxType, mode: str, sat: bool) -> Any:
    def run(v: Any) -> Any:
        if to.name == "bf16":
            result = bf16_bits(v.astype(np.float64), mode)
        elif to.bits == 16:
            result = round_float(v.astype(np.float64), to.dtype, mode)
        elif mode == "rn":
            result = v.astype(to.dtype)
        else:
            exact = np.float64 if v.dtype.itemsize < 8 else np.longdouble
            result = round_float(v.astype(exact), to.dtype, mode)
        return saturate_unit(result) if sat else result

    return run


def _convert_pair(d: Decoder, i: Instruction, to: PtxType, source: PtxType, mode: str) -> Step:
    """Two values at once: ``cvt.rn.f16x2.f32 d, a, b`` puts a in the upper half and b in the lower."""
    put = d.alu_put(i, i.operands[0], TYPES[f"b{to.bits}"])
    relu = "relu" in i.mods
    finite = "satfinite" in i.mods
    read: Any
    if source.name == "f32":
        operands = d.args(i, 3)
        upper, lower = d.alu(i, operands[1], source), d.alu(i, operands[2], source)

        def read(x: Active) -> Any:
            return np.stack(np.broadcast_arrays(lower(x), upper(x)), axis=-1)

    elif source.name in ("f16x2", "bf16x2"):
        bits = d.alu(i, d.args(i, 2)[1], TYPES["b32"])

        def read(x: Active) -> Any:
            return unpack(bits(x), source)

    elif source.name in _FP8:
        packed_bytes = d.alu(i, d.args(i, 2)[1], TYPES["b16"])

        def read(x: Active) -> Any:
            codes = np.ascontiguousarray(packed_bytes(x)).view(np.uint8).reshape(-1, 2)
            return fp8_values(codes, source.name[:4])

    else:
        raise d.unsupported(i)

    def run(x: Active) -> None:
        values = read(x)
        if relu:
            values = np.where(values < 0, values.dtype.type(0), values)
        if to.name in _FP8:
            put(x, fp8_bits(values, to.name[:4]).reshape(-1).view(np.uint16))
            return
        if finite:
            largest = 65504.0 if to.name == "f16x2" else 3.3895313892515355e38
            values = np.clip(values, -largest, largest).astype(values.dtype)
        if mode == "rz" and to.name == "bf16x2":
            put(x, bf16_bits(values, "rz").reshape(-1).view(np.uint32))
        elif mode == "rz":
            put(x, np.ascontiguousarray(round_float(values, np.dtype(np.float16), "rz")).reshape(-1).view(np.uint32))
        else:
            put(x, pack(values, to))

    return run


def _convert_pack(d: Decoder, i: Instruction) -> Step:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c``: two saturated values below the shifted lower part of c."""
    d.allow(i, "pack", "sat")
    kinds = d.types(i, 2)
    to, source = kinds[0], kinds[1]
    operands = d.args(i, 3, 4)
    put = d.alu_put(i, operands[0], TYPES["b32"])
    a, b = d.alu(i, operands[1], source), d.alu(i, operands[2], source)
    c = d.alu(i, operands[3], TYPES["b32"]) if len(operands) == 4 else None
    limits = np.iinfo(to.dtype)
    if to.bits not in (8, 16):
        raise d.unsupported(i)

    def run(x: Active) -> None:
        high, low = (np.clip(v.astype(np.int64), limits.min, limits.max) & ((1 << to.bits) - 1) for v in (a(x), b(x)))
        result = (high << to.bits) | low
        if c is not None:
            result = result | (c(x).astype(np.int64) << (2 * to.bits))
        put(x, (result & 0xFFFFFFFF).astype(np.uint32))

    return run


@op("cvta")
def _convert_address(d: Decoder, i: Instruction) -> Step:
    """Between a state space's own addresses and generic ones; global and const are the same in both."""
    d.allow(i, "to", "global", "shared", "shared::cta", "local", "const", "param", "param::entry")
    kind = d.types(i)[-1]
    dest, source = d.args(i, 2)
    put, value = d.alu_put(i, dest, kind), d.alu(i, source, kind)
    space = next((m for m in i.mods if m.partition("::")[0] in ("shared", "local")), "")
    if not space or kind.bits != 64:
        return lambda x: put(x, value(x).copy())
    window = np.uint64(SHARED_WINDOW if space.startswith("shared") else LOCAL_WINDOW)
    if "to" in i.mods:
        return lambda x: put(x, value(x) - window)
    return lambda x: put(x, value(x) + window)


@op("isspacep")
def _is_space(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "global", "shared", "shared::cta", "local", "const", "param")
    dest, source = d.args(i, 2)
    put, value = d.alu_put(i, dest, TYPES["pred"]), d.alu(i, source, TYPES["u64"])
    space = (i.mods[0] if i.mods else "").partition("::")[0]

    def run(x: Active) -> None:
        window = value(x) >> np.uint64(56)
        if space == "shared":
            put(x, window == 1)
        elif space == "local":
            put(x, window == 2)
        elif space == "global":
            put(x, window == 0)
        else:
            put(x, np.zeros(window.shape, np.bool_))

    return run
