"""Comparison and selection: setp, set, selp and slct."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder, Source
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops import packed
from attnprof.emulator.ops.floating import flush
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES, PtxType

_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@op("selp")
def _select(d: Decoder, i: Instruction) -> Step:
    d.allow(i)
    kind = d.types(i)[-1]
    dest, a, b, p = d.args(i, 4)
    put, yes, no = d.alu_put(i, dest, kind), d.alu(i, a, kind), d.alu(i, b, kind)
    predicate = d.alu(i, p, TYPES["pred"])
    return lambda x: put(x, np.where(predicate(x), yes(x), no(x)))


@op("slct")
def _select_sign(d: Decoder, i: Instruction) -> Step:
    """D = c >= 0 ? a : b; a NaN chooses b."""
    d.allow(i, "ftz")
    kind, sign_kind = d.types(i, 2)[:2]
    dest, a, b, c = d.args(i, 4)
    put, yes, no = d.alu_put(i, dest, kind), d.alu(i, a, kind), d.alu(i, b, kind)
    sign: Source = d.alu(i, c, sign_kind)
    return lambda x: put(x, np.where(sign(x) >= 0, yes(x), no(x)))


_COMPARE: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
# Ordered comparisons are false for a NaN, unordered ones true: each is the negation of the opposite ordered one.
_UNORDERED: dict[str, Any] = {
    "equ": lambda a, b: (a == b) | np.isnan(a) | np.isnan(b),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


def comparison(d: Decoder, i: Instruction, kind: PtxType) -> Any:
    """The comparison that the instruction names, for values of a type."""
    for mod in i.mods:
        is_float = kind.kind == "f" or kind.name in ("bf16", "bf16x2", "f16x2")
        if is_float and mod in _UNORDERED:
            return _UNORDERED[mod]
        if is_float and mod == "ne":  # ordered: false for a NaN, which NumPy's != is not
            return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
        if mod in _COMPARE:
            return _COMPARE[mod]
    raise d.malformed(i, "no comparison")


_SETP_MODS = (*_COMPARE, *_UNORDERED, "and", "or", "xor", "ftz")


@op("setp")
def _set_predicate(d: Decoder, i: Instruction) -> Step:
    d.allow(i, *_SETP_MODS)
    kind = d.types(i)[-1]
    compare = comparison(d, i, kind)
    operands = d.args(i, 3, 4)
    pred = TYPES["pred"]
    first, second = d.pair(operands[0])
    put = d.alu_put(i, first, pred)
    put_other = None if second is None else d.alu_put(i, second, pred)
    left, right = (packed.compare_source(d, i, v, kind) for v in operands[1:3])
    combine = next((_COMBINE[m] for m in i.mods if m in _COMBINE), None)
    if (combine is None) != (len(operands) == 3):
        raise d.malformed(i, "a boolean operator and a third source go together")
    extra = None if combine is None else d.alu(i, operands[3], pred)
    if kind.name in ("f16x2", "bf16x2"):
        if put_other is None:
            raise d.malformed(i, "a packed comparison needs two destinations")
        put_high = put_other

        def both(x: Active) -> None:
            result = compare(left(x), right(x))
            for at, dest in ((0, put), (1, put_high)):
                part = result[..., at].copy()
                dest(x, part if combine is None or extra is None else combine(part, extra(x)))

        return both
    ftz = "ftz" in i.mods

    def run(x: Active) -> None:
        a, b = left(x), right(x)
        result = compare(flush(a), flush(b)) if ftz else compare(a, b)
        put(x, result if combine is None or extra is None else combine(result, extra(x)))
        if put_other is not None:
            opposite = ~result
            put_other(x, opposite if combine is None or extra is None else combine(opposite, extra(x)))

    return run


@op("set")
def _set(d: Decoder, i: Instruction) -> Step:
    """Like setp, with a register of all ones or 1.0 as the result."""
    d.allow(i, *_SETP_MODS)
    result_kind, kind = d.types(i, 2)[:2]
    compare = comparison(d, i, kind)
    operands = d.args(i, 3, 4)
    put = d.alu_put(i, operands[0], result_kind)
    left, right = (packed.compare_source(d, i, v, kind) for v in operands[1:3])
    combine = next((_COMBINE[m] for m in i.mods if m in _COMBINE), None)
    if (combine is None) != (len(operands) == 3):
        raise d.malformed(i, "a boolean operator and a third source go together")
    extra = None if combine is None else d.alu(i, operands[3], TYPES["pred"])
    ones = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}
    half = result_kind.name in ("f16x2", "bf16x2") or kind.name in ("f16x2", "bf16x2")
    width = np.dtype(np.uint16) if half else result_kind.storage
    true = width.type(ones.get(result_kind.name, (1 << 8 * width.itemsize) - 1))

    def run(x: Active) -> None:
        result = compare(left(x), right(x))
        if combine is not None and extra is not None:
            other = extra(x)
            result = combine(result, other[:, None] if half else other)
        bits = np.where(result, true, width.type(0))
        put(x, bits.reshape(-1).view(result_kind.storage) if half else bits)

    return run
