"""Running commands in this process, with streams and a width of the test's choice."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attnprof.cli import backends
from attnprof.cli.environment import Environment
from attnprof.cli.main import run

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = "ATTNPROF_UPDATE_SNAPSHOTS"


class Stream(io.TextIOWrapper):
    """A text stream with an encoding, perhaps a terminal, perhaps with a reader that goes away."""

    def __init__(self, *, encoding: str = "utf-8", tty: bool = False, broken: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\n", write_through=True)
        self.tty, self.broken = tty, broken

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> int:
        if self.broken:
            raise BrokenPipeError
        return super().write(text)

    @property
    def text(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


@dataclass
class Result:
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output under a strict parser."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@dataclass
class Cli:
    """Runs command lines."""

    variables: dict[str, str] = field(default_factory=dict)

    def __call__(
        self,
        *arguments: str,
        encoding: str = "utf-8",
        tty: bool = False,
        broken: bool = False,
        stdin: bytes | None = None,
        **variables: str,
    ) -> Result:
        out = Stream(encoding=encoding, tty=tty, broken=broken)
        err = Stream(encoding=encoding)
        typed = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding=encoding)
        code = run(arguments, Environment(out, err, {**self.variables, **variables}, typed))
        return Result(int(code), out.text, err.text)


# What a GPU run would find installed.
SOFTWARE = {
    "driver": "580.65.06",
    "cuda_driver": "13.0",
    "cuda_runtime": "13.0",
    "nvrtc": "13.0",
    "cupy": "14.2.0",
    "torch": "2.11.0+cu130",
    "cudnn": "9.19.0",
}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on a machine without a GPU, whatever this one has."""
    from attnprof.gpu import discovery

    monkeypatch.setattr(
        discovery, "discover", lambda: discovery.Discovery(reason="there is no NVIDIA driver (a test says so)")
    )
    monkeypatch.setattr(backends, "software", lambda: SOFTWARE)
    return Cli()


@pytest.fixture
def snapshot() -> Callable[[str, str], None]:
    """Compare a text with a stored one, character by character; ATTNPROF_UPDATE_SNAPSHOTS=1 stores it."""

    def compare(name: str, text: str) -> None:
        file = SNAPSHOTS / name
        if os.environ.get(UPDATE):
            file.write_text(text, encoding="utf-8", newline="\n")
        assert file.is_file(), f"no snapshot {name}: run with {UPDATE}=1, read what it stored, and commit it"
        assert text == file.read_text(encoding="utf-8"), f"{name} differs; if that is right, run with {UPDATE}=1"

    return compare


def environment(**changes: str) -> Mapping[str, str]:
    """This process's environment without what would change the output, and with ``changes``."""
    dropped = (
        "COLUMNS",
        "NO_COLOR",
        "TERM",
        "PYTHONIOENCODING",
        "PYTHONUTF8",
        "LC_ALL",
        "LANG",
        "CUDA_VISIBLE_DEVICES",
    )
    return {**{key: value for key, value in os.environ.items() if key not in dropped}, **changes}
