"""The file of kept tiles: what a choice holds for, and what becomes of a file that is not what it should be."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.bench.winners import Winners, key_of
from attnprof.kernels.candidates import Candidate
from attnprof.kernels.ladder.fa2 import SPECS
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload

(FA2,) = SPECS
H200, H100 = find("H200"), find("H100-SXM5-80GB")
WORKLOAD = Workload.of(1000, batch=2, heads=8, head_dim=128)
OTHER = "128x48 4w 2st 2b"


def candidate(spec: KernelSpec, workload: Workload, label: str) -> Candidate:
    return next(each for each in spec.candidates(workload, H200) if each.label == label)


def keep(path: Path, spec: KernelSpec = FA2, workload: Workload = WORKLOAD, label: str = OTHER) -> None:
    Winners(path).keep(spec, workload, H200, candidate(spec, workload, label), built_in="x", speedup=1.1)


def label(path: Path, spec: KernelSpec = FA2, workload: Workload = WORKLOAD, device=H200) -> str | None:  # type: ignore[no-untyped-def]
    tiles = Winners(path).choosing(spec).tiles(workload, device)
    return tiles.label if tiles is not None and tiles.tuned else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "tiles.json"


@pytest.mark.parametrize(
    "workload",
    [WORKLOAD, replace(WORKLOAD, seq_q=1024, seq_kv=513), replace(WORKLOAD, batch=1, heads=16, kv_heads=2)],
    ids=lambda workload: workload.label,
)
def test_a_choice_holds_for_workloads_of_about_the_size(path: Path, workload: Workload) -> None:
    keep(path)
    assert label(path, workload=workload) == OTHER


@pytest.mark.parametrize(
    "changes",
    [
        {"seq_q": 1025},
        {"seq_kv": 512},
        {"batch": 4},
        {"causal": True},
        {"dtype": Dtype.BF16},
        {"head_dim": 120},  # the same width, by the strided variant
        {"head_dim": 64},
    ],
    ids=str,
)
def test_and_for_no_others(path: Path, changes: dict[str, object]) -> None:
    keep(path)
    assert label(path, workload=replace(WORKLOAD, **changes)) is None  # type: ignore[arg-type]


def test_nor_for_another_gpu_layout_or_source(path: Path, tmp_path: Path) -> None:
    keep(path)
    assert label(path, device=H100) is None
    assert label(path, spec=FA2.laid_out("bshd")) is None
    edited = tmp_path / "fa2.cu"
    edited.write_text(FA2.file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert label(path, spec=replace(FA2, file=edited)) is None


def test_head_dims_of_one_width_share_a_choice(path: Path) -> None:
    strided = Workload.of(1000, batch=2, heads=8, head_dim=104)
    keep(path, workload=strided)
    assert label(path, workload=replace(strided, head_dim=120)) == OTHER


def test_a_choice_that_is_none_any_more_is_ignored(path: Path) -> None:
    keep(path)
    document = json.loads(path.read_text())
    (entry,) = document["tiles"].values()
    entry["tiles"] = "7x7 1w 1st 1b"
    path.write_text(json.dumps(document))
    assert label(path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 1, "tiles": {"a": 3}}',
        '{"format": 99, "tiles": {}}',
        "\x00\xff",
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:40]),
)
def test_a_damaged_file_is_one_warning_and_replaced(path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    with caplog.at_level(logging.WARNING, "attnprof"):
        assert label(path) is None
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    keep(path)
    assert label(path) == OTHER


@pytest.mark.parametrize("kind", ["folder", "pipe", "too long"])
def test_what_cannot_be_such_a_file_is_not_read(path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # reading it would wait for a writer
    else:
        with path.open("wb") as file:
            file.truncate(2**40)  # of zeros that take no room on the disk
    with caplog.at_level(logging.WARNING, "attnprof"):
        assert label(path) is None
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


def test_what_another_process_kept_stays(path: Path) -> None:
    first, second = Winners(path), Winners(path)
    long = replace(WORKLOAD, seq_q=4096, seq_kv=4096)
    first.keep(FA2, WORKLOAD, H200, candidate(FA2, WORKLOAD, OTHER), built_in="x", speedup=1.1)
    second.keep(FA2, long, H200, candidate(FA2, long, OTHER), built_in="x", speedup=1.1)
    assert label(path) == label(path, workload=long) == OTHER


def test_processes_that_keep_at_the_same_time_lose_nothing(path: Path) -> None:
    """Each keeps choices of its own for 12 lengths; a lock of the file makes them wait for one another."""
    script = f"""
import sys
from pathlib import Path
from attnprof.bench.winners import Winners
from attnprof.kernels.ladder.fa2 import SPECS
from attnprof.model.devices import find
from attnprof.model.workload import Workload

winners, device = Winners(Path({str(path)!r})), find("H200")
sys.stdin.readline()
for power in range(12):
    workload = Workload.of(2**power, batch=int(sys.argv[1]), heads=1, head_dim=128)
    winners.keep(SPECS[0], workload, device, SPECS[0].candidates(workload, device)[1], built_in="x", speedup=1.1)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(2**number)], stdin=subprocess.PIPE) for number in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert len(json.loads(path.read_text())["tiles"]) == 36


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "attnprof"):
        keep(tmp_path / "file" / "tiles.json")
    assert ["cannot keep tuned tiles" in record.getMessage() for record in caplog.records] == [True]


def test_the_file_lies_beside_the_compiled_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNPROF_CACHE_DIR", str(tmp_path))
    assert Winners().path == tmp_path / "tiles.json"


def test_a_key_is_readable() -> None:
    key = key_of(FA2, WORKLOAD, H200, "d128")
    assert key.startswith("H200 sm_90 | fa2 ")
    assert key.endswith(" | d128 no mask fp16 fwd bhsd | q1024 kv1024 heads16")
