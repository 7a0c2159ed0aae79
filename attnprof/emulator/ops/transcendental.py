"""The special-function unit and its exact counterparts: rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh.

The approximations are computed to fp32 accuracy or better, within the error bounds that the PTX ISA gives for the
hardware (at most 2^-22 relative for ex2, 1 ulp for rcp).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops import packed
from attnprof.emulator.ops.floating import flush, to_f32
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction

_ONE = np.float64(1)
_WIDE: dict[str, Any] = {
    "rcp": lambda v: _ONE / v,
    "sqrt": np.sqrt,
    "rsqrt": lambda v: _ONE / np.sqrt(v),
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
}
_SINGLE: dict[str, Any] = {"ex2": np.exp2, "tanh": np.tanh}


@op("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _special_function(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "approx", "ftz", "rn", "rz", "rm", "rp")
    kind = d.types(i)[-1]
    if kind.name in ("f16", "f16x2", "bf16", "bf16x2"):
        return packed.decode_unary(d, i, _SINGLE.get(i.op) or _WIDE[i.op])
    if kind.kind != "f":
        raise d.malformed(i, f"no .{kind.name} form")
    dest, a = d.args(i, 2)
    put, value = d.alu_put(i, dest, kind), d.alu(i, a, kind)
    ftz = "ftz" in i.mods
    single = kind.name == "f32"
    mode = next((m for m in i.mods if m in ("rz", "rm", "rp")), "rn")
    function = _SINGLE.get(i.op)

    def run(x: Active) -> None:
        v = value(x)
        if ftz:
            v = flush(v)
        if not single:
            result = (function or _WIDE[i.op])(v)
        elif function is not None:
            result = function(v)
        else:
            result = to_f32(_WIDE[i.op](v.astype(np.float64)), mode)
        put(x, flush(result) if ftz else result)

    return run
