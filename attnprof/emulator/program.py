"""What the parser makes of a PTX module: plain records, names resolved, nothing executed."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnprof.emulator.memory import FUNCTION_WINDOW
from attnprof.emulator.types import PtxType


@dataclass(frozen=True, slots=True)
class Position:
    """Where an instruction comes from: the ``.loc`` line of the CUDA source (0: unknown) and the PTX line.

    ``inner`` is the line inside the function that was inlined there, when the line is that of a call.
    """

    file: str
    line: int
    ptx_line: int
    inner: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """A register of the enclosing function, by its index there."""

    index: int
    name: str
    type: PtxType


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant. ``bits`` is set for the exact forms 0f… (32) and 0d… (64), whose value is the bit pattern."""

    value: int | float
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, function or label by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, …}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p``."""

    register: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Group:
    """``(a, b, …)``: the arguments of a call."""

    items: tuple[Operand, ...]


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Negated | Sink | Group


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``op`` is the opcode's first word, ``mods`` the rest.

    ``target`` and ``targets`` are the indices of the instructions that a branch leads to.
    """

    op: str
    mods: tuple[str, ...]
    operands: tuple[Operand, ...]
    position: Position
    guard: Register | Negated | None = None
    target: int | None = None
    targets: tuple[int, ...] = ()

    @property
    def opcode(self) -> str:
        """The whole opcode, as written."""
        return ".".join((self.op, *self.mods))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in a state space. ``size`` is 0 for an extern array (dynamic shared memory)."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes | None = None
    addresses: tuple[tuple[int, str], ...] = ()  # (offset, symbol): pointers to fill in
    extern: bool = False


@dataclass(slots=True)
class Function:
    """A kernel (``entry``) or a device function."""

    name: str
    entry: bool
    params: tuple[Variable, ...]
    returns: tuple[Variable, ...] = ()
    registers: list[Register] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    max_threads: tuple[int, int, int] | None = None
    required_threads: tuple[int, int, int] | None = None
    defined: bool = False

    @property
    def param_offsets(self) -> dict[str, int]:
        """Byte offset of each parameter in the parameter block, and its total size under ``""``."""
        offset = 0
        offsets: dict[str, int] = {}
        for param in self.params:
            offset = -(-offset // param.align) * param.align
            offsets[param.name] = offset
            offset += param.size
        offsets[""] = offset
        return offsets


@dataclass(slots=True)
class Module:
    """A whole PTX file."""

    version: str
    target: str
    functions: dict[str, Function]
    variables: dict[str, Variable]
    files: dict[int, str]


def function_address(module: Module, name: str) -> int:
    """What a pointer to a function holds."""
    return FUNCTION_WINDOW + 16 * list(module.functions).index(name)
