"""From a parsed module to code that runs: memory layout, reachable functions, decoded instructions.

All functions that a kernel can reach share one flat list of steps, so that a program counter is one integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from attnprof.emulator.decoder import Decoder, Watch
from attnprof.emulator.errors import PtxError
from attnprof.emulator.memory import PARAM_SLOT, padded, slot_base
from attnprof.emulator.ops import decode
from attnprof.emulator.ops.registry import Flow
from attnprof.emulator.program import (
    Address,
    Function,
    Group,
    Instruction,
    Module,
    Symbol,
    Variable,
    Vector,
    function_address,
)

MAX_PARAM_BYTES = 32764  # PTX ISA 8.1: kernel parameters


@dataclass(slots=True)
class Code:
    """One function's place in the flat program."""

    function: Function
    start: int
    local_bytes: int
    param_sizes: dict[str, int]


@dataclass(slots=True)
class Layout:
    """Where symbols are: module variables, the kernel's shared memory, a function's stack and parameters."""

    module: Module
    entry: Function
    global_slots: dict[str, int]
    shared: dict[str, int]
    static_smem_bytes: int
    function: Function
    local: dict[str, int] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)

    def symbol(self, name: str) -> tuple[str, int] | None:
        """(space, address) of a symbol, or None."""
        if name in self.local:
            return "local", self.local[name]
        if name in self.shared:
            return "shared", self.shared[name]
        if name in self.global_slots:
            return self.module.variables[name].space, slot_base(self.global_slots[name])
        if name in self.module.functions:
            return "function", function_address(self.module, name)
        if self.function is self.entry and name in self.entry.param_offsets and name:
            return "param", slot_base(PARAM_SLOT) + self.entry.param_offsets[name]
        return None

    def param_slot(self, name: str) -> bool:
        """Whether the name is a parameter of a call: of this device function, or declared in the body."""
        return name in self.codes[self.function.name].param_sizes


@dataclass(slots=True)
class Program:
    """A kernel ready to run.

    Attributes:
        steps: one closure an instruction; ``flows`` says how the scheduler must treat each.
        instructions: the instruction of each step.
    """

    entry: Function
    layout: Layout
    codes: dict[str, Code]
    steps: list[Callable[..., object]]
    flows: list[Flow]
    instructions: list[Instruction]
    static_smem_bytes: int
    param_offsets: dict[str, int]


def link(module: Module, entry: str, watch: Watch) -> Program:
    """Decode a kernel and everything that it calls.

    Raises:
        PtxError: no such kernel, a malformed instruction, or a symbol that is not defined.
        UnsupportedPtx: an instruction that the emulator does not execute.
    """
    function = module.functions.get(entry)
    if function is None or not function.entry:
        kernels = ", ".join(f.name for f in module.functions.values() if f.entry) or "none"
        raise PtxError(f"no kernel {entry} in the PTX", f"it has: {kernels}")
    reachable = _reachable(module, function)
    shared, static_smem = _shared_layout(module, reachable)
    slots = {name: 1 + at for at, (name, v) in enumerate(module.variables.items()) if v.space in ("global", "const")}
    layout = Layout(module, function, slots, shared, static_smem, function)
    program = Program(function, layout, layout.codes, [], [], [], static_smem, function.param_offsets)
    if program.param_offsets[""] > MAX_PARAM_BYTES:
        raise PtxError(f"{entry} takes {program.param_offsets['']} bytes of parameters")
    at = 0
    for f in reachable:
        params = {v.name: v.size for v in f.variables.values() if v.space == "param"}
        if not f.entry:
            params |= {v.name: v.size for v in (*f.params, *f.returns)}
        local_bytes = _local_layout(f)[1]
        layout.codes[f.name] = Code(f, at, local_bytes, params)
        at += len(f.instructions) + 1
    for f in reachable:
        _decode_function(program, layout, f, watch)
    return program


def _decode_function(program: Program, layout: Layout, function: Function, watch: Watch) -> None:
    layout.function = function
    layout.local = _local_layout(function)[0]
    decoder = Decoder(layout, watch)
    start = layout.codes[function.name].start
    # A body that ends without ret returns all the same.
    last = function.instructions[-1].position if function.instructions else None
    if last is None:
        raise PtxError(f"{function.name} has no instructions")
    for offset, i in enumerate((*function.instructions, Instruction("ret", (), (), last))):
        try:
            step, flow = decode(decoder, i, start, start + offset)
        except (IndexError, KeyError, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise decoder.malformed(i, f"operands that make no sense ({error})") from error
        program.steps.append(step)
        program.flows.append(flow)
        program.instructions.append(i)


def _reachable(module: Module, entry: Function) -> list[Function]:
    """The kernel, what it calls, and every function whose address it or a variable holds."""
    found = [entry]
    names = {name for variable in module.variables.values() for _, name in variable.addresses}
    for function in found:
        names |= _symbols(function)
        for name in sorted(names):
            callee = module.functions.get(name)
            if callee is not None and callee.defined and callee not in found:
                found.append(callee)
        names = set()
    return found


def _symbols(function: Function) -> set[str]:
    names: set[str] = set()

    def visit(operand: object) -> None:
        if isinstance(operand, Symbol):
            names.add(operand.name)
        elif isinstance(operand, Address):
            visit(operand.base)
        elif isinstance(operand, (Vector, Group)):
            for item in operand.items:
                visit(item)

    for i in function.instructions:
        for operand in i.operands:
            visit(operand)
    return names


def _shared_layout(module: Module, functions: list[Function]) -> tuple[dict[str, int], int]:
    """Static variables one after another as their alignment asks; every extern array starts after them."""
    used = set().union(*(_symbols(f) for f in functions))
    variables: list[Variable] = [v for v in module.variables.values() if v.space == "shared" and v.name in used]
    variables += [v for f in functions for v in f.variables.values() if v.space == "shared"]
    offsets: dict[str, int] = {}
    at = 0
    for variable in variables:
        if not variable.extern:
            at = padded(at, variable.align)
            offsets[variable.name] = at
            at += variable.size
    for variable in variables:
        if variable.extern:
            offsets[variable.name] = padded(at, max(16, variable.align))
    if any(v.extern for v in variables):
        at = padded(at, max(16, *(v.align for v in variables if v.extern)))
    return offsets, at


def _local_layout(function: Function) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    at = 0
    for variable in function.variables.values():
        if variable.space == "local":
            at = padded(at, variable.align)
            offsets[variable.name] = at
            at += variable.size
    return offsets, padded(at)
