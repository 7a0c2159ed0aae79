"""Turns operands into functions that read and write registers; every instruction family builds on these.

Arithmetic reads and writes with ``alu`` and ``alu_put``, at the full width of the wave whenever no other lane lives.
What must not touch dead lanes (memory, warp-wide operations) uses ``lane`` and ``lane_put``: exactly the group's lanes.
Values of constants are arrays of one element, which broadcast.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprof.emulator.errors import PtxError, UnsupportedPtx
from attnprof.emulator.lanes import Active, AnyArray
from attnprof.emulator.program import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from attnprof.emulator.special import special_values
from attnprof.emulator.types import TYPES, PtxType, type_named

if TYPE_CHECKING:
    from attnprof.emulator.link import Layout

_WHOLE = {f"{kind}{bits}" for kind in "usb" for bits in (8, 16, 32, 64)}

Step = Callable[[Active], None]
Source = Callable[[Active], AnyArray]
Put = Callable[[Active, AnyArray], None]


@dataclass(frozen=True, slots=True)
class Watch:
    """What is observed besides the results: each costs time."""

    counts: bool = False
    checks: bool = False
    nans: bool = False


class Decoder:
    """The decoding of one function's instructions under one layout of memory."""

    def __init__(self, layout: Layout, watch: Watch) -> None:
        self.layout = layout
        self.watch = watch

    # -- errors and modifiers ------------------------------------------------------------------------------------

    def malformed(self, i: Instruction, message: str) -> PtxError:
        """An error for an instruction that breaks the language's rules."""
        return PtxError(f"{_at(i)}: {i.opcode}: {message}")

    def unsupported(self, i: Instruction, message: str = "") -> UnsupportedPtx:
        """An error for an instruction that is right but not emulated."""
        return UnsupportedPtx(
            f"{_at(i)}: the emulator does not execute {i.opcode}{message and f': {message}'}",
            "run on a GPU, or report the instruction",
        )

    def allow(self, i: Instruction, *allowed: str) -> None:
        """Refuse any modifier that is neither a type nor one of these: none is ever dropped in silence."""
        for mod in i.mods:
            if mod not in allowed and mod not in TYPES:
                raise self.unsupported(i, f"modifier .{mod}")

    def types(self, i: Instruction, count: int = 1) -> list[PtxType]:
        """The instruction's types, in order; at least ``count`` of them."""
        found = [type_named(mod) for mod in i.mods if mod in TYPES]
        if len(found) < count:
            raise self.malformed(i, "its type is missing")
        return found

    def whole(self, i: Instruction) -> PtxType:
        """The instruction's last type, which must be an integer or plain bits."""
        kind = self.types(i)[-1]
        if kind.name not in _WHOLE:
            raise self.malformed(i, f"no .{kind.name} form")
        return kind

    def args(self, i: Instruction, *counts: int) -> tuple[Operand, ...]:
        """The operands; their number must be one of ``counts``."""
        if len(i.operands) not in counts:
            raise self.malformed(i, f"{len(i.operands)} operands")
        return i.operands

    # -- sources -------------------------------------------------------------------------------------------------

    def alu(self, i: Instruction, operand: Operand, kind: PtxType) -> Source:
        """A source of arithmetic, viewed as ``kind``."""
        return self._source(i, operand, kind, wide=True)

    def lane(self, i: Instruction, operand: Operand, kind: PtxType) -> Source:
        """A source with one value for each of the group's lanes (or one for all)."""
        return self._source(i, operand, kind, wide=False)

    def _source(self, i: Instruction, operand: Operand, kind: PtxType, *, wide: bool) -> Source:
        if isinstance(operand, Register):
            return self._register(i, operand, kind, wide)
        if isinstance(operand, Negated):
            inner = self._register(i, operand.register, kind, wide)
            return lambda x: np.logical_not(inner(x))
        if isinstance(operand, Immediate):
            constant = self._constant(i, operand, kind)
            return lambda _x: constant
        if isinstance(operand, Special):
            return self._special(i, operand.name, kind, wide)
        if isinstance(operand, (Symbol, Address)):
            return self._symbol(i, operand, kind)
        raise self.malformed(i, "an operand of the wrong form")

    def _register(self, i: Instruction, register: Register, kind: PtxType, wide: bool) -> Source:
        index, have = register.index, register.type
        dtype = kind.dtype
        if (have.bits == 1) != (kind.bits == 1):
            raise self.malformed(i, f"{register.name} is a .{have.name}, not a .{kind.name}")
        if have.bits < kind.bits:
            raise self.malformed(i, f"{register.name} has {have.bits} bits, the type .{kind.name} {kind.bits}")
        if have.bits > kind.bits:
            storage = kind.storage

            def narrow(x: Active) -> AnyArray:
                r = x.regs[index]
                s = x.sel if wide else x.lanes
                return (r if s is None else r[s]).astype(storage).view(dtype)

            return narrow
        if wide:

            def read(x: Active) -> AnyArray:
                s = x.sel
                r = x.regs[index]
                return r.view(dtype) if s is None else r[s].view(dtype)

            return read

        def read_lanes(x: Active) -> AnyArray:
            s = x.lanes
            r = x.regs[index]
            return r.view(dtype) if s is None else r[s].view(dtype)

        return read_lanes

    def _constant(self, i: Instruction, operand: Immediate, kind: PtxType) -> AnyArray:
        value = operand.value
        if kind.kind == "p":
            return np.array([bool(value)])
        if operand.bits:
            bits = int(value)
            if operand.bits != kind.bits:
                number = struct.unpack(
                    "<f" if operand.bits == 32 else "<d", bits.to_bytes(operand.bits // 8, "little")
                )[0]
                return self._float_bits(i, number, kind)
        elif kind.kind == "f" and isinstance(value, float):
            return self._float_bits(i, value, kind)
        elif isinstance(value, float):
            raise self.malformed(i, f"{value} is no whole number")
        else:
            bits = int(value)
        masked = bits & ((1 << kind.bits) - 1)
        return np.array([masked], kind.storage).view(kind.dtype)

    def _float_bits(self, i: Instruction, value: float, kind: PtxType) -> AnyArray:
        if kind.kind != "f":
            raise self.malformed(i, f"a floating-point constant where a .{kind.name} is expected")
        with np.errstate(all="ignore"):
            return np.array([value], np.float64).astype(kind.dtype)

    def _special(self, i: Instruction, name: str, kind: PtxType, wide: bool) -> Source:
        values = special_values(name)
        if values is None:
            raise self.unsupported(i, f"the special register {name}")
        storage, dtype = kind.storage, kind.dtype
        if kind.bits == 1:
            raise self.malformed(i, f"{name} is no predicate")

        def read(x: Active) -> AnyArray:
            r = values(x.wave)
            s = x.sel if wide else x.lanes
            return (r if s is None or r.size == 1 else r[s]).astype(storage).view(dtype)

        return read

    def _symbol(self, i: Instruction, operand: Symbol | Address, kind: PtxType) -> Source:
        if isinstance(operand, Address):
            if not isinstance(operand.base, Symbol):
                raise self.malformed(i, "an address where a value is expected")
            name, offset = operand.base.name, operand.offset
        else:
            name, offset = operand.name, 0
        where = self.layout.symbol(name)
        if where is None:
            raise self.malformed(i, f"{name} is not defined")
        space, base = where
        mask = (1 << kind.bits) - 1
        if kind.bits < 32:
            raise self.malformed(i, f"the address of {name} does not fit a .{kind.name}")
        if space == "local":
            return lambda x: np.array([(x.frame.local_base + base + offset) & mask], kind.storage).view(kind.dtype)
        constant = np.array([(base + offset) & mask], kind.storage).view(kind.dtype)
        return lambda _x: constant

    # -- destinations --------------------------------------------------------------------------------------------

    def alu_put(self, i: Instruction, operand: Operand, kind: PtxType) -> Put:
        """A destination of arithmetic; values of ``kind`` are extended to the register's width.

        The array given to it must be fresh: no other register may hold it.
        """
        return self._dest(i, operand, kind, wide=True)

    def lane_put(self, i: Instruction, operand: Operand, kind: PtxType) -> Put:
        """A destination that takes one value for each of the group's lanes; the array must be fresh."""
        return self._dest(i, operand, kind, wide=False)

    def _dest(self, i: Instruction, operand: Operand, kind: PtxType, *, wide: bool) -> Put:
        if isinstance(operand, Sink):
            return lambda _x, _v: None
        if not isinstance(operand, Register):
            raise self.malformed(i, "its destination is no register")
        index, have = operand.index, operand.type
        if (have.bits == 1) != (kind.bits == 1) or have.bits < kind.bits:
            raise self.malformed(i, f"{operand.name} is a .{have.name} and cannot hold a .{kind.name}")
        storage = have.storage
        extend: np.dtype[Any] | None = None
        if have.bits > kind.bits:
            extend = np.dtype(f"i{have.bits // 8}") if kind.kind == "s" else storage
        source_dtype = kind.dtype if kind.kind in "us" else kind.storage

        def put(x: Active, v: AnyArray) -> None:
            if extend is not None:
                v = v.view(source_dtype).astype(extend)
            if v.dtype != storage:
                v = v.view(storage)
            s = x.sel if wide else x.lanes
            if s is None:
                if v.size != x.wave.size:
                    v = np.full(x.wave.size, v[0])
                x.regs[index] = v
            else:
                x.regs[index][s] = v

        return put

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        """``d|p`` taken apart; the second is None when there is none."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        """The elements of a vector operand, or the operand alone."""
        return operand.items if isinstance(operand, Vector) else (operand,)


def _at(i: Instruction) -> str:
    place = f"{i.position.file}:{i.position.line}" if i.position.line else "the kernel"
    return f"{place} (PTX line {i.position.ptx_line})"
