from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnprof.bench.store import write_atomically
from attnprof.model.errors import UsageError


def test_the_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "run é.json"
    write_atomically(target, "one\n")
    write_atomically(target, "two\n")
    assert target.read_text(encoding="utf-8") == "two\n"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_a_failed_write_keeps_the_old_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "run.json"
    write_atomically(target, "old\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        write_atomically(target, "new\n")
    assert target.read_text(encoding="utf-8") == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_missing_folder_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        write_atomically(tmp_path / "nowhere" / "run.json", "x")


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    plain, atomic = tmp_path / "plain", tmp_path / "atomic"
    plain.write_text("x", encoding="utf-8")
    write_atomically(atomic, "x")
    assert atomic.stat().st_mode == plain.stat().st_mode
    atomic.chmod(0o640)
    write_atomically(atomic, "y")
    assert atomic.stat().st_mode & 0o777 == 0o640
