"""The body of a function: nested scopes, registers, labels, ``.loc`` lines and instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from attnprof.emulator.lexer import Token
from attnprof.emulator.program import (
    Address,
    Function,
    Group,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Position,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from attnprof.emulator.types import PtxType, type_named

if TYPE_CHECKING:
    from attnprof.emulator.stream import TokenStream

MAX_DEPTH = 64
MAX_REGISTERS = 1 << 16
_NUMBERED = re.compile(r"(.*?)(\d+)$", re.ASCII)
_SPACES = (".shared", ".local", ".param", ".const", ".global")


class Declarations(Protocol):
    """Who reads variable declarations (the module's parser)."""

    def variables(self, space: str, *, extern: bool = False) -> list[Variable]:
        """The rest of a declaration."""
        ...


@dataclass(slots=True)
class _Scope:
    registers: dict[str, Register | PtxType] = field(default_factory=dict)
    ranges: dict[str, tuple[int, PtxType]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)


class BodyParser:
    """Reads one function's body, the opening brace already taken."""

    def __init__(
        self, stream: TokenStream, function: Function, files: dict[int, str], declarations: Declarations
    ) -> None:
        self.stream = stream
        self.function = function
        self.files = files
        self.declarations = declarations
        self.scopes = [_Scope()]
        self.main_file: int | None = None
        self.chains: dict[tuple[int, int, int], tuple[tuple[int, int, int], ...]] = {}
        self.place = ("", 0)
        self.inner: tuple[str, int] | None = None

    def parse(self) -> None:
        """Fill in the function's registers, variables and instructions."""
        stream = self.stream
        while self.scopes:
            token = stream.next()
            if token.text == "{":
                if len(self.scopes) >= MAX_DEPTH:
                    raise stream.error("scopes nested too deeply", token)
                self.scopes.append(_Scope())
            elif token.text == "}":
                self._close(token)
            elif token.kind == "dir":
                self._directive(token)
            elif token.text == ";":
                continue
            elif token.kind == "id" and stream.peek().text == ":":
                stream.next()
                self._label(token)
            else:
                self._instruction(token)

    def _label(self, token: Token) -> None:
        scope = self.scopes[-1]
        if token.text in scope.labels or token.text in scope.tables:
            raise self.stream.error(f"label {token.text} is defined twice", token)
        if self.stream.peek().text == ".branchtargets":
            self.stream.next()
            names = [self.stream.expect_kind("id").text]
            while self.stream.accept(","):
                names.append(self.stream.expect_kind("id").text)
            self.stream.expect(";")
            scope.tables[token.text] = tuple(names)
        elif self.stream.peek().text in (".callprototype", ".calltargets"):
            # What a call through a pointer may reach: the functions themselves say what they take.
            while self.stream.next().text != ";":
                pass
        else:
            scope.labels[token.text] = len(self.function.instructions)

    def _close(self, token: Token) -> None:
        """Bind the branches of a scope to its labels; what it does not define belongs to the scope around it."""
        scope = self.scopes.pop()
        code = self.function.instructions
        for at in scope.pending:
            label = code[at].operands[-1]
            name = label.name if isinstance(label, Symbol) else ""
            if code[at].op == "brx" and name in scope.tables:
                names = scope.tables[name]
                if all(n in scope.labels for n in names):
                    code[at] = replace(code[at], targets=tuple(scope.labels[n] for n in names))
                    continue
            elif name in scope.labels:
                code[at] = replace(code[at], target=scope.labels[name])
                continue
            if not self.scopes:
                raise self.stream.error(
                    f"PTX line {code[at].position.ptx_line} branches to {name}, which is not there", token
                )
            self.scopes[-1].pending.append(at)

    def _directive(self, token: Token) -> None:
        stream = self.stream
        if token.text == ".reg":
            self._registers()
        elif token.text == ".loc":
            self._location()
        elif token.text in _SPACES:
            for variable in self.declarations.variables(token.text[1:]):
                unique = variable.name
                while unique in self.function.variables:
                    unique += "'"
                self.function.variables[unique] = replace(variable, name=unique)
                self.scopes[-1].variables[variable.name] = unique
        elif token.text == ".pragma":
            while stream.next().text != ";":
                pass
        else:
            raise stream.error(f"the directive {token.text} is not emulated", token)

    def _registers(self) -> None:
        stream = self.stream
        kind = stream.expect_kind("dir").text[1:]
        if kind in ("v2", "v4"):
            raise stream.error("vector registers are not emulated")
        ptx_type = type_named(kind)
        scope = self.scopes[-1]
        while True:
            name = stream.expect_kind("id").text
            if stream.accept("<"):
                scope.ranges[name] = (stream.integer(), ptx_type)
                stream.expect(">")
            else:
                scope.registers[name] = ptx_type
            if not stream.accept(","):
                break
        stream.expect(";")

    def _location(self) -> None:
        """``.loc file line column[, function_name …, inlined_at file line column]``; line 0 keeps the last line.

        The compiler inlines small functions, whose lines are often in a header. An instruction is attributed to the
        innermost line that lies in the kernel's own file, and remembers the line inside the inlined function.
        """
        stream = self.stream
        here = (stream.integer(), stream.integer(), stream.integer())
        caller: tuple[int, int, int] | None = None
        while stream.accept(","):
            word = stream.expect_kind("id").text
            if word == "function_name":
                stream.expect_kind("id")
                if stream.accept("+"):
                    stream.integer()
            elif word == "inlined_at":
                caller = (stream.integer(), stream.integer(), stream.integer())
            else:
                raise stream.error(f"unknown word {word!r} in .loc")
        if not here[1]:
            return
        if self.main_file is None:
            self.main_file = here[0]
        outer = self.chains.get(caller, (caller,)) if caller is not None else ()
        chain = (here, *outer)[:MAX_DEPTH]
        self.chains[here] = chain
        shown = next((place for place in chain if place[0] == self.main_file), chain[0])
        self.place = (self.files.get(shown[0], ""), shown[1])
        self.inner = None if shown == here else (self.files.get(here[0], ""), here[1])

    def _instruction(self, token: Token) -> None:
        stream = self.stream
        guard: Register | Negated | None = None
        if token.text == "@":
            negated = stream.accept("!")
            register = self._name(stream.expect_kind("id"))
            if not isinstance(register, Register) or register.type.kind != "p":
                raise stream.error("a guard must be a predicate register", token)
            guard = Negated(register) if negated else register
            token = stream.next()
        if token.kind != "id":
            raise stream.error(f"expected an instruction, found {token.text!r}", token)
        op, *mods = token.text.split(".")
        operands: list[Operand] = []
        if not stream.accept(";"):
            operands.append(self._operand())
            while stream.accept(","):
                operands.append(self._operand())
            stream.expect(";")
        position = Position(*self.place, token.line, self.inner)
        code = self.function.instructions
        if op in ("bra", "brx"):
            if not operands or not isinstance(operands[-1], Symbol):
                raise stream.error(f"{op} needs a label", token)
            self.scopes[-1].pending.append(len(code))
        code.append(Instruction(op, tuple(mods), tuple(operands), position, guard))

    def _operand(self, depth: int = 0) -> Operand:
        stream = self.stream
        token = stream.next()
        if depth > 4:
            raise stream.error("operands nested too deeply", token)
        if token.text in ("{", "("):
            closing = "}" if token.text == "{" else ")"
            items: list[Operand] = []
            while not stream.accept(closing):
                if items:
                    stream.expect(",")
                items.append(self._operand(depth + 1))
            return Vector(tuple(items)) if closing == "}" else Group(tuple(items))
        if token.text == "[":
            return self._address()
        if token.text == "!":
            inner = self._name(stream.expect_kind("id"))
            if not isinstance(inner, Register):
                raise stream.error("only a predicate can be negated", token)
            return Negated(inner)
        if token.text == "-":
            value = stream.number()
            if value.bits:
                return Immediate(int(value.value) ^ (1 << (value.bits - 1)), value.bits)
            return Immediate(-value.value)
        if token.kind in ("num", "float"):
            stream.at -= 1
            return stream.number()
        if token.kind != "id":
            raise stream.error(f"expected an operand, found {token.text!r}", token)
        operand = self._name(token)
        if stream.accept("|"):
            return Pair(operand, self._name(stream.expect_kind("id")))
        if stream.peek().text in ("+", "-") and isinstance(operand, Symbol):
            sign = 1 if stream.next().text == "+" else -1
            return Address(operand, sign * stream.integer())  # mov.u64 %rd, symbol+8
        return operand

    def _address(self) -> Address:
        stream = self.stream
        token = stream.peek()
        base: Register | Symbol | Immediate
        if token.kind == "id":
            named = self._name(stream.next())
            if not isinstance(named, (Register, Symbol)):
                raise stream.error(f"{token.text} is no address", token)
            base = named
        else:
            base = Immediate(stream.integer())
        offset = 0
        if stream.accept("+"):
            offset = stream.integer()
        elif stream.accept("-"):
            offset = -stream.integer()
        if stream.peek().text == ",":
            raise stream.error("tensor and texture coordinates are not emulated", token)
        stream.expect("]")
        return Address(base, offset)

    def _name(self, token: Token) -> Operand:
        name = token.text
        if name == "_":
            return Sink()
        for scope in reversed(self.scopes):
            known = scope.registers.get(name)
            if isinstance(known, Register):
                return known
            if known is not None:
                return self._new_register(scope, name, known)
            numbered = _NUMBERED.match(name)
            if numbered is not None and numbered[1] in scope.ranges:
                count, ptx_type = scope.ranges[numbered[1]]
                if len(numbered[2]) < 9 and int(numbered[2]) < count:
                    return self._new_register(scope, name, ptx_type)
            if name in scope.variables:
                return Symbol(scope.variables[name])
        if name == "WARP_SZ":
            return Immediate(32)
        if name.startswith("%"):
            return Special(name)
        return Symbol(name)

    def _new_register(self, scope: _Scope, name: str, ptx_type: PtxType) -> Register:
        if len(self.function.registers) >= MAX_REGISTERS:
            raise self.stream.error(f"more than {MAX_REGISTERS} registers")
        register = Register(len(self.function.registers), name, ptx_type)
        self.function.registers.append(register)
        scope.registers[name] = register
        return register
