"""What Linux says of memory, from files like its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.kernels import host

V2, V1 = host._GROUPS
MEMINFO = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(host, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "_GROUPS", (replace(V2, folder=tmp_path),))
    monkeypatch.setattr(host, "_OWN_GROUPS", tmp_path / "cgroup")
    return tmp_path


def test_what_linux_calls_available(system: Path) -> None:
    assert host.available_bytes() == 20_000_000 * 1024


def test_a_container_has_what_its_limit_leaves_and_what_it_can_drop(system: Path) -> None:
    (system / "memory.max").write_text("8000000000\n")
    (system / "memory.current").write_text("6000000000\n")
    assert host.available_bytes() == 2_000_000_000
    (system / "memory.stat").write_text("anon 1\nfile 5\ninactive_file 1500000000\nactive_file 7\n")
    assert host.available_bytes() == 3_500_000_000
    (system / "memory.current").write_text("10500000000\n")
    assert host.available_bytes() == 0


def test_the_limit_of_a_job_within_a_job_holds_and_so_does_the_outer_one(system: Path) -> None:
    (system / "cgroup").write_text("4:memory:/elsewhere\n0::/slurm/job 1\n")
    for folder, limit in ((system / "slurm", 9_000_000_000), (system / "slurm/job 1", 8_000_000_000)):
        folder.mkdir()
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("1000000000\n")
    assert host.available_bytes() == 7_000_000_000
    (system / "slurm" / "memory.max").write_text("3000000000\n")
    assert host.available_bytes() == 2_000_000_000


def test_groups_of_the_first_version_are_found_by_their_controller(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_GROUPS", (replace(V1, folder=system),))
    (system / "cgroup").write_text("5:cpu,cpuacct:/other\n4:hugetlb,memory:/job\n")
    (system / "job").mkdir()
    (system / "job" / "memory.limit_in_bytes").write_text("5000000000\n")
    (system / "job" / "memory.usage_in_bytes").write_text("1000000000\n")
    assert host.available_bytes() == 4_000_000_000


def test_a_limit_of_max_is_none(system: Path) -> None:
    (system / "memory.max").write_text("max\n")
    (system / "memory.current").write_text("6000000000\n")
    assert host.available_bytes() == 20_000_000 * 1024


@pytest.mark.parametrize("text", ["", "nonsense", "MemAvailable:\n", "MemAvailable: some kB\n"])
def test_where_the_system_does_not_say_nothing_is_known(system: Path, text: str) -> None:
    (system / "meminfo").write_text(text)
    assert host.available_bytes() is None
    (system / "meminfo").unlink()
    assert host.available_bytes() is None
