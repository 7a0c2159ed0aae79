"""The outputs on how-to pages are what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
# Pages whose commands need nothing but the program and, with --kernel, the compiler.
CHECKED = ("choose-a-tile.md", "online-softmax-by-hand.md")


def blocks() -> list[tuple[str, str, str]]:
    found = []
    for name in CHECKED:
        text = (PAGES / name).read_text(encoding="utf-8")
        found += [
            (name, match[1], match[2])
            for match in re.finditer(r"```console\n\$ attnprof ([^\n]*)\n(.*?)```", text, re.S)
        ]
    return found


@pytest.mark.parametrize(("page", "command", "shown"), blocks(), ids=lambda text: text.split("\n")[0][:60])
def test_the_page_shows_what_the_command_prints(cli: Cli, page: str, command: str, shown: str) -> None:
    compiled = "--kernel" in command
    if compiled:
        pytest.importorskip("cuda.bindings.nvrtc")
    result = cli(*shlex.split(command))
    assert result.code == 0
    if compiled:
        # Registers and the version are the compiler's own: the columns and all else must agree.
        assert _figures_out(result.out) == _figures_out(shown)
    else:
        assert result.out == shown


def _figures_out(text: str) -> list[str]:
    lines = [re.sub(r"NVRTC [0-9.]+", "NVRTC", line) for line in text.splitlines()]
    return [re.sub(r"\b\d{2,3}\b(?= +0 )", "N", line) for line in lines]
