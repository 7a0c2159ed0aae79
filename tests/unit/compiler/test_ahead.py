"""Compiling ahead in other processes."""

from __future__ import annotations

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


def test_leaving_early_drops_what_has_not_begun(file: Path, compiler: Compiler) -> None:
    many = jobs(file, 400)
    with pytest.raises(KeyboardInterrupt), compiler.ahead(many, processes=2):
        raise KeyboardInterrupt
    kept = sum(1 for _ in compiler.cache_dir.glob("*/*.json"))
    assert kept < len(many) / 2
    build, arch, target = many[-1]
    assert not compiler.compile(build, arch, target=target).cached


@pytest.mark.parametrize(("count", "processes"), [(WORTHWHILE - 1, 2), (WORTHWHILE, 1)])
def test_few_compilations_or_one_core_start_nothing(file: Path, compiler: Compiler, count: int, processes: int) -> None:
    wanted = jobs(file, count)
    with compiler.ahead(wanted, processes=processes):
        build, arch, target = wanted[0]
        assert not compiler.compile(build, arch, target=target).cached


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
        monkeypatch.setattr(processes, "ProcessPoolExecutor", refuse)
    else:
        monkeypatch.setattr(ahead.ProcessPoolExecutor, "submit", refuse)
    wanted = jobs(file)
    with compiler.ahead(wanted, processes=2):
        assert not compiler.compile(*wanted[0][:2], target=wanted[0][2]).cached
