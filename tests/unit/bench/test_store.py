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


def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.json", tmp_path / "run.json"
    link.symlink_to(real)
    for text in ("one\n", "two\n"):  # the first makes the file
        write_atomically(link, text)
        assert link.is_symlink()
        assert real.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a pipe"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.json"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        path = tmp_path / "pipe"
        if kind == "link to a pipe":
            (tmp_path / "run.json").symlink_to(path)
            path = tmp_path / "run.json"
    before = path.stat()
    with pytest.raises(UsageError, match=r"cannot write .*: it is (a folder|no regular file)"):
        write_atomically(path, "x")
    assert path.stat() == before
