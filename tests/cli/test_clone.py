"""Kernels that were edited in a clone while an installed copy runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attnprof.cli import backends
from attnprof.kernels.sources import kernels_dir
from attnprof.model.errors import EnvironmentProblem
from tests.cli.conftest import Cli

INSTALLED = "differs from the installed copy, which is what runs; to run the files here: pip install -e ."


@pytest.fixture
def clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Another copy of the kernels in the current directory, and neither a GPU nor a compiler."""

    def none_here(*_: object) -> None:
        raise EnvironmentProblem("not here")

    for name in ("open_gpu", "open_checker", "open_tracer"):
        monkeypatch.setattr(backends, name, none_here)
    shutil.copytree(kernels_dir(), tmp_path / "kernels_cu")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "kernels_cu"


def edit(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8") + "// edited\n", encoding="utf-8")


@pytest.mark.parametrize("command", ["kernels", "bench", "check", "check --traps", "trace"])
def test_an_edited_kernel_that_does_not_run_is_noted(cli: Cli, clone: Path, command: str) -> None:
    edit(clone / "fa2.cu")
    note = f"note: kernels_cu/fa2.cu {INSTALLED}"
    assert cli(*command.split(), "--kernel", "fa2").err.splitlines()[0] == note
    assert "note:" not in cli(*command.split(), "--kernel", "softmax-fused").err


def test_shared_headers_count_and_several_files_are_one_note(cli: Cli, clone: Path) -> None:
    for name in ("fa2.cu", "fa1.cu", "common/tile.cuh"):
        edit(clone / name)
    assert cli("kernels", "--kernel", "fa2,fa1").err.startswith("note: kernels_cu/fa1.cu and 2 more differ from the")
    assert cli("kernels", "--kernel", "naive").err == f"note: kernels_cu/common/tile.cuh {INSTALLED}\n"


def test_a_clone_as_it_was_installed_is_not_worth_a_note(cli: Cli, clone: Path) -> None:
    assert cli("kernels").err == ""
    (clone / "notes.cu").touch()
    (clone / "fa1.cu").unlink()
    assert cli("kernels").err == ""


def test_the_clone_that_runs_is_not_either(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kernels_dir().parent)
    assert cli("kernels").err == ""
