"""PTX text to tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from attnprof.emulator.errors import PtxError

MAX_PTX_BYTES = 64 << 20

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)
      | (?P<newline>\n)
      | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b)
      | (?P<num>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
      | (?P<id>[A-Za-z_$%][\w$]*(?:\.[A-Za-z_0-9]\w*(?:::\w+)*)*(?:::\w+)*)
      | (?P<dir>\.[A-Za-z_]\w*(?:::\w+)*)
      | (?P<str>"[^"\n]*")
      | (?P<punct>[{}()\[\],;:@!|+\-=<>*~&^?/])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    """A token: kind is float, num, id, dir, str, punct or end."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """All tokens and one ``end``.

    Raises:
        PtxError: a character that no token starts with, or more text than any compiler writes.
    """
    if len(text) > MAX_PTX_BYTES:
        raise PtxError(f"the PTX is {len(text) >> 20} MiB long; at most {MAX_PTX_BYTES >> 20} MiB are read")
    tokens: list[Token] = []
    line = 1
    at = 0
    match = _TOKEN.match
    while at < len(text):
        found = match(text, at)
        if found is None:
            raise PtxError(f"PTX line {line}: unexpected {text[at]!r}")
        kind = found.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind == "skip":
            line += found.group().count("\n")
        else:
            tokens.append(Token(kind, found.group(), line))
        at = found.end()
    tokens.append(Token("end", "", line))
    return tokens
