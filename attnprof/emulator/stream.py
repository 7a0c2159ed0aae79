"""A cursor over tokens, with the errors that name the line."""

from __future__ import annotations

from attnprof.emulator.errors import PtxError
from attnprof.emulator.lexer import Token
from attnprof.emulator.program import Immediate


class TokenStream:
    """Reads tokens one by one; running past the end is an error, not a loop."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The token that comes next, or the one ``ahead`` of it."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """Take one token.

        Raises:
            PtxError: the text ended.
        """
        token = self.tokens[self.at]
        if token.kind == "end":
            raise PtxError(f"PTX line {token.line}: the text ends in the middle of a statement")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is this one."""
        if self.tokens[self.at].text == text and self.tokens[self.at].kind != "str":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Take the next token, which must be this one."""
        token = self.next()
        if token.text != text:
            raise self.error(f"expected {text!r}, found {token.text!r}", token)
        return token

    def expect_kind(self, kind: str) -> Token:
        """Take the next token, which must be of this kind."""
        token = self.next()
        if token.kind != kind:
            words = {"id": "a name", "num": "a number", "dir": "a directive"}
            raise self.error(f"expected {words.get(kind, kind)}, found {token.text!r}", token)
        return token

    def integer(self) -> int:
        """A whole number, perhaps with a minus sign."""
        negative = self.accept("-")
        value = self.number()
        if value.bits or not isinstance(value.value, int):
            raise self.error("expected a whole number")
        return -value.value if negative else value.value

    def number(self) -> Immediate:
        """Any numeric literal, without sign."""
        token = self.next()
        text = token.text
        if token.kind == "float":
            return Immediate(int(text[2:], 16), 32 if text[1] in "fF" else 64)
        if token.kind != "num":
            raise self.error(f"expected a number, found {text!r}", token)
        if text[:2] in ("0x", "0X", "0b", "0B"):
            return Immediate(int(text.rstrip("U"), 0))
        if "." in text or "e" in text or "E" in text:
            return Immediate(float(text))
        digits = text.rstrip("U")
        if len(digits) > 40:
            raise self.error("a number of more than 40 digits", token)
        octal = len(digits) > 1 and digits[0] == "0" and set(digits) <= set("01234567")
        return Immediate(int(digits, 8 if octal else 10))

    def error(self, message: str, token: Token | None = None) -> PtxError:
        """A PtxError at a token, or at the next one."""
        return PtxError(f"PTX line {(token or self.peek()).line}: {message}")
