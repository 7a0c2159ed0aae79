"""``bench --tune`` on a device that exists in the test alone, and the tiles that later runs take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnprof.bench.runner import BenchOptions
from attnprof.bench.sampler import FixedSamples
from attnprof.bench.tune import TuneOptions
from attnprof.cli import backends, gpus, tuning
from attnprof.kernels.executor import Compiled, EntryResources
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.model.devices import find
from attnprof.model.workload import Workload
from tests.cli.conftest import Cli, Result
from tests.cli.test_bench import Device, FakePeer
from tests.fakes import FakeClock, attend

Snapshot = Callable[[str, str], None]

TIMES_S = {("64", "64"): 0.8e-3, ("128", "128"): 1e-3, ("128", "32"): 0.9995e-3}
RUN = ("--kernel", "fa2", "--seq", "128", "--heads", "2", "--head-dim", "64", "--no-rates")


@dataclass
class TunableDevice(Device):
    """A device on which 64 queries at a time are fastest, and 96 keys spill."""

    def compile(self, build: Build, arch: str | None = None) -> Compiled:
        spilled = 16 if dict(build.defines)["BLOCK_KV"] == "96" else 0
        entries = {
            name: EntryResources(name, 128, spilled, spilled, 0, 0)
            for name in ("fa2_forward", "fa2_backward_gradients")
        }
        return Compiled(build, arch or self.arch, b"", entries, 0.0, True, "")


def time_s(plan: LaunchPlan, index: int) -> float:
    macros = dict(plan.launches[0].build.defines)
    return TIMES_S.get((macros["BLOCK_Q"], macros["BLOCK_KV"]), 1.5e-3) * (1 + 1e-3 * (index % 3))


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs ``bench`` on such a device, with a cache of its own."""
    monkeypatch.setenv("ATTNPROF_CACHE_DIR", str(tmp_path / "cache"))

    def bench(*arguments: str, **changes: Any) -> Result:
        device = TunableDevice(**{"time_s": time_s, "clock": FakeClock(), **changes})
        monkeypatch.setattr(backends, "open_gpu", lambda: device)
        monkeypatch.setattr(backends, "clock", device.clock)
        return cli("bench", *RUN, *arguments)

    return bench


@pytest.mark.parametrize("form", ["table", "json", "md", "csv"])
def test_every_format(run: Callable[..., Result], snapshot: Snapshot, form: str) -> None:
    option = () if form == "table" else (f"--{form}",)
    result = run("--tune", *option)
    assert result.code == 0
    text = result.out
    if form == "json":
        (tuning,) = result.json["tuning"]
        for candidate in tuning["candidates"]:
            if candidate["time_s"]:
                del candidate["time_s"]["samples"]
        text = json.dumps({"tuning": [tuning]}, indent=1) + "\n"
    snapshot(f"tune.{'txt' if form == 'table' else form}", text)
    snapshot("tune-progress.txt", result.err)


def test_later_runs_take_what_was_kept_and_say_so(run: Callable[..., Result], snapshot: Snapshot) -> None:
    (before,) = run("--json").json["rows"]
    run("--tune")
    (after,) = run("--json").json["rows"]
    (ignored,) = run("--no-tuned", "--json").json["rows"]
    assert (before["tiles"], before["tiles_source"]) == ("128x128 4w 2st 2b", "built-in")
    assert (after["tiles"], after["tiles_source"]) == ("64x64 4w 2st 4b", "tuned")
    assert (ignored["tiles"], ignored["tiles_source"]) == ("128x128 4w 2st 2b", "built-in")
    assert after["time_s"]["median"] == pytest.approx(0.8e-3, rel=1e-2)
    # What is predicted is the schedule of the tiles that run.
    assert after["predicted_time_s"] != before["predicted_time_s"]
    snapshot("tuned.txt", run().out)


def test_roofline_takes_them_on_that_gpu(run: Callable[..., Result], cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run("--tune")
    local, of_the_table = (gpus.Target(replace(find("H200"), source=source), source) for source in ("nvml", "table"))
    monkeypatch.setattr(gpus, "targets", lambda gpu: (of_the_table if gpu else local,))
    shape = ("--kernel", "fa2", "--seq", "128", "--heads", "2", "--head-dim", "64")
    shown = cli("roofline", *shape)
    assert "64x64 4w 2st 4b" in shown.out
    assert "--no-tuned" in shown.out
    for options in (("--no-tuned",), ("--gpu", "H200")):
        (row,) = cli("roofline", *shape, *options, "--json").json["rows"]
        assert row["tiles_source"] == "built-in"


def test_a_damaged_file_is_one_line(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tiles.json").write_text("{")
    result = run()
    assert result.code == 0
    warnings = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "tiles.json" in warnings[0]


def test_tuning_is_under_the_settings_of_the_rows() -> None:
    device = TunableDevice(clock=FakeClock())
    settings = BenchOptions(l2="warm", rule=FixedSamples(3), seed=7, clock=device.clock)
    assert tuning.open_tuner(device, settings, 3.0).options == TuneOptions(  # type: ignore[arg-type]
        l2="warm", rule=FixedSamples(3), time_limit_s=3.0, seed=7, clock=device.clock, ahead=device.ahead
    )


def test_an_interrupt_keeps_what_is_finished(run: Callable[..., Result], tmp_path: Path) -> None:
    def interrupt(plan: LaunchPlan) -> None:
        if plan.tensor("q").shape[2] == 256 and dict(plan.launches[0].build.defines)["BLOCK_Q"] == "64":
            raise KeyboardInterrupt

    result = run("--seq", "256", "--tune", "--json", on_launch=interrupt)
    assert result.code == 130
    document = result.json
    assert [row["status"] for row in document["rows"]] == ["ok", "interrupted"]
    assert [tuning["tiles"] for tuning in document["tuning"]] == ["64x64 4w 2st 4b"]
    kept = json.loads((tmp_path / "cache" / "tiles.json").read_text())["tiles"]
    assert [entry["tiles"] for entry in kept.values()] == ["64x64 4w 2st 4b"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kernel", "naive"), "--tune: naive has no tiles to choose"),
        (("--kernel", "naive,tiled"), "--tune: none of naive, tiled has tiles to choose"),
        (("--kernel", "fa2", "--variant", "plain"), "--tune: fa2[plain] has no tiles to choose"),
        (
            ("--kernel", "fa2-decode", "--seq", "1", "--layout", "bshd"),
            "--tune: fa2-decode has no tiles to choose with --layout bshd",
        ),
    ],
)
def test_kernels_without_a_choice_are_refused(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    result = cli("bench", *arguments, "--tune")
    assert result.code == 2
    assert result.err == f"error: {says}\nhint: for example: --kernel fa2 --tune\n"


def test_tuning_and_no_tuned_tiles_exclude_each_other(cli: Cli) -> None:
    result = cli("bench", "--kernel", "fa2", "--tune", "--no-tuned")
    assert result.code == 2
    assert result.err == "error: --tune and --no-tuned exclude each other\nhint: leave one of them out\n"


def test_without_a_gpu_it_is_one_line(cli: Cli) -> None:
    result = cli("bench", "--kernel", "fa2", "--tune")
    assert result.code == 2
    assert result.err.startswith("error: no GPU")


# -- the layout


def inside(plan: LaunchPlan, memory: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Attention on tensors with the heads inside the sequence."""
    outside = {name: values.swapaxes(1, 2) if values.ndim == 4 else values for name, values in memory.items()}
    return {name: values.swapaxes(1, 2) for name, values in attend(plan, outside).items()}


def test_heads_inside_the_sequence_are_verified_and_said(run: Callable[..., Result]) -> None:
    result = run("--layout", "bshd", "--json", "--heads", "4", "--kv-heads", "2", "--causal", compute=inside)
    (row,) = result.json["rows"]
    assert (row["status"], row["layout"], row["verified"]) == ("ok", "bshd", True)
    assert "heads inside the sequence (bshd)" in run("--layout", "bshd", compute=inside).out
    # A kernel that took them for the other layout would be found out.
    wrong = run("--layout", "bshd", "--json", "--heads", "4", "--kv-heads", "2")
    assert wrong.code == 1
    assert "wrong result" in wrong.json["rows"][0]["reason"]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_peers_get_tensors_that_lie_as_the_kernels(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    asked: list[tuple[str, str]] = []
    opened = TunableDevice.peer

    def peer(device: TunableDevice, name: str, workload: Workload, layout: str = "bhsd") -> FakePeer:
        asked.append((name, layout))
        return opened(device, name, workload, layout)

    monkeypatch.setattr(TunableDevice, "peer", peer)
    result = run("--layout", layout, "--peer", "torch-flash", compute=inside if layout == "bshd" else attend)
    assert result.code == 0
    assert asked == [("torch-flash", layout)]


def test_the_layouts_are_tuned_apart(run: Callable[..., Result], tmp_path: Path) -> None:
    run("--layout", "bshd", "--tune", compute=inside)
    (row,) = run("--json").json["rows"]
    assert row["tiles_source"] == "built-in"
    (row,) = run("--layout", "bshd", "--json", compute=inside).json["rows"]
    assert row["tiles_source"] == "tuned"


def test_kernels_without_that_layout_are_skipped(run: Callable[..., Result]) -> None:
    rows = run("--kernel", "tiled,fa2", "--layout", "bshd", "--json", compute=inside).json["rows"]
    assert [(row["kernel"], row["status"], row["reason"]) for row in rows] == [
        ("fa2", "ok", None),
        ("tiled", "skipped", "tiled takes bhsd tensors only, not bshd"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layout", "hbsd"), "--layout 'hbsd' is not known"),
        (("--cols", "64", "--layout", "bshd", "--kernel", "softmax-fused"), "softmax kernels take no --layout"),
    ],
)
def test_bad_layouts(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli("bench", *arguments)
    assert result.code == 2
    assert message in result.err
