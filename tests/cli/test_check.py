"""``attnprof check`` with a fake compiler and a fake device."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import attnprof.compiler
from attnprof.cli import backends, options
from attnprof.kernels.plan import Build
from attnprof.model.devices import find
from attnprof.model.errors import CompileError, EnvironmentProblem
from tests.cli.conftest import Cli, Result
from tests.fakes import FakeExecutor, attend, fake_compiled, fake_spec

ROOT = Path(__file__).resolve().parents[2]
Snapshot = Callable[[str, str], None]


class Compiler:
    """Compiles anything, or fails as told."""

    spill_bytes = 0
    error: Exception | None = None

    def __init__(self) -> None:
        self.asked_ahead: list[tuple[Build, str, str]] = []

    @contextmanager
    def ahead(self, jobs: Iterable[tuple[Build, str, str]]) -> Iterator[None]:
        self.asked_ahead += jobs
        yield

    def compile(self, build: Build, arch: str, *, target: str = "cubin") -> Any:
        if self.error is not None:
            raise self.error
        return fake_compiled(build, arch, spill_bytes=self.spill_bytes)


@pytest.fixture
def check(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``check`` on what is given; without an executor there is neither a GPU nor NVRTC."""

    def run(executor: FakeExecutor | None, *arguments: str, compiler: Any = None, **variables: Any) -> Result:
        def open_gpu() -> FakeExecutor:
            if executor is None or executor.backend != "gpu":
                raise EnvironmentProblem("no GPU: there is no NVIDIA driver", "attnprof roofline --gpu NAME")
            return executor

        def on_emulator(compiler: Any, no_gpu: str | None) -> backends.Checker:
            if executor is None:
                raise EnvironmentProblem("NVRTC is missing", "pip install 'attnprof[nvrtc]'")
            return backends.Checker(executor, "the emulator", no_gpu)

        monkeypatch.setattr(backends, "open_gpu", open_gpu)
        monkeypatch.setattr(backends, "_on_emulator", on_emulator)
        monkeypatch.setattr(attnprof.compiler, "Compiler", lambda: compiler or Compiler())
        monkeypatch.setattr(options, "kernels", lambda _: (fake_spec("fa2[causal]"),))
        return cli("check", *arguments, **variables)

    return run


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_on_the_emulator(check: Callable[..., Result], snapshot: Snapshot, form: str) -> None:
    # Without the numerics, whose figures are NumPy's.
    checks = ("--check", "compile,spills,shared-memory,occupancy,large-tensors,determinism")
    result = check(FakeExecutor(backend="emulator"), *checks, *([] if form == "table" else [f"--{form}"]))
    assert result.code == 0
    snapshot(f"check.{'txt' if form == 'table' else form}", result.out)
    if form == "table":
        assert result.out.endswith("8 passed, 0 failed, 2 skipped\n")
        assert "skipped: fa2[causal] large-tensors" in result.out


@pytest.mark.parametrize("option", [(), ("--check", "compile"), ("--traps", "--kernel", "fa2")])
def test_with_neither_a_gpu_nor_nvrtc_it_ends_at_once(check: Callable[..., Result], option: tuple[str, ...]) -> None:
    compiler = Compiler()
    result = check(None, *option, compiler=compiler)
    assert (result.code, result.out, compiler.asked_ahead) == (2, "", [])
    assert result.err == (
        "error: nothing can be checked: no GPU: there is no NVIDIA driver; NVRTC is missing\n"
        "hint: pip install 'attnprof[nvrtc]'\n"
    )


def test_a_check_that_no_kernel_has(check: Callable[..., Result]) -> None:
    result = check(FakeExecutor(backend="emulator"), "--check", "overflow")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: --check overflow is for kernels whose logits have a limit; without one: fa2[causal]\n"
        "hint: attnprof check --check overflow --kernel softmax-naive\n"
    )


@pytest.mark.parametrize("option", [(), ("--backend", "gpu"), ("--require-gpu",)])
@pytest.mark.parametrize("checks", ["faults", "compile,faults"])
def test_faults_are_not_looked_for_on_a_gpu(check: Callable[..., Result], option: tuple[str, ...], checks: str) -> None:
    result = check(FakeExecutor(), "--check", checks, *option)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: --check faults is for the emulator alone: --backend emulator\n"
        "hint: attnprof check --check faults --backend emulator\n"
    )


def test_a_gpu_finds_no_faults_and_the_emulator_does(cli: Cli) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert backends._on_gpu(FakeExecutor()).finder is None  # type: ignore[arg-type]
    assert backends.open_checker("emulator", Compiler()).finder is not None  # type: ignore[arg-type]


def test_a_race_fails_the_check_for_faults(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the page about faults, as it is at first."""
    page = (ROOT / "docs" / "how-to" / "find-a-fault.md").read_text(encoding="utf-8")
    for text, name in re.findall(r"```\w+\n((?://|#) (mine\.\w+)\b[^\n]*\n.*?)```", page, re.S):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    result = cli("check", "--kernel", "./mine.py", "--check", "faults", "--json")
    assert result.code == 1
    (row,) = result.json["rows"]  # the kernel takes fp16 only
    assert (row["check"], row["status"], row["value"], row["limit"]) == ("faults", "fail", 2, 0)
    assert "mine: out-of-bounds: reads 2 bytes, 0 bytes past the end of x" in row["detail"]
    assert " at mine.cu:13 `for (int i" in row["detail"]
    assert "data-race" in cli("trace", "--kernel", "./mine.py", "--rows", "3", "--cols", "33").out


def test_json_rows(check: Callable[..., Result]) -> None:
    document = check(FakeExecutor(backend="emulator"), "--check", "numerics", "--json").json
    assert document["backend"] == "emulator"
    assert document["reason"] == "no GPU: there is no NVIDIA driver"
    assert document["summary"] == {"passed": 2, "failed": 0, "skipped": 0}
    for row in document["rows"]:
        assert {"kernel", "check", "status", "value", "limit", "arch", "detail"} <= row.keys()
        assert row["check"] == "numerics"
        assert row["status"] == "pass"
        assert 0 < row["value"] < row["limit"]


def test_a_gpu_is_taken_if_there_is_one(check: Callable[..., Result]) -> None:
    # The full set is large for a fake that computes with NumPy: the compile checks show which backend it is.
    document = check(FakeExecutor(), "--check", "compile", "--json").json
    assert (document["backend"], document["reason"]) == ("gpu", None)
    document = check(FakeExecutor(), "--check", "compile", "--backend", "gpu", "--json").json
    assert document["device"]["name"] == "H200"


@pytest.mark.parametrize("option", [("--require-gpu",), ("--backend", "gpu")])
def test_a_required_gpu_that_is_missing(check: Callable[..., Result], option: tuple[str, ...]) -> None:
    result = check(FakeExecutor(backend="emulator"), *option)
    assert result.code == 2
    assert result.out == ""
    assert result.err.splitlines()[0] == "error: no GPU: there is no NVIDIA driver"


def test_a_required_emulator_that_is_missing(check: Callable[..., Result]) -> None:
    result = check(None, "--backend", "emulator")
    assert result.code == 2
    assert "NVRTC is missing" in result.err
    assert "pip install 'attnprof[nvrtc]'" in result.err


def test_a_wrong_kernel_fails(check: Callable[..., Result], snapshot: Snapshot) -> None:
    def half(plan: Any, memory: Any) -> Any:
        outputs = attend(plan, memory)
        outputs["o"][..., plan.tensor("o").shape[-1] // 2 :] = 0
        return outputs

    result = check(FakeExecutor(backend="emulator", compute=half), "--check", "numerics", COLUMNS="60")
    assert result.code == 1
    assert result.out.endswith("0 passed, 2 failed, 0 skipped\n")
    assert "fail: fa2[causal] numerics" in " ".join(result.out.split())


def test_spills_fail(check: Callable[..., Result]) -> None:
    compiler = Compiler()
    compiler.spill_bytes = 8
    result = check(FakeExecutor(backend="emulator"), compiler=compiler)
    assert result.code == 1
    assert "fail: fa2[causal] spills sm_80" in result.out


@pytest.mark.parametrize(("checks", "code"), [("numerics", 2), ("numerics,determinism", 2), ("determinism", 0)])
def test_a_kernel_that_the_gpu_cannot_run_is_no_pass(check: Callable[..., Result], checks: str, code: int) -> None:
    result = check(FakeExecutor(backend="gpu", device=find("T4"), arch="sm_75"), "--check", checks)
    assert "0 passed, 0 failed" in result.out
    assert result.code == code
    assert ("nothing was checked: every row is skipped" in result.err) is (code == 2)


def test_a_compile_error_fails_and_a_missing_compiler_skips(check: Callable[..., Result]) -> None:
    compiler = Compiler()
    compiler.error = CompileError("fa2.cu(3): expected a ';'")
    failed = check(FakeExecutor(backend="emulator"), compiler=compiler)
    assert failed.code == 1
    assert "fa2.cu(3): expected a ';'" in failed.out
    compiler.error = EnvironmentProblem("cuda_fp16.h is missing", "pip install nvidia-cuda-runtime")
    emulated = check(FakeExecutor(backend="emulator"), compiler=compiler)
    assert emulated.code == 0
    assert "2 passed, 0 failed" in emulated.out
    assert "cuda_fp16.h is missing (pip install nvidia-cuda-runtime)" in emulated.out
    # Nothing is left that was checked: no pass for a gate.
    skipped = check(FakeExecutor(backend="emulator"), "--check", "compile,spills", compiler=compiler)
    assert skipped.code == 2
    assert skipped.err.splitlines()[-2] == "error: nothing was checked: every row is skipped"
    assert "pip install 'attnprof[nvrtc]'" in skipped.err


def test_an_interrupt_keeps_the_finished_rows(check: Callable[..., Result], tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "check.json"
    result = check(FakeExecutor(backend="emulator", on_prepare=interrupt), "--output", str(file))
    assert result.code == 130
    assert result.out.endswith("8 passed, 0 failed, 0 skipped, interrupted\n")
    saved = json.loads(file.read_text())
    assert len(saved["rows"]) == 8
    assert saved["interrupted"] is True


def test_progress_names_each_finished_check(check: Callable[..., Result]) -> None:
    lines = check(FakeExecutor(backend="emulator")).err.splitlines()
    assert lines[0] == "fa2[causal] compile sm_80: pass (4 of 4 variants)"
    assert len(lines) == 12


def test_everything_is_asked_for_before_it_is_needed(check: Callable[..., Result]) -> None:
    compiler = Compiler()
    assert check(FakeExecutor(backend="emulator", arch="sm_80"), compiler=compiler).code == 0
    assert {(arch, target) for _, arch, target in compiler.asked_ahead} == {
        ("sm_80", "cubin"),
        ("sm_90a", "cubin"),
        ("sm_80", "ptx"),
    }
