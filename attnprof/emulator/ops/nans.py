"""Finds the instruction that makes a NaN out of numbers, where that NaN goes on to matter.

∞ − ∞ in a comparison, or a NaN that ``max`` or a selection discards, is how kernels handle rows without keys, so a
birth alone is no fault: it becomes one when arithmetic, a conversion, a tensor-core product or a store takes the NaN.
Moves, selections, ``min`` and ``max`` pass it on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.lanes import WARP, Active, Lanes
from attnprof.emulator.ops.registry import CollectiveStep, Step
from attnprof.emulator.program import Immediate, Instruction, Register, Vector
from attnprof.emulator.types import TYPES

_ARITHMETIC = ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
_PASSES_ON = ("mov", "selp", "neg", "abs", "min", "max", "copysign")
_FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
# Where a NaN's bits begin, sign aside: above infinity.
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}

Flags = NDArray[np.bool_]


def is_nan(bits: Any, kind: str) -> Flags:
    """Which bit patterns of a float type are NaN; for a pair, either half."""
    if kind.endswith("x2"):
        halves = np.ascontiguousarray(bits).view(np.uint16).reshape(-1, 2)
        return np.asarray(is_nan(halves, kind[:-2]).any(axis=1))
    infinity = bits.dtype.type(_INFINITY[kind])
    magnitude = bits & bits.dtype.type((1 << (8 * bits.dtype.itemsize - 1)) - 1)
    flags: Flags = magnitude > infinity
    return flags


def watch_nans(i: Instruction, step: Step) -> Step:
    """The step with the watch for NaNs around it, where its kind calls for one."""
    if i.op in ("mma", "wmma"):
        return _watch_matrix(i, step)
    kinds = [m for m in i.mods if m in TYPES]
    if not kinds or not i.operands:
        return step
    if i.op == "st":
        return _watch_store(i, step, kinds[-1])
    dest = i.operands[0]
    if not isinstance(dest, Register):
        return step
    sources = [o for o in i.operands[1:] if isinstance(o, Register) and o.type.kind != "p"]
    if i.op == "cvt" and kinds[-1] in _FLOATS and kinds[0] in _FLOATS:
        return _watch_arithmetic(step, dest, sources, kinds[0], kinds[-1])
    if any(isinstance(o, Immediate) and _constant_nan(o) for o in i.operands):
        return step
    if i.op in _ARITHMETIC and kinds[-1] in _FLOATS:
        return _watch_arithmetic(step, dest, sources, kinds[-1], kinds[-1])
    if i.op in _PASSES_ON and dest.type.bits in (32, 64):
        return _watch_move(step, dest, sources)
    return step


def _bits(x: Active, register: Register, kind: str) -> Any:
    r = x.regs[register.index]
    values = r if x.lanes is None else r[x.lanes]
    width = TYPES[kind].storage
    return values if values.dtype == width else values.astype(width)


def _watch_arithmetic(step: Step, dest: Register, sources: list[Register], to: str, source: str) -> Step:
    def run(x: Active) -> None:
        before = [is_nan(_bits(x, s, source), source) for s in sources]
        step(x)
        after = is_nan(_bits(x, dest, to), to)
        checks = x.wave.checks
        if checks is None or not after.any():
            return
        lanes = x.lane_ids()
        born = after
        for register, flags in zip(sources, before, strict=True):
            taken = flags & after
            if taken.any():
                _matters(x, register, lanes[taken])
                born = born & ~flags
        if born.any():
            checks.births.born(x, dest.index, lanes[born], x.pc)

    return run


def _watch_move(step: Step, dest: Register, sources: list[Register]) -> Step:
    kind = "f32" if dest.type.bits == 32 else "f64"

    def run(x: Active) -> None:
        checks = x.wave.checks
        known = checks is not None and any((x.frame, s.index) in checks.births.table for s in sources)
        origins: list[tuple[int, Lanes]] = []
        if checks is not None and known:
            for source in sources:
                flags = is_nan(_bits(x, source, kind), kind) if source.type.bits == dest.type.bits else None
                if flags is not None and flags.any():
                    origin = checks.births.of(x, source.index, x.lane_ids()[flags])
                    if origin is not None:
                        origins.append(origin)
        step(x)
        if checks is None or not origins:
            return
        after = np.zeros(x.wave.size, np.bool_)
        after[x.lane_ids()] = is_nan(_bits(x, dest, kind), kind)
        for pc, lanes in origins:
            kept = lanes[after[lanes]]
            if kept.size:
                checks.births.born(x, dest.index, kept, pc)

    return run


def _watch_store(i: Instruction, step: Step, kind: str) -> Step:
    values = i.operands[-1].items if isinstance(i.operands[-1], Vector) else (i.operands[-1],)
    width = TYPES[kind].bits
    view = {32: "f32", 64: "f64", 16: "f16"}.get(width)
    registers = [v for v in values if isinstance(v, Register) and v.type.bits == width]
    if view is None:
        return step

    def run(x: Active) -> None:
        for register in registers:
            checks = x.wave.checks
            if checks is not None and (x.frame, register.index) in checks.births.table:
                flags = is_nan(_bits(x, register, view), view)
                if flags.any():
                    _matters(x, register, x.lane_ids()[flags])
        step(x)

    return run


def _watch_matrix(i: Instruction, step: Step) -> Step:
    """A product that has a NaN in it though no operand of the warp had one."""
    kinds = [m for m in i.mods if m in _FLOATS or m in ("tf32", "e4m3", "e5m2", "s32", "s8", "u8")]
    if len(kinds) < 2 or kinds[0] not in ("f32", "f16") or not isinstance(step, CollectiveStep):
        return step
    acc = kinds[-1]
    left = kinds[1] if len(kinds) == 4 else "f16"
    if len(i.operands) != 4:
        return step
    dest, a, b, c = ([r for r in _items(o) if isinstance(r, Register)] for o in i.operands)

    def any_nan(x: Active, registers: list[Register], kind: str) -> Flags:
        flags = np.zeros(x.n, np.bool_)
        view = {"f16": "f16x2", "bf16": "bf16x2", "f32": "f32", "tf32": "f32"}.get(kind)
        if view is not None:
            for register in registers:
                flags |= is_nan(_bits(x, register, view), view)
        return np.asarray(flags.reshape(-1, WARP).any(axis=1))

    def run(x: Active) -> None:
        whole = x.full_warps
        before = None
        if whole:
            before = any_nan(x, a, left) | any_nan(x, b, left) | any_nan(x, c, acc)
        step.run(x)
        if before is None or x.wave.checks is None:
            return
        born = any_nan(x, dest, kinds[0]) & ~before
        if born.any():
            x.wave.checks.nan_born(x.pc, x.lane_ids()[np.repeat(born, WARP)])
        for register in c:
            if (x.frame, register.index) in x.wave.checks.births.table and before.any():
                _matters(x, register, x.lane_ids()[np.repeat(before, WARP)])

    return CollectiveStep(run, step.members)


def _constant_nan(operand: Immediate) -> bool:
    kind = {32: "f32", 64: "f64"}.get(operand.bits)
    return kind is not None and bool(is_nan(np.array([operand.value], TYPES[kind].storage), kind)[0])


def _items(operand: object) -> tuple[object, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _matters(x: Active, register: Register, lanes: Lanes) -> None:
    checks = x.wave.checks
    if checks is None:
        return
    origin = checks.births.of(x, register.index, lanes)
    if origin is not None:
        pc, where = origin
        checks.nan_born(pc, where)
