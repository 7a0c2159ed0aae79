"""Exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns.

    A row that cannot run here (wrong architecture, unsupported shape, no memory) is skipped with its reason and is
    no failure; a row that ran and went wrong is.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
