"""``attnprof check --traps`` and ``bench --variant``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import attnprof.compiler
from attnprof.check import traps as catalogue
from attnprof.check.traps import Quantity, Trap
from attnprof.cli import backends
from attnprof.kernels.executor import Counted
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.model.errors import EnvironmentProblem
from attnprof.model.workload import Workload
from tests.cli.conftest import Cli, Result
from tests.fakes import FakeExecutor, attend, fake_compiled, fake_spec

Snapshot = Callable[[str, str], None]

FAKE = fake_spec("fake")
FAKE = replace(FAKE, variants=lambda: (fake_spec("fake[bad]"),))
WORKLOAD = Workload.of(64, heads=1, head_dim=64)


def two_traps() -> tuple[Trap, ...]:
    bad = FAKE.variant("bad")
    timed = Workload.of(128, heads=1, head_dim=64)
    return (
        Trap("no swizzle", "rows share [banks]", "XOR", bad, FAKE, Quantity.BANK_CONFLICTS, WORKLOAD, timed),
        Trap("no maximum", "exp(x) overflows", "exp(x - max)", bad, FAKE, Quantity.NOT_FINITE, WORKLOAD, timed),
    )


class Counter:
    """Conflicts by the name of the kernel's file."""

    conflicts: Mapping[str, int] = {"fake[bad]": 89_600, "fake": 0}

    def count(self, plan: LaunchPlan, inputs: Mapping[str, Any]) -> Counted:
        found = self.conflicts[plan.launches[0].build.file.stem]
        return Counted(**{field.name: found for field in fields(Counted)})


class Compiler:
    def compile(self, build: Build, arch: str, *, target: str = "cubin") -> Any:
        return fake_compiled(build, arch)


def overflow(plan: LaunchPlan, memory: Mapping[str, Any]) -> Any:
    outputs = attend(plan, memory)
    if "bad" in plan.launches[0].build.file.stem:
        outputs["o"][..., 0] = float("inf")
    return outputs


def time_s(plan: LaunchPlan, index: int) -> float:
    return (2.5e-3 if "bad" in plan.launches[0].build.file.stem else 1e-3) * (1 + 1e-4 * (index % 3))


@pytest.fixture
def check(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``check --traps`` on fakes; the values of the second trap overflow on ordinary inputs too."""

    def run(
        *arguments: str, gpu: bool = False, traps: Sequence[Trap] | None = None, counter: Any = None, **variables: Any
    ) -> Result:
        executor = FakeExecutor(backend="gpu" if gpu else "emulator", compute=overflow, time_s=time_s)

        def open_gpu() -> FakeExecutor:
            if not gpu:
                raise EnvironmentProblem("no GPU: there is no NVIDIA driver", "attnprof roofline --gpu NAME")
            return executor

        monkeypatch.setattr(backends, "open_gpu", open_gpu)
        monkeypatch.setattr(backends, "clock", executor.clock)
        monkeypatch.setattr(
            backends, "_on_emulator", lambda _, no_gpu: backends.Checker(executor, "the emulator", no_gpu)
        )
        monkeypatch.setattr(backends, "open_counter", lambda *_: counter or Counter())
        monkeypatch.setattr(attnprof.compiler, "Compiler", Compiler)
        monkeypatch.setattr(catalogue, "all_traps", lambda: two_traps() if traps is None else tuple(traps))
        return cli("check", "--traps", *arguments, **variables)

    return run


LARGE = [replace(trap, distribution=catalogue.Distribution.LARGE_LOGITS) for trap in two_traps()]


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_every_format(check: Callable[..., Result], snapshot: Snapshot, form: str) -> None:
    result = check(*([] if form == "table" else [f"--{form}"]), traps=LARGE)
    assert result.code == 0
    snapshot(f"check-traps.{'txt' if form == 'table' else form}", result.out)


def test_on_a_gpu_both_are_timed(check: Callable[..., Result], snapshot: Snapshot) -> None:
    result = check("--require-gpu", gpu=True, traps=LARGE)
    assert result.code == 0
    snapshot("check-traps-gpu.txt", result.out)
    rows = check("--json", gpu=True, traps=LARGE).json["rows"]
    for row in rows:
        assert row["slowdown"] == pytest.approx(2.5, rel=1e-3)
        assert row["time_reason"] is None
        assert row["trap_time_s"] > row["cure_time_s"] > 0


@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_width_is_whole(check: Callable[..., Result], width: int) -> None:
    out = check(gpu=True, traps=LARGE, COLUMNS=str(width)).out
    assert max(map(len, out.splitlines())) <= width
    text = " ".join(out.split())
    for needle in ("fake[bad]", "89,600", "2.50×", "rows share [banks]", "XOR", "2 passed"):
        assert needle in text, needle


def test_a_cure_that_no_longer_cures_fails(check: Callable[..., Result]) -> None:
    class Broken(Counter):
        conflicts: Mapping[str, int] = {"fake[bad]": 89_600, "fake": 89_600}

    result = check(traps=LARGE, counter=Broken())
    assert result.code == 1
    text = " ".join(result.out.split())
    assert "fail: no swizzle: the cure does not cure: fake has 89,600 bank conflicts, and may have 0" in text
    assert "1 passed, 1 failed, 0 skipped" in text


def test_a_run_that_could_judge_nothing_is_no_pass(check: Callable[..., Result]) -> None:
    class Headless(Counter):
        def count(self, plan: LaunchPlan, inputs: Mapping[str, Any]) -> Counted:
            raise EnvironmentProblem("cuda_fp16.h is missing", "pip install x")

    result = check(traps=LARGE[:1], counter=Headless())
    assert result.code == 2
    assert "0 passed, 0 failed, 1 skipped" in result.out
    assert "nothing was checked: every row is skipped" in result.err


def test_the_real_cure_replaced_by_the_trap_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on the emulator, nothing faked but the cure."""
    (trap,) = (trap for trap in catalogue.all_traps() if trap.name == "no swizzle")
    monkeypatch.setattr(catalogue, "all_traps", lambda: (trap,))
    assert cli("check", "--traps").code == 0
    plain = replace(trap.kernel, name="fa2")
    monkeypatch.setattr(catalogue, "all_traps", lambda: (replace(trap, cure=plain),))
    result = cli("check", "--traps", "--json")
    assert result.code == 1
    (row,) = result.json["rows"]
    assert (row["kernel"], row["check"], row["status"]) == ("fa2", "trap", "fail")
    assert row["value"] == row["trap_value"] > 0


def test_rows_are_saved_as_they_finish(check: Callable[..., Result], tmp_path: Path) -> None:
    class Interrupted(Counter):
        def count(self, plan: LaunchPlan, inputs: Mapping[str, Any]) -> Counted:
            raise KeyboardInterrupt

    file = tmp_path / "traps.json"
    result = check("--output", str(file), traps=LARGE[::-1], counter=Interrupted())
    assert result.code == 130
    saved = json.loads(file.read_text())
    assert [row["trap"] for row in saved["rows"]] == ["no maximum"]
    assert result.err.splitlines()[0].startswith("no maximum: fake[bad] beside fake: pass (64 → 0 NaN")


@pytest.mark.parametrize(
    ("arguments", "says", "hints"),
    [
        (("check", "--traps", "--check", "spills"), "--traps and --check exclude each other", "leave one"),
        (("check", "--traps", "--kernel", "all,nope"), "no trap is about nope", "fa2, softmax-naive, softmax-safe"),
        (("check", "--traps", "--kernel", "naive"), "no trap is about naive", "fa2, softmax-naive, softmax-safe"),
        (("check", "--traps", "--variant", "pad"), "--traps and --variant exclude each other", "its own variant"),
        (("check", "--variant", "scalar"), "--variant needs --kernel", "--kernel fa2 --variant scalar"),
        (("check", "--kernel", "softmax-safe", "--variant", "no-max"), "softmax-safe has no variant", "scalar, narrow"),
        (("trace", "--kernel", "softmax-fused", "--cols", "64", "--variant", "tree"), "softmax-fused has no", "no-max"),
        (("bench", "--variant", "plain"), "--variant needs --kernel", "--kernel fa2 --variant plain"),
        (("bench", "--kernel", "fa2", "--variant", "x[y]"), "fa2 has no variant 'x[y]'", "plain, pad, write-p"),
        (("bench", "--kernel", "naive", "--variant", "pad"), "naive has no variant 'pad'", "leave out --variant"),
        (("bench", "--kernel", "fa2", "--variant", ","), "--variant ',' has an empty value", "--variant plain"),
        (("bench", "--kernel", "fa2", "--variant", "pad,"), "--variant 'pad,' has an empty value", "--variant plain"),
    ],
)
def test_bad_input(cli: Cli, arguments: tuple[str, ...], says: str, hints: str) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert says in result.err
    assert hints in result.err


OF_FA2 = ["no swizzle", "no padding", "P in HBM", "oversized tile"]


@pytest.mark.parametrize(
    ("kernel", "traps"),
    [
        ("fa2", OF_FA2),
        ("softmax-safe", ["no maximum", "narrow access", "tree of barriers", "interleaved tree"]),
        ("softmax-fused", ["no maximum, fused", "lanes apart"]),
        ("softmax-online", ["rescale each element"]),
        ("softmax-naive,fa2", [*OF_FA2, "no maximum"]),
        ("all", [trap.name for trap in catalogue.all_traps()]),
    ],
)
def test_kernels_choose_traps(kernel: str, traps: list[str]) -> None:
    from attnprof.cli.traps import choose

    assert [trap.name for trap in choose([kernel])] == traps


def test_bench_runs_variants(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor()
    monkeypatch.setattr(backends, "open_gpu", lambda: executor)
    monkeypatch.setattr(backends, "clock", executor.clock)
    arguments = ("--seq", "128", "--heads", "1", "--no-rates", "--json", "--kernel", "fa2")
    for variant, kernels in (
        ("plain", ["fa2[plain]"]),
        ("base,pad", ["fa2", "fa2[pad]"]),
        ("write-p,write-p", ["fa2[write-p]"]),
        ("all,base", ["fa2", "fa2[plain]", "fa2[pad]", "fa2[write-p]", "fa2[tile-256]"]),
    ):
        rows = cli("bench", *arguments, "--variant", variant).json["rows"]
        assert [row["kernel"] for row in rows] == kernels
        assert {row["status"] for row in rows} == {"ok"}
    table = cli("bench", *arguments[:5], "--kernel", "fa2", "--variant", "plain").out
    assert "fa2[plain]" in table


def test_check_covers_variants_on_the_emulator(cli: Cli) -> None:
    rows = cli("check", "--kernel", "softmax-fused", "--variant", "no-max", "--backend", "emulator", "--json").json[
        "rows"
    ]
    assert {row["kernel"] for row in rows} == {"softmax-fused[no-max]"}
    assert {row["check"] for row in rows} == {
        *("compile", "spills", "shared-memory", "occupancy", "numerics", "faults"),
        *("large-tensors", "determinism", "overflow"),
    }
    assert {row["status"] for row in rows if row["check"] not in ("large-tensors", "determinism")} == {"pass"}


def test_trace_shows_what_a_variant_wastes(cli: Cli) -> None:
    arguments = (
        "trace",
        "--kernel",
        "softmax-fused",
        "--variant",
        "base,scalar",
        "--cols",
        "4096",
        "--rows",
        "2",
        "--json",
    )
    base, scalar = (row["launches"][0] for row in cli(*arguments).json["rows"])
    assert base["coalescing_efficiency"] == 1.0
    assert scalar["coalescing_efficiency"] == 0.125
    assert scalar["global_sectors"] == 8 * base["global_sectors"] == 8 * 2 * 2 * 4096 * 2 // 32
