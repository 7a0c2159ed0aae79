from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from attnprof.compiler import cache
from attnprof.compiler.cache import DiskCache, Entry, default_folder, make_key
from attnprof.kernels.executor import EntryResources

ENTRY = Entry(b"\x7fELF", "log é", {"k": EntryResources("k", 32, 0, 0, 0, 132)}, 0.5)
KEY = make_key(("source",))


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"ATTNPROF_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/x"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/attnprof")),
        ({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache/attnprof"),
        ({"ATTNPROF_CACHE_DIR": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache/attnprof"),
    ],
)
def test_where_it_lives(environ: dict[str, str], folder: Path) -> None:
    assert default_folder(environ) == folder


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "é b")
    assert store.load(KEY) is None
    store.store(KEY, ENTRY)
    assert DiskCache(tmp_path / "é b").load(KEY) == ENTRY
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda image, meta: image.write_bytes(b"\x7fEL"),
        lambda image, meta: image.unlink(),
        lambda image, meta: meta.write_text("{"),
        lambda image, meta: meta.write_text("[]"),
        lambda image, meta: meta.write_text(json.dumps({**json.loads(meta.read_text()), "resources": {"k": {"x": 1}}})),
        lambda image, meta: meta.write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_entry_is_a_miss(tmp_path: Path, damage) -> None:
    store = DiskCache(tmp_path)
    store.store(KEY, ENTRY)
    (image,), (meta,) = tmp_path.rglob("*.image"), tmp_path.rglob("*.json")
    damage(image, meta)
    assert store.load(KEY) is None
    store.store(KEY, ENTRY)
    assert store.load(KEY) == ENTRY


def test_key_parts_do_not_run_together() -> None:
    keys = {make_key(parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("ab", None, "c"), ("ab", "none;", "c")]}
    assert len(keys) == 5


def test_an_unwritable_folder_costs_one_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_temporary", [])
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        first, second = DiskCache(blocked / "cache"), DiskCache(blocked / "cache")
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text
    assert "ATTNPROF_CACHE_DIR" in caplog.text
    assert first.folder == second.folder
    first.store(KEY, ENTRY)
    assert second.load(KEY) == ENTRY


def test_a_cache_that_vanishes_costs_a_note_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DiskCache(tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("now a file")
    store.store(KEY, ENTRY)
    assert "cannot keep a compiled kernel" in caplog.text
    assert store.load(KEY) is None
