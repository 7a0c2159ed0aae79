"""Branches, calls, returns, exit and trap: what moves program counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.registry import Step
from attnprof.emulator.ops.syscalls import system_call
from attnprof.emulator.program import Group, Instruction, Register, Symbol, function_address
from attnprof.emulator.types import TYPES

if TYPE_CHECKING:
    from attnprof.emulator.link import Code


def decode_control(d: Decoder, i: Instruction, function_start: int, pc: int) -> Step:
    """A step that returns the groups that go on, each at its program counter."""
    if i.op == "bra":
        return _branch(d, i, function_start, pc)
    action: Step
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
        return action
    guard = d.lane(i, i.guard, TYPES["pred"])

    def run(x: Active) -> object:
        keep = guard(x).view(np.bool_)
        if keep.all():
            return action(x)
        if not keep.any():
            x.pc += 1
            return [x]
        x.wave.diverged(x, keep)
        went = action(x.subset(keep))
        return [x.subset(~keep, x.pc + 1), *(went if isinstance(went, list) else [])]

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
    target = operands.pop(0) if operands else None
    given: tuple[Any, ...] = ()
    if operands and isinstance(operands[0], Group):
        given, operands = operands[0].items, operands[1:]
    slots = [s.name if isinstance(s, Symbol) else "" for s in (*given, *returned)]
    if not all(d.layout.param_slot(s) for s in slots):
        raise d.malformed(i, "its arguments must be .param variables")
    ins, outs = slots[: len(given)], slots[len(given) :]
    if isinstance(target, Register) and len(operands) == 1:
        return _indirect_call(d, i, target, ins, outs)
    if not isinstance(target, Symbol) or operands:
        raise d.malformed(i, "no function to call")
    code = d.layout.codes.get(target.name)
    if code is None:
        system = system_call(d, i, target.name, ins, outs)
        if system is None:
            raise d.malformed(i, f"{target.name} is not defined")
        return system
    bound = _bind(code, ins, outs)
    if bound is None:
        takes, gives = len(code.function.params), len(code.function.returns)
        raise d.malformed(i, f"{target.name} takes {takes} parameters and returns {gives}")
    return lambda x: [x.wave.enter(x, code, *bound)]


Copies = list[tuple[str, str, int]]


def _bind(code: Code, ins: list[str], outs: list[str]) -> tuple[Copies, Copies] | None:
    """Which parameter goes where, or None if their numbers differ."""
    function = code.function
    if len(ins) != len(function.params) or len(outs) != len(function.returns):
        return None
    return (
        [(slot, p.name, p.size) for slot, p in zip(ins, function.params, strict=True)],
        [(slot, p.name, p.size) for slot, p in zip(outs, function.returns, strict=True)],
    )


def _indirect_call(d: Decoder, i: Instruction, target: Register, ins: list[str], outs: list[str]) -> Any:
    """Lanes whose pointers differ call one function after another."""
    pointer = d.lane(i, target, TYPES["u64"])
    module = d.layout.module
    codes = {function_address(module, name): code for name, code in d.layout.codes.items()}

    def run(x: Active) -> list[Active]:
        addresses = pointer(x)
        goes_on: list[Active] = []
        for address in np.unique(addresses):
            code = codes.get(int(address))
            bound = None if code is None else _bind(code, ins, outs)
            here = x.subset(addresses == address)
            if code is None or bound is None:
                raise x.wave.stop(here, f"calls through {int(address):#x}, which is no function of that kind")
            goes_on.append(x.wave.enter(here, code, *bound))
        return goes_on

    return run


def _return(x: Active) -> list[Active]:
    return x.wave.leave(x)


def _exit(x: Active) -> list[Active]:
    x.wave.retire(x)
    return []


def _trap(x: Active) -> list[Active]:
    raise x.wave.trap(x)
