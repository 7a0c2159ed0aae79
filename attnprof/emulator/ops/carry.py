"""Extended-precision arithmetic: add.cc, addc, sub.cc, subc, mad.cc and madc, with a carry bit a lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES


def _add(a: Any, b: Any, carry: Any) -> tuple[Any, Any]:
    total = a + b
    with_carry = total + carry
    return with_carry, (total < a) | (with_carry < total)


def _subtract(a: Any, b: Any, borrow: Any) -> tuple[Any, Any]:
    total = a - b
    return total - borrow, (a < b) | ((total == 0) & (borrow != 0))


@op("addc", "subc", "madc")
def decode_carry(d: Decoder, i: Instruction) -> Step:
    """One step of a multi-word sum: takes the carry in (``…c``) and leaves it (``.cc``)."""
    from attnprof.emulator.ops.integer import product_function

    d.allow(i, "cc", "lo", "hi")
    kind = d.types(i)[-1]
    unsigned = TYPES[f"u{kind.bits}"]
    takes, leaves = i.op.endswith("c"), "cc" in i.mods
    operands = d.args(i, 4 if i.op.startswith("mad") else 3)
    put = d.alu_put(i, operands[0], unsigned)
    combine = _subtract if i.op.startswith("sub") else _add
    product = product_function(i, kind) if i.op.startswith("mad") else None
    if i.op.startswith("mad") and product is None:
        raise d.malformed(i, "no .lo or .hi")
    first = d.alu(i, operands[1], kind)
    second = d.alu(i, operands[2], kind)
    third = d.alu(i, operands[3], unsigned) if product is not None else None

    def run(x: Active) -> None:
        carries = x.frame.carry if x.sel is None else x.frame.carry[x.sel]
        carry_in = carries.astype(unsigned.dtype) if takes else np.zeros(1, unsigned.dtype)
        a, b = first(x), second(x)
        if product is not None and third is not None:
            a, b = product(a, b), third(x)
        a, b = np.broadcast_arrays(a, b)
        a, b = (np.ascontiguousarray(v).view(unsigned.dtype) for v in (a, b))
        result, carry = combine(a, b, carry_in)
        put(x, result)
        if leaves:
            if x.sel is None:
                x.frame.carry = np.broadcast_to(carry, x.frame.carry.shape).copy()
            else:
                x.frame.carry[x.sel] = carry

    return run
