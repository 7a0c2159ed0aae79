"""Compiling ahead in other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from attnprof.compiler import Compiler, ahead
from attnprof.compiler.ahead import WORTHWHILE, Job
from attnprof.kernels import processes
from attnprof.kernels.plan import Build
from attnprof.model.errors import CompileError, UsageError

SOURCE = """\
#if VARIANT == 3
#error "three is refused"
#endif
extern "C" __global__ void k(float* out) { out[threadIdx.x] = VARIANT; }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "k.cu"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path / "cache")


def jobs(file: Path, count: int = WORTHWHILE) -> list[Job]:
    return [(Build(file, (("VARIANT", str(n)),)), "sm_80", "ptx" if n % 2 else "cubin") for n in range(count)]


def test_what_was_asked_for_ahead_is_compiled_elsewhere(file: Path, compiler: Compiler) -> None:
    wanted = jobs(file)
    with compiler.ahead([*wanted, *wanted], processes=2):
        for number, (build, arch, target) in enumerate(wanted):
            if number == 3:
                with pytest.raises(CompileError, match="three is refused"):
                    compiler.compile(build, arch, target=target)
                continue
            compiled = compiler.compile(build, arch, target=target)
            assert compiled.cached  # by the other process
            assert ("k" in compiled.resources) == (target == "cubin")
        other = compiler.compile(Build(file, (("VARIANT", "100"),)), "sm_80")
        assert not other.cached
    assert compiler.compile(*wanted[0][:2], target=wanted[0][2]).cached


def test_a_disk_that_takes_nothing_is_said_by_this_process_alone(
    file: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(256):  # where the folders would be
        (compiler.cache_dir / f"{number:02x}").touch()
    build, arch, target = jobs(file)[0]
    with caplog.at_level("WARNING", "attnprof"), compiler.ahead(jobs(file), processes=2):
        assert not compiler.compile(build, arch, target=target).cached
    assert ["cannot keep a compiled kernel" in record.getMessage() for record in caplog.records] == [True]
    assert capfd.readouterr().err == ""


def test_leaving_early_drops_what_has_not_begun(file: Path, compiler: Compiler) -> None:
    many = jobs(file, 400)
    with pytest.raises(KeyboardInterrupt), compiler.ahead(many, processes=2):
        raise KeyboardInterrupt
    kept = sum(1 for _ in compiler.cache_dir.glob("*/*.json"))
    assert kept < len(many) / 2
    build, arch, target = many[-1]
    assert not compiler.compile(build, arch, target=target).cached


@pytest.mark.parametrize(("count", "cores"), [(WORTHWHILE - 1, 2), (WORTHWHILE, 1)])
def test_few_compilations_or_one_core_start_nothing(file: Path, compiler: Compiler, count: int, cores: int) -> None:
    wanted = jobs(file, count)
    with compiler.ahead(wanted, processes=cores):
        build, arch, target = wanted[0]
        assert not compiler.compile(build, arch, target=target).cached


def test_the_same_job_many_times_is_one(file: Path, compiler: Compiler) -> None:
    build, arch, target = jobs(file, 1)[0]
    with compiler.ahead([(build, arch, target)] * WORTHWHILE, processes=2):
        assert not compiler.compile(build, arch, target=target).cached


def test_no_more_processes_than_memory_is_meant_for(
    file: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(workers: int, **_: object) -> None:
        asked.append(workers)
        raise OSError("no semaphores here")

    monkeypatch.setattr(processes, "ProcessPool", refuse)
    for count in (3, 200):
        with compiler.ahead(jobs(file), processes=count):
            pass
    assert asked == [3, 16]


# As a terminal does it: Ctrl-C goes to the workers too.
INTERRUPTED = """\
import sys, time
from pathlib import Path
from attnprof.compiler import Compiler
from attnprof.kernels.plan import Build

if __name__ == "__main__":
    file, cache = map(Path, sys.argv[1:])
    jobs = [(Build(file, (("VARIANT", str(n)),)), "sm_80", "cubin") for n in range(10, 20)]
    compiler = Compiler(cache)
    try:
        with compiler.ahead(jobs, processes=2):
            for build, arch, _ in jobs:  # then both workers wait for work
                compiler.compile(build, arch)
            print("ready", flush=True)
            time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_is_for_this_process_and_the_workers_say_nothing(file: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), str(file), str(tmp_path / "cache")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)


def test_what_the_cache_has_is_not_asked_for(file: Path, compiler: Compiler) -> None:
    wanted = jobs(file)
    build, arch, target = wanted[0]
    compiler.compile(build, arch, target=target)
    with compiler.ahead(wanted, processes=2):  # one fewer is missing than is worthwhile
        build, arch, target = wanted[1]
        assert not compiler.compile(build, arch, target=target).cached


def test_a_job_that_cannot_be_asked_for_fails_where_it_is_compiled(tmp_path: Path, compiler: Compiler) -> None:
    gone = jobs(tmp_path / "gone.cu")
    with compiler.ahead(gone, processes=2):
        build, arch, target = gone[0]
        with pytest.raises(UsageError, match="cannot read"):
            compiler.compile(build, arch, target=target)


@pytest.mark.parametrize("error", [OSError("no semaphores here"), BrokenProcessPool("a worker was killed")], ids=str)
def test_a_machine_without_processes_compiles_all_the_same(
    file: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    if isinstance(error, OSError):
        monkeypatch.setattr(processes, "ProcessPool", refuse)
    else:
        monkeypatch.setattr(ahead.ProcessPool, "submit", refuse)
    wanted = jobs(file)
    with compiler.ahead(wanted, processes=2):
        assert not compiler.compile(*wanted[0][:2], target=wanted[0][2]).cached
