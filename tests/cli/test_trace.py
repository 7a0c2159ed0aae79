"""``attnprof trace``: every format from a made-up run, and real runs of a kernel of the catalogue and of a user's."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest

from attnprof.cli import backends, options
from attnprof.emulator import Counters, Fault, FaultKind, KernelTrace, LineTrace, TensorTrace, Trace
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.errors import CompileError
from attnprof.model.workload import Workload
from tests.cli.conftest import Cli, Result
from tests.fakes import fake_spec

Snapshot = Callable[[str, str], None]
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "find-a-fault.md"

LOAD = Counters(
    warp_instructions=600, thread_instructions=19_200, global_requests=64, global_sectors=2048, global_bytes=32_768,
    global_useful_bytes=32_768, shared_requests=64, shared_wavefronts=512, shared_ideal_wavefronts=256,
)  # fmt: skip
PRODUCT = Counters(warp_instructions=1200, thread_instructions=38_400, matrix_flops=8_388_608)
SOFTMAX = Counters(
    warp_instructions=900, thread_instructions=21_600, exponentials=33_280, barriers=4, divergent_branches=2
)
STORE = Counters(
    warp_instructions=8, thread_instructions=256, global_requests=8, global_sectors=512, global_bytes=8192,
    global_useful_bytes=8192,
)  # fmt: skip
LINES = (
    LineTrace("/k/fake.cu", 40, "k_smem[row][chunk] = k[row * 8 + chunk];", LOAD),
    LineTrace("/k/fake.cu", 52, "mma(s, q, k);", PRODUCT),
    LineTrace("/k/fake.cu", 60, "p = exp2(s - max);  // a comment that goes on, and on, and on, and on", SOFTMAX),
    LineTrace("/k/fake.cu", 77, "o[2 * row] = o_rmem;", STORE),
)  # fmt: skip
KERNEL = KernelTrace(
    "attention",
    "attention",
    (2, 2, 1),
    (128, 1, 1),
    Counters.total(line.counters for line in LINES),
    LINES,
    {"mma.sync": PRODUCT, "ld.global": LOAD},
    (
        TensorTrace("q", 32_768, 0, 32_768, 0, 1024, 0),
        TensorTrace("k", 32_768, 0, 65_536, 0, 2048, 0),
        TensorTrace("v", 32_000, 0, 65_536, 0, 2048, 0),
        TensorTrace("o", 0, 32_768, 0, 32_768, 0, 1024),
        TensorTrace("lse", 0, 1024, 0, 1024, 0, 32),
    ),
)
RACE = "reads what thread (3, 0, 0) of block (0, 0, 0) wrote at line 40 in shared memory, with no barrier in between"
FAULTS = (
    Fault(
        FaultKind.RACE,
        RACE,
        "attention",
        "/k/fake.cu",
        52,
        "ldmatrix",
        (0, 0, 0),
        (0, 0, 0),
        0,
        other=("/k/fake.cu", 40),
        count=1200,
    ),
    Fault(FaultKind.DEADLOCK, "all threads wait", "attention", "", 0, "bar.sync"),
)


@dataclass
class FakeRun:
    trace: Trace
    written: dict[str, Any] = field(default_factory=dict)

    def write(self, name: str, values: Any) -> None:
        self.written[name] = values

    def poison(self) -> None:
        assert self.written.keys() == {"q", "k", "v"}

    def launch(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        pass


@dataclass
class FakeEmulator:
    """Answers every plan with the same trace, or raises."""

    trace: Trace
    error: BaseException | None = None
    device: DeviceSpec = field(default_factory=lambda: find("A100-SXM4-80GB"))
    arch: str = "sm_80"
    backend: str = "emulator"
    plans: list[LaunchPlan] = field(default_factory=list)

    def prepare(self, plan: LaunchPlan) -> FakeRun:
        if self.error is not None:
            raise self.error
        self.plans.append(plan)
        return FakeRun(self.trace)


@pytest.fixture
def trace(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``trace`` with a made-up emulator."""

    def run(emulator: FakeEmulator, *arguments: str, spec: KernelSpec | None = None, **variables: Any) -> Result:
        monkeypatch.setattr(backends, "open_tracer", lambda compiler, device: emulator)
        monkeypatch.setattr(options, "kernels", lambda _: (spec or fake_spec("fa2[causal]"),))
        return cli("trace", *arguments, **variables)

    return run


def made_up(*faults: Fault, **changes: Any) -> FakeEmulator:
    stopped = any(fault.kind is FaultKind.DEADLOCK for fault in faults)
    return FakeEmulator(Trace((KERNEL,), faults, "block 0 says hello\n", stopped), **changes)


SIZE = ("--seq", "128", "--head-dim", "64", "--lines", "2")


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_formats(trace: Callable[..., Result], snapshot: Snapshot, form: str) -> None:
    result = trace(made_up(), *SIZE, *([] if form == "table" else [f"--{form}"]))
    assert result.code == 0
    snapshot(f"trace.{'txt' if form == 'table' else form}", re.sub(r'"attnprof_version": ".*"', "", result.out))


def test_a_narrow_terminal_cuts_nothing(trace: Callable[..., Result], snapshot: Snapshot) -> None:
    result = trace(made_up(*FAULTS), *SIZE, tty=True, COLUMNS="60", TERM="dumb")
    snapshot("trace-60.txt", result.out)
    assert "8,388,608" in result.out


def test_faults_make_it_fail_and_are_counted(trace: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = trace(made_up(*FAULTS), *SIZE, "--output", str(file))
    assert result.code == 1
    assert "Faults: 2, seen 1,201 times" in result.out
    assert "data-race in attention at fake.cu:52, 1,200 times" in result.out
    assert f"{RACE}; first: block (0, 0, 0), thread (0, 0, 0), address 0x0" in result.out
    assert "deadlock in attention at an unknown line (bar.sync)" in result.out
    assert "Counts may be incomplete" in result.out
    assert result.out.endswith("1 traced, 1 with faults\n")
    saved = json.loads(file.read_text())
    assert saved["faults"] == 2
    assert saved["rows"][0]["status"] == "error"
    race, deadlock = saved["rows"][0]["faults"]
    assert (race["line"], race["other_file"], race["other_line"], race["count"]) == (52, "/k/fake.cu", 40, 1200)
    assert (deadlock["line"], deadlock["other_line"], deadlock["count"], deadlock["thread"]) == (None, None, 1, None)


def test_a_race_ends_no_run_and_leaves_the_usual_notes(trace: Callable[..., Result]) -> None:
    result = trace(made_up(FAULTS[0]), *SIZE, "--json")
    assert result.code == 1
    (row,) = result.json["rows"]
    assert row["status"] == "error"
    (clean,) = trace(made_up(), *SIZE, "--json").json["rows"]
    assert row["notes"] == clean["notes"] != []
    assert row["comparison"] == clean["comparison"]


def test_lines_with_conflicts_are_listed_however_cold(trace: Callable[..., Result]) -> None:
    result = trace(made_up(), *SIZE[:-1], "1")
    assert "the 1 hottest, and 2 more with bank conflicts or poor coalescing" in result.out
    assert "fake.cu:40" in result.out
    assert "fake.cu:77" in result.out
    assert "fake.cu:60" not in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seq", "32k"), "takes some"),
        (("--gpu", "H200,B200"), "one GPU at a time"),
        (("--lines", "0"), "--lines"),
        (("--rows", "8"), "--rows needs --cols"),
        (("--cols", "8", "--kernel", "fa2"), "for softmax kernels"),
        (("--gpu", "nonesuch"), "nonesuch"),
    ],
)
def test_usage(trace: Callable[..., Result], arguments: tuple[str, ...], message: str) -> None:
    result = trace(made_up(), *arguments)
    assert result.code == 2
    assert result.out == ""
    assert message in result.err
    assert "hint: " in result.err


def test_what_takes_minutes_is_announced(trace: Callable[..., Result]) -> None:
    result = trace(made_up(), "--seq", "4k", "--heads", "2")
    assert result.code == 0
    assert "warning: fa2[causal] on b1 h2 s4096 d128 fp16 takes some 2 min on the emulator" in result.err


def test_what_cannot_run_is_skipped(trace: Callable[..., Result]) -> None:
    result = trace(made_up(), "--seq", "64", "--head-dim", "64,80")
    assert result.code == 0
    assert "fa2[causal] · length 64 · 2 heads · d 80 · fp16: skipped\nhead_dim must be 64 or 128" in result.out
    assert result.out.endswith("1 traced, 1 skipped, no faults\n")


def test_nothing_traced_is_no_pass(trace: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = trace(made_up(), "--seq", "64", "--head-dim", "80", "--output", str(file))
    assert result.code == 2
    assert "fa2[causal] · length 64 · 2 heads · d 80 · fp16: skipped\nhead_dim must be 64 or 128" in result.out
    assert result.out.endswith("0 traced, 1 skipped, no faults\n")
    assert result.err.splitlines()[-2:] == [
        "error: nothing was traced: head_dim must be 64 or 128",
        "hint: name another workload, or another kernel: attnprof kernels",
    ]
    assert [row["status"] for row in json.loads(file.read_text())["rows"]] == ["skipped"]
    picky = fake_spec("picky", unsupported=lambda workload: f"picky takes no {workload.dtype}")
    result = trace(made_up(), "--seq", "64", "--dtype", "fp16,bf16", spec=picky)
    assert result.code == 2
    assert "error: nothing was traced: picky takes no fp16, and 1 other reason above\n" in result.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("fa2-bwd", "--seq", "64"), "fa2-bwd computes the backward pass only (--pass bwd)"),
        (("fa2-decode", "--seq", "128"), "fa2-decode takes"),
        (("fa1", "--seq", "64", "--head-dim", "96"), "fa1 takes head dim"),
    ],
)
def test_a_kernel_that_cannot_run_is_no_pass(cli: Cli, arguments: tuple[str, ...], reason: str) -> None:
    result = cli("trace", "--kernel", *arguments)
    assert result.code == 2
    assert f"error: nothing was traced: {reason}" in result.err


def test_what_needs_another_architecture_is_skipped(trace: Callable[..., Result]) -> None:
    hopper = fake_spec("wgmma", arches=("sm_90a",))
    device = find("H200")
    result = trace(made_up(device=device), *SIZE, spec=hopper)
    assert "needs sm_90a, the emulator executes sm_80" in result.out
    result = trace(made_up(), *SIZE, spec=hopper)
    assert "needs sm_90a, this GPU is sm_80" in result.out


def test_a_kernel_that_does_not_compile_is_an_error(trace: Callable[..., Result]) -> None:
    result = trace(made_up(error=CompileError("fa2.cu(3): expected a ';'")), *SIZE)
    assert result.code == 1
    assert "fa2.cu(3): expected a ';'" in result.out
    assert result.out.endswith("0 traced, 1 error, no faults\n")
    (row,) = csv.DictReader(io.StringIO(trace(made_up(error=CompileError("no")), *SIZE, "--csv").out))
    assert (row["status"], row["reason"], row["warp_instructions"]) == ("error", "no", "")


def test_an_interrupt_keeps_what_was_finished(trace: Callable[..., Result]) -> None:
    result = trace(made_up(error=KeyboardInterrupt()), *SIZE)
    assert result.code == 130
    assert result.out.endswith("0 traced, no faults, interrupted\n")


# Real runs -----------------------------------------------------------------------------------------------------------


def test_fa2_on_the_emulator(cli: Cli) -> None:
    result = cli("trace", "--kernel", "fa2", "--seq", "128", "--kv-seq", "70", "--head-dim", "64", "--json")
    assert result.code == 0
    (row,) = result.json["rows"]
    assert (row["status"], row["faults"]) == ("ok", [])
    compared = {entry["quantity"]: entry for entry in row["comparison"]}
    # 70 keys fill one tile of 64 and begin another: 128 are computed.
    assert compared["matrix FLOP"]["counted"] * 70 == compared["matrix FLOP"]["predicted"] * 128
    assert compared["exponentials"]["counted"] * 70 == compared["exponentials"]["predicted"] * 128
    assert compared["exponentials, rescaling"]["counted"] > 0
    for tensor in ("Q read", "K read", "V read", "O write"):
        assert compared[f"{tensor}, B"]["difference"] == 0
    (launch,) = row["launches"]
    assert launch["kernel"] == "fa2_forward"
    assert launch["bank_conflicts"] == 0
    assert any("mma_16x8x16" in line["source"] for line in launch["lines"])
    assert row["notes"][0].startswith(
        "matrix FLOP of attention (1.83×), exponentials of attention (1.83×): the last tiles,"
    )


def test_a_softmax_kernel(cli: Cli) -> None:
    result = cli("trace", "--kernel", "softmax-fused", "--cols", "512", "--rows", "16", "--json")
    assert result.code == 0
    (row,) = result.json["rows"]
    differences = {entry["quantity"]: entry["difference"] for entry in row["comparison"]}
    # A warp holds a row: what merges its lanes' sums is evaluated once a lane at most, five times.
    assert 0 <= differences.pop("exponentials") <= 16 * 32 * 5
    assert differences == {"x read, B": 0, "y write, B": 0}


def _files(page: str) -> Mapping[str, str]:
    """The files that the page shows, by the name in the comment that begins each."""
    return {name: text for text, name in re.findall(r"```\w+\n((?://|#) (mine\.\w+)\b[^\n]*\n.*?)```", page, re.S)}


def test_the_page_about_faults_shows_what_trace_prints(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, text in _files(page).items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    runs = re.findall(r"```console\n\$ attnprof ([^\n]*)\n(.*?)```", page, re.S)
    edits = re.findall(r"```diff\n(.*?)```", page, re.S)
    assert len(runs) == len(edits) + 1 == 3
    for command, shown in runs:
        result = cli(*shlex.split(command))
        assert result.code == (1 if "fault" in shown.splitlines()[-1] and "no faults" not in shown else 0)
        assert _figures_out(result.out) == _figures_out(shown)
        if edits:
            source = (tmp_path / "mine.cu").read_text()
            for old, new in re.findall(r"^-(.*)\n(?:\+(.*)\n)+", edits[0], re.M):
                assert source.count(old) == 1
                source = source.replace(old, new)
            for after, new in re.findall(r"^ (.*)\n\+(.*)\n", edits[0], re.M):
                assert source.count(after) == 1
                source = source.replace(after, f"{after}\n{new}")
            (tmp_path / "mine.cu").write_text(source)
            edits.pop(0)
    # Then the page says what check finds: no faults any more, but rows that overflow.
    rows = cli("check", "--kernel", "./mine.py", "--check", "numerics,faults", "--json").json["rows"]
    verdicts = {(row["check"], row["status"]) for row in rows if row["status"] != "skipped"}
    assert verdicts == {("faults", "pass"), ("numerics", "fail")}
    failed = [case["workload"] for row in rows for case in row["cases"] if case["status"] == "fail"]
    assert {workload.rsplit(" ", 1)[1] for workload in failed} == {"large-logits", "masked"}


def test_the_page_about_the_emulator_shows_what_trace_prints(cli: Cli) -> None:
    """What the compiler has no say in: the comparison with the model, and its explanation."""
    page = (ROOT / "docs" / "methodology" / "emulator.md").read_text(encoding="utf-8")
    ((command, shown),) = re.findall(r"```console\n\$ attnprof ([^\n]*)\n(.*?)\nEach launch", page, re.S)
    assert cli(*shlex.split(command)).out.startswith(shown)
    fragments = re.findall(r"```text\n(.*?)\n```", page, re.S)
    assert len(fragments) == 2
    result = cli("trace", "--kernel", "naive,fa2", "--seq", "300", "--head-dim", "64", "--causal")
    for fragment in fragments:
        assert fragment in result.out


def _figures_out(text: str) -> list[str]:
    """Instruction counts are the compiler's, and which thread is first may change with them; all else must agree."""
    lines = [re.sub(r"[ ─]{2,}", "  ", line) for line in text.splitlines() if not line.startswith("mine.cu:")]
    lines = [re.sub(r"^(softmax +mine +)[\d,]+ +[\d.]+ %", r"\1N", line) for line in lines]
    return [re.sub(r"(thread|first: block) \(.*", r"\1", re.sub(r"\d+ times|Faults: \d+", "N", line)) for line in lines]


def test_the_snapshot_kernel_is_consistent() -> None:
    assert KERNEL.counters == Counters.total(line.counters for line in LINES)
    assert np.isclose(LOAD.coalescing_efficiency or 0, 0.5)


def test_a_mistake_in_a_description_ends_the_run_and_what_is_finished_is_shown(trace: Callable[..., Result]) -> None:
    from attnprof.kernels.guard import Origin, guarded

    def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        assert workload.seq_q == 64
        return fake_spec().plan(workload, device)

    spec = guarded(fake_spec("mine", plan=plan), Origin("mine.py", Path(__file__).resolve()))
    result = trace(made_up(), "--seq", "64,65", "--head-dim", "64", spec=spec)
    assert result.code == 2
    assert "mine · length 64" in result.out
    assert re.search(r"^error: mine: plan on b1 h2 s65 d64 fp16 failed in mine\.py, line \d+: Assert", result.err, re.M)
    assert trace(made_up(), "--seq", "65", "--head-dim", "64", spec=spec).out == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("softmax-fused", "--rows", "1", "--cols", "300000", "--gpu", "H200"),
            "needs thread block clusters (sm_90) on this GPU, the emulator executes sm_80",
        ),
        (
            ("fa2", "--variant", "tile-256", "--seq", "64", "--gpu", "L4"),
            "fa2_forward: needs 147,456 B of shared memory a block",
        ),
    ],
)
def test_what_the_device_or_the_emulator_has_no_room_for_is_skipped(
    cli: Cli, arguments: tuple[str, ...], reason: str
) -> None:
    result = cli("trace", "--kernel", *arguments, "--json")
    (row,) = result.json["rows"]
    assert (result.code, row["status"]) == (2, "skipped")
    assert row["reason"].startswith(reason)
