"""The streams and settings a command prints with, in one object that tests replace."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from attnprof.model.errors import EnvironmentProblem

# What the tool itself prints beyond ASCII, and what stands for it where the terminal can't show it.
_ASCII = str.maketrans(
    {
        "—": "-", "–": "-", "−": "-", "─": "-", "·": "|", "µ": "u", "×": "x", "→": "->", "≤": "<=", "≥": ">=",
        "²": "^2", "³": "^3", "…": "...", "±": "+-", "√": "sqrt", "’": "'", "‘": "'", "“": '"', "”": '"',
    }
)  # fmt: skip
_PROBE = "—·µ×→≤─"


@dataclass
class Environment:
    """Where output goes and how it may look.

    Args:
        stdout: results.
        stderr: progress, warnings, errors.
        variables: environment variables (NO_COLOR, TERM, COLUMNS).
        stdin: what ``-`` reads; None where there is nothing to read.
    """

    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str] = field(default_factory=dict)
    stdin: TextIO | None = None
    _closed: bool = field(default=False, init=False)

    @classmethod
    def of_process(cls) -> Environment:
        """The real streams and variables of this process. One that is closed (``>&-``) is None in `sys`."""
        return cls(sys.stdout or _nowhere(), sys.stderr or _null(), os.environ, sys.stdin)

    def require_stdout(self) -> None:
        """Refuse to work for nobody.

        Raises:
            EnvironmentProblem: stdout is closed.
        """
        if self.stdout.closed:
            raise EnvironmentProblem(
                "stdout is closed: there is nowhere to print", "send it to a file, or to /dev/null if it is not wanted"
            )

    @property
    def unicode(self) -> bool:
        """Whether stdout can show what the tables use."""
        return _encodes(self.stdout, _PROBE)

    @property
    def colour(self) -> bool:
        """Colours only on a terminal that has them, and never with NO_COLOR."""
        dumb = self.variables.get("TERM") == "dumb"
        return self.stdout.isatty() and not dumb and not self.variables.get("NO_COLOR")

    @property
    def width(self) -> int | None:
        """Columns: COLUMNS where it is set, else the terminal's; None (no limit) into a pipe or a file."""
        columns = self.variables.get("COLUMNS", "")
        if columns.isascii() and columns.isdigit() and int(columns) > 0:
            return int(columns)
        return shutil.get_terminal_size().columns if self.stdout.isatty() else None

    @property
    def live(self) -> bool:
        """Whether progress may redraw its line."""
        return self.stderr.isatty() and self.variables.get("TERM") != "dumb"

    def out(self, text: str) -> None:
        """Print on stdout. A reader that has gone (``| head -1``) is no error: the rest is dropped.

        Raises:
            EnvironmentProblem: stdout takes nothing, as on a full disk.
        """
        if self._closed:
            return
        try:
            self.stdout.write(fit(text, self.stdout))
            self.stdout.flush()
        except BrokenPipeError:
            self._closed = True
            silence(self.stdout)
        except OSError as error:
            self._closed = True
            silence(self.stdout)
            raise EnvironmentProblem(
                f"cannot write to stdout: {error.strerror or error}", "free some space, or send the output elsewhere"
            ) from error

    def err(self, line: str) -> None:
        """Print one line on stderr. Where it takes nothing there is nobody to tell."""
        try:
            self.stderr.write(fit(line, self.stderr) + "\n")
            self.stderr.flush()
        except OSError:
            silence(self.stderr)


def fit(text: str, stream: TextIO) -> str:
    """``text`` with what the stream's encoding lacks replaced by ASCII."""
    if _encodes(stream, text):
        return text
    encoding = stream.encoding or "ascii"
    return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)


def silence(stream: TextIO) -> None:
    """Point a stream that takes nothing more at the null device, so that flushing it at exit stays quiet."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream without a descriptor: nothing will be flushed at exit
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _null() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _nowhere() -> TextIO:
    stream = _null()
    stream.close()
    return stream


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
