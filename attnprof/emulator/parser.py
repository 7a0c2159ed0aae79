"""Tokens to a Module: declarations, functions, labels and source positions."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from attnprof.emulator.body import BodyParser
from attnprof.emulator.errors import PtxError
from attnprof.emulator.lexer import Token, tokenize
from attnprof.emulator.program import Function, Module, Variable
from attnprof.emulator.stream import TokenStream
from attnprof.emulator.types import type_named

_SPACES = (".const", ".global", ".shared", ".local", ".param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
# A variable larger than this is a garbled file, not a program (constant memory is 64 KiB, shared memory 227 KiB).
MAX_VARIABLE_BYTES = 1 << 28
_PTR_SPACES = (".global", ".shared", ".const", ".local")


def parse(text: str) -> Module:
    """Read a whole PTX module.

    Raises:
        PtxError: the text is truncated, garbled or breaks the language's rules; the message names the PTX line.
    """
    return _ModuleParser(TokenStream(tokenize(text))).module()


@dataclass
class _ModuleParser:
    stream: TokenStream

    def module(self) -> Module:
        stream = self.stream
        module = Module("", "", {}, {}, _files(stream.tokens))
        while stream.peek().kind != "end":
            token = stream.next()
            if token.text == ".version":
                module.version = stream.next().text
            elif token.text == ".target":
                module.target = stream.next().text
                while stream.accept(","):
                    stream.next()
            elif token.text == ".address_size":
                size = stream.next()
                if size.text != "64":
                    raise stream.error(f"address size {size.text}; only 64-bit PTX is emulated", size)
            elif token.text == ".file":
                self._skip_line(token)
            elif token.text == ".section":
                self._skip_braces()
            elif token.text in (".pragma", ".alias"):
                self._skip_to_semicolon()
            elif token.text in _LINKAGE or token.text in _SPACES or token.text in (".entry", ".func"):
                self._declaration(module, token)
            elif token.text != ";":
                raise stream.error(f"expected a directive, found {token.text!r}", token)
        if not module.version or not module.target:
            raise PtxError("this is no PTX: .version and .target are missing")
        return module

    def _declaration(self, module: Module, token: Token) -> None:
        extern = False
        while token.text in _LINKAGE:
            extern = extern or token.text == ".extern"
            token = self.stream.next()
        if token.text in (".entry", ".func"):
            function = self._function(module, entry=token.text == ".entry")
            known = module.functions.get(function.name)
            if known is None or not known.defined:
                module.functions[function.name] = function
            elif function.defined:
                raise self.stream.error(f"function {function.name} is defined twice", token)
        elif token.text in _SPACES:
            for variable in self.variables(token.text[1:], extern=extern):
                module.variables[variable.name] = variable
        else:
            raise self.stream.error(f"expected a declaration, found {token.text!r}", token)

    def variables(self, space: str, *, extern: bool = False) -> list[Variable]:
        """The rest of a variable declaration, to its semicolon."""
        found = [self._variable(space, extern)]
        while self.stream.accept(","):
            raise self.stream.error("several variables in one declaration are not supported")
        self.stream.expect(";")
        return found

    def _variable(self, space: str, extern: bool) -> Variable:
        """``[.align n] .type name[[extent]…] [= initial]``."""
        stream = self.stream
        align = 0
        vector = 1
        while stream.peek().text in (".align", ".v2", ".v4", ".ptr", ".attribute", *_PTR_SPACES):
            token = stream.next()
            if token.text == ".align":
                align = stream.integer()
            elif token.text == ".attribute":
                self._skip_parentheses()
            elif token.text in (".v2", ".v4"):
                vector = int(token.text[2])
        kind = type_named(stream.expect_kind("dir").text[1:])
        # What a pointer parameter promises about its target: no part of its own size.
        while stream.peek().text in (".ptr", ".align", *_PTR_SPACES):
            if stream.next().text == ".align":
                stream.integer()
        name = stream.expect_kind("id").text
        count = vector
        unsized = False
        while stream.accept("["):
            if stream.accept("]"):
                unsized = True
                continue
            count *= stream.integer()
            stream.expect("]")
        size = 0 if unsized else count * kind.nbytes
        if size > MAX_VARIABLE_BYTES:
            raise stream.error(f"variable {name} takes {size} bytes")
        if align < 0 or align > 1 << 20 or (align & (align - 1)):
            raise stream.error(f"variable {name} has alignment {align}, no power of two")
        initial: bytes | None = None
        addresses: tuple[tuple[int, str], ...] = ()
        if stream.accept("="):
            initial, addresses = self._initial(kind.nbytes, kind.kind == "f")
            size = max(size, len(initial))
            initial = initial.ljust(size, b"\0")
        return Variable(name, space, align or kind.nbytes * vector, size, initial, addresses, extern or unsized)

    def _initial(self, width: int, is_float: bool) -> tuple[bytes, tuple[tuple[int, str], ...]]:
        data = bytearray()
        addresses: list[tuple[int, str]] = []
        stream = self.stream
        depth = 0
        while True:
            if stream.accept("{"):
                depth += 1
            elif stream.accept("}"):
                depth -= 1
            elif stream.accept(","):
                pass
            elif stream.peek().kind == "id":
                name = stream.next().text
                if name == "generic":
                    stream.expect("(")
                    name = stream.expect_kind("id").text
                    stream.expect(")")
                offset = stream.integer() if stream.accept("+") else 0
                addresses.append((len(data), name))
                data += offset.to_bytes(width, "little")
            else:
                data += self._number_bytes(width, is_float)
            if depth <= 0:
                return bytes(data), tuple(addresses)

    def _number_bytes(self, width: int, is_float: bool) -> bytes:
        token = self.stream.peek()
        negative = self.stream.accept("-")
        value = self.stream.number()
        bits = value.bits
        if is_float and not bits:
            number = -float(value.value) if negative else float(value.value)
            try:
                return struct.pack({2: "<e", 4: "<f", 8: "<d"}[width], number)
            except OverflowError:
                raise self.stream.error(f"{token.text} does not fit its type", token) from None
        whole = -int(value.value) if negative else int(value.value)
        return (whole & ((1 << 8 * width) - 1)).to_bytes(width, "little")

    def _parameters(self) -> tuple[Variable, ...]:
        found: list[Variable] = []
        stream = self.stream
        stream.expect("(")
        while not stream.accept(")"):
            if found:
                stream.expect(",")
            token = stream.next()
            if token.text == ".reg":
                raise stream.error("register parameters (.reg in a function's header) are not emulated", token)
            if token.text != ".param":
                raise stream.error(f"expected .param, found {token.text!r}", token)
            found.append(self._variable("param", extern=False))
        return tuple(found)

    def _function(self, module: Module, *, entry: bool) -> Function:
        stream = self.stream
        returns: tuple[Variable, ...] = ()
        if not entry and stream.peek().text == "(":
            returns = self._parameters()
        name = stream.expect_kind("id").text
        params = self._parameters() if stream.peek().text == "(" else ()
        function = Function(name, entry, params, returns)
        while stream.peek().kind == "dir":
            token = stream.next()
            if token.text in (".maxntid", ".reqntid"):
                extents = [stream.integer()]
                while stream.accept(","):
                    extents.append(stream.integer())
                x, y, z = (*extents, 1, 1)[:3]
                if token.text == ".maxntid":
                    function.max_threads = (x, y, z)
                else:
                    function.required_threads = (x, y, z)
            elif token.text == ".pragma":
                self._skip_to_semicolon()
            else:  # .minnctapersm, .maxnreg, .noreturn, …: hints that change no result
                while stream.accept(",") or stream.peek().kind == "num":
                    if stream.peek().kind == "num":
                        stream.next()
        if stream.accept(";"):
            return function
        stream.expect("{")
        function.defined = True
        BodyParser(stream, function, module.files, self).parse()
        return function

    def _skip_to_semicolon(self) -> None:
        while self.stream.next().text != ";":
            pass

    def _skip_line(self, first: Token) -> None:
        while self.stream.peek().line == first.line and self.stream.peek().kind != "end":
            self.stream.next()

    def _skip_parentheses(self) -> None:
        self.stream.expect("(")
        while self.stream.next().text != ")":
            pass

    def _skip_braces(self) -> None:
        depth = 0
        while True:
            token = self.stream.next()
            depth += (token.text == "{") - (token.text == "}")
            if token.text == "}" and depth <= 0:
                return


def _files(tokens: list[Token]) -> dict[int, str]:
    """The ``.file`` table: it stands at the end of the module, after the lines that use it."""
    files: dict[int, str] = {}
    for at, token in enumerate(tokens[:-2]):
        if token.text == ".file" and tokens[at + 1].kind == "num" and tokens[at + 2].kind == "str":
            number = tokens[at + 1].text
            if number.isdigit():
                files[int(number)] = tokens[at + 2].text[1:-1]
    return files
