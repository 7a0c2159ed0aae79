"""What is going on, on stderr: a line that redraws itself on a terminal, whole lines elsewhere."""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import Self

from attnprof.cli.environment import Environment, fit

_CLEAR = "\r\x1b[2K"


class Progress:
    """Progress of a long command. A context manager: leaving it wipes the redrawn line."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._drawn = False

    def step(self, text: str) -> None:
        """What happens now. Only a terminal shows it, and only until the next step."""
        if not self._environment.live:
            return
        width = shutil.get_terminal_size().columns
        # Cut, not wrapped: a line that wraps can't be redrawn.
        self._write(_CLEAR + fit(text, self._environment.stderr)[: width - 1])
        self._drawn = True

    def done(self, text: str) -> None:
        """What has finished: a line that stays."""
        self._wipe()
        self._environment.err(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wipe()

    def _wipe(self) -> None:
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def _write(self, text: str) -> None:
        self._environment.stderr.write(text)
        self._environment.stderr.flush()
