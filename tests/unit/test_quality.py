"""The linters are part of the tests: a red linter is a red build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
    ],
    ids=lambda command: " ".join(command),
)
def test_linter_is_clean(command: list[str]) -> None:
    result = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_project_does_not_name_a_registry_host() -> None:
    """Installation goes through pip's own configuration; a host name would tie the project to one mirror."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path == Path(__file__) or path.suffix in {".png", ".svg"}:
            continue
        text = path.read_text(encoding="utf-8")
        assert "files.pythonhosted.org" not in text, name
        assert "index-url" not in text, name
