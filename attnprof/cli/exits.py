"""Exit codes."""

from __future__ import annotations

from enum import IntEnum

from attnprof.model.errors import EnvironmentProblem


class ExitCode(IntEnum):
    """What the process returns.

    A row that cannot run here (wrong architecture, unsupported shape, no memory) is skipped with its reason and is
    no failure; a row that ran and went wrong is.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


def nothing_checked() -> EnvironmentProblem:
    """Every row is skipped, for want of a header perhaps: a gate must not take that for a pass."""
    return EnvironmentProblem(
        "nothing was checked: every row is skipped",
        "the lines above say why; pip install 'attnprof[nvrtc]' brings a compiler or headers that are missing",
    )
