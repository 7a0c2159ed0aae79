"""Branches, calls, returns, exit and trap: what moves program counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.registry import Step
from attnprof.emulator.program import Group, Instruction, Symbol
from attnprof.emulator.types import TYPES


def decode_control(d: Decoder, i: Instruction, function_start: int, pc: int) -> Step:
    """A step that returns the groups that go on, each at its program counter."""
    if i.op == "bra":
        return _branch(d, i, function_start, pc)
    action: Any
    if i.op == "brx":
        action = _indexed_branch(d, i, function_start)
    elif i.op == "call":
        action = _call(d, i)
    elif i.op == "trap":
        action = _trap
    elif i.op == "ret":
        action = _return
    else:
        action = _exit
    if i.guard is None:
        return action  # type: ignore[no-any-return]
    guard = d.lane(i, i.guard, TYPES["pred"])

    def run(x: Active) -> list[Active]:
        keep = guard(x).view(np.bool_)
        if keep.all():
            return action(x)  # type: ignore[no-any-return]
        if not keep.any():
            x.pc += 1
            return [x]
        x.wave.diverged(x, keep)
        return [x.subset(~keep, x.pc + 1), *action(x.subset(keep))]

    return run


def _branch(d: Decoder, i: Instruction, function_start: int, pc: int) -> Step:
    d.allow(i, "uni")
    if i.target is None:
        raise d.malformed(i, "its target is unknown")
    target = function_start + i.target
    if i.guard is None:

        def jump(x: Active) -> list[Active]:
            x.pc = target
            return [x]

        return jump
    guard = d.lane(i, i.guard, TYPES["pred"])

    def run(x: Active) -> list[Active]:
        taken = guard(x).view(np.bool_)
        count = int(np.count_nonzero(taken))
        if count == taken.size:
            x.pc = target
            return [x]
        if not count:
            x.pc = pc + 1
            return [x]
        x.wave.diverged(x, taken)
        return [x.subset(~taken, pc + 1), x.subset(taken, target)]

    return run


def _indexed_branch(d: Decoder, i: Instruction, function_start: int) -> Any:
    """brx.idx: the index chooses among the targets; past their end anything may happen, here a fault."""
    d.allow(i, "idx", "uni")
    if not i.targets:
        raise d.malformed(i, "its targets are unknown")
    index, _table = d.args(i, 2)
    value = d.lane(i, index, TYPES["u32"])
    targets = [function_start + t for t in i.targets]

    def run(x: Active) -> list[Active]:
        chosen = np.broadcast_to(value(x), (x.n,))
        if int(chosen.max()) >= len(targets):
            raise x.wave.stop(x, f"brx index {int(chosen.max())} of {len(targets)} targets")
        distinct = np.unique(chosen)
        if distinct.size == 1:
            x.pc = targets[int(distinct[0])]
            return [x]
        x.wave.diverged(x, chosen == distinct[0])
        return [x.subset(chosen == which, targets[int(which)]) for which in distinct]

    return run


def _call(d: Decoder, i: Instruction) -> Any:
    d.allow(i, "uni")
    operands = list(i.operands)
    returned: tuple[Any, ...] = ()
    if operands and isinstance(operands[0], Group):
        returned, operands = operands[0].items, operands[1:]
    name = operands.pop(0) if operands else None
    if not isinstance(name, Symbol):
        raise d.unsupported(i, "a call through a pointer")
    given: tuple[Any, ...] = ()
    if operands and isinstance(operands[0], Group):
        given, operands = operands[0].items, operands[1:]
    if operands:
        raise d.unsupported(i, "a call through a pointer")
    code = d.layout.codes.get(name.name)
    if code is None:
        if name.name in ("vprintf", "__assertfail", "malloc", "free"):
            raise d.unsupported(i, f"the system call {name.name}")
        raise d.malformed(i, f"{name.name} is not defined")
    function = code.function
    if len(given) != len(function.params) or len(returned) != len(function.returns):
        raise d.malformed(i, f"{name.name} takes {len(function.params)} parameters and returns {len(function.returns)}")
    slots = [s.name if isinstance(s, Symbol) else "" for s in (*given, *returned)]
    if not all(d.layout.param_slot(s) for s in slots):
        raise d.malformed(i, "its arguments must be .param variables")
    copies_in = [(slot, p.name, p.size) for slot, p in zip(slots, function.params, strict=False)]
    copies_out = [(slot, p.name, p.size) for slot, p in zip(slots[len(given) :], function.returns, strict=True)]

    def run(x: Active) -> list[Active]:
        return [x.wave.enter(x, code, copies_in, copies_out)]

    return run


def _return(x: Active) -> list[Active]:
    return x.wave.leave(x)


def _exit(x: Active) -> list[Active]:
    x.wave.retire(x)
    return []


def _trap(x: Active) -> list[Active]:
    raise x.wave.trap(x)
