"""Block-wide barriers and memory fences."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.barriers import Arrival
from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.registry import Flow, Step, op
from attnprof.emulator.ops.shuffle import PRED, U32, warp_barrier
from attnprof.emulator.program import Instruction

MAX_BARRIERS = 16


@op("bar", "barrier", flow=Flow.CONTROL)
def _barrier(d: Decoder, i: Instruction) -> Step:
    if i.mods[:1] == ("warp",):
        return warp_barrier(d, i)
    d.allow(i, "cta", "sync", "arrive", "red", "aligned", "popc", "and", "or")
    if "cluster" in i.mods:
        raise d.unsupported(i)
    operands = list(i.operands)
    reduction = next((m for m in i.mods if m in ("popc", "and", "or")), None)
    put = predicate = None
    if "red" in i.mods:
        if reduction is None or len(operands) < 3:
            raise d.malformed(i, f"{len(operands)} operands")
        put = d.lane_put(i, operands.pop(0), U32 if reduction == "popc" else PRED)
        predicate = d.lane(i, operands.pop(), PRED)
    elif reduction is not None:
        raise d.malformed(i, f".{reduction} without .red")
    if not 1 <= len(operands) <= 2:
        raise d.malformed(i, f"{len(i.operands)} operands")
    number = d.lane(i, operands[0], U32)
    count = d.lane(i, operands[1], U32) if len(operands) == 2 else None
    arrive = "arrive" in i.mods
    if arrive and count is None:
        raise d.malformed(i, "bar.arrive needs a thread count")
    guard = None if i.guard is None else d.lane(i, i.guard, PRED)

    def run(x: Active) -> list[Active]:
        goes_on: list[Active] = []
        if guard is not None:
            keep = guard(x).view(np.bool_)
            if not keep.all():
                goes_on.append(x.subset(~keep, x.pc + 1))
                if not keep.any():
                    return goes_on
                x = x.subset(keep)
        ids = np.unique(number(x))
        for which in ids:
            here = x if ids.size == 1 else x.subset(np.broadcast_to(number(x) == which, (x.n,)))
            if int(which) >= MAX_BARRIERS:
                raise x.wave.stop(x, f"barrier {int(which)} does not exist: there are {MAX_BARRIERS}")
            expected = None if count is None else int(count(here)[0])
            flags: Any = None if predicate is None else np.broadcast_to(predicate(here), (here.n,))
            arrival = Arrival(here, int(which), expected, waits=not arrive, put=put, reduction=reduction, flags=flags)
            goes_on += x.wave.barriers.arrive(arrival)
        return goes_on

    return run


@op("membar", "fence")
def _fence(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "cta", "gl", "sys", "gpu", "sc", "acq_rel", "acquire", "release")

    def run(x: Active) -> None:
        if x.wave.checks is not None:
            x.wave.checks.fence(x)

    return run


@op("nanosleep", "pmevent", "brkpt", "setmaxnreg")
def _no_effect(d: Decoder, i: Instruction) -> Step:
    if i.op in ("brkpt", "setmaxnreg"):
        raise d.unsupported(i)
    return lambda _x: None
