"""``attnprof bench`` on a device that exists in the test alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from attnprof.cli import backends, options
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.errors import ContextLost, EnvironmentProblem, KernelFault, UnsupportedWorkload
from attnprof.model.workload import Workload
from tests.cli.conftest import SOFTWARE, Cli, Result
from tests.fakes import FakeClock, FakeExecutor, FakeTimed, attend, fake_demand, fake_spec

Snapshot = Callable[[str, str], None]


@dataclass
class FakePeer(FakeTimed):
    """A library's attention, copy or matrix product."""

    bytes: int = 2**31
    flops: int | None = 2 * 8192**3
    error: Exception | None = None

    def __enter__(self) -> Self:
        if self.error is not None:
            raise self.error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass
class Device(FakeExecutor):
    """A GPU with peers."""

    def peer(self, name: str, workload: Workload, layout: str = "bhsd") -> FakePeer:
        times = {"copy": 2**31 / 4.2e12, "matmul": 2 * 8192**3 / 750e12, "torch-flash": 1.5e-3}
        error = None
        if name == "torch-cudnn":
            error = UnsupportedWorkload("torch-cudnn cannot run this: no such backend")
        if name == "matmul" and str(workload.dtype) == "bf16":
            error = EnvironmentProblem("PyTorch is missing, which this peer is a part of", "pip install torch")
        return FakePeer(times.get(name, 1.0), self.clock, error=error)


def demand_of_s(workload: Workload, spec: DeviceSpec) -> Demand:
    """Like the fake kernel's, with S in memory."""
    demand = fake_demand(workload, spec)
    s_bytes = workload.rows * workload.seq_kv * 2
    return replace(demand, footprint_bytes=demand.footprint_bytes + s_bytes, intermediate_bytes=s_bytes)


def spec(name: str, **changes: Any) -> KernelSpec:
    return fake_spec(name, **changes)


@pytest.fixture
def bench(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``bench`` on a device with the given kernels."""

    def run(device: Device, *arguments: str, specs: tuple[KernelSpec, ...] = (), **changes: Any) -> Result:
        monkeypatch.setattr(backends, "open_gpu", lambda: device)
        monkeypatch.setattr(backends, "clock", device.clock)
        monkeypatch.setattr(options, "kernels", lambda *_: specs or (spec("fast"), spec("fa2[causal]")))
        return cli("bench", "--heads", "2", "--head-dim", "64", *arguments, **changes)

    return run


def device(**changes: Any) -> Device:
    def time_s(plan: LaunchPlan, index: int) -> float:
        length = plan.tensor("q").shape[2]
        slower = 2.0 if "causal" in plan.launches[0].build.file.name else 1.0
        return slower * 1e-3 * length / 128 * (1 + 1e-4 * (index % 3))

    return Device(**{"time_s": time_s, "clock": FakeClock(), **changes})


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_every_format(bench: Callable[..., Result], snapshot: Snapshot, form: str) -> None:
    option = () if form == "table" else (f"--{form}",)
    result = bench(device(), "--seq", "128,256", "--peer", "torch-flash,torch-cudnn", *option)
    assert result.code == 0
    text = result.out
    if form == "json":
        document = result.json
        for row in document["rows"]:
            samples = row["time_s"].pop("samples")
            assert len(samples) >= 10
            for peer in row["peers"].values():
                if peer["time_s"]:
                    del peer["time_s"]["samples"]
        text = json.dumps({key: document[key] for key in document if key not in ("device", "rates")}, indent=1) + "\n"
    snapshot(f"bench.{'txt' if form == 'table' else form}", text)
    snapshot("bench-progress.txt", result.err)


def test_the_json_of_a_row(bench: Callable[..., Result]) -> None:
    document = bench(device(), "--seq", "128", "--peer", "torch-flash", "--json").json
    assert document["command"] == "bench"
    row = document["rows"][0]
    assert row["status"] == "ok"
    assert row["time_s"]["median"] == pytest.approx(1e-3, rel=1e-3)
    assert row["flops_per_s"] == row["flops"] / row["time_s"]["median"]
    assert row["hbm_bytes_per_s"] == row["hbm_bytes"] / row["time_s"]["median"]
    assert row["pct_of_roof"] == pytest.approx(100 * row["roof_time_s"] / row["time_s"]["median"])
    assert row["speedup_vs_naive"] > 1  # of the roofs; naive itself was not measured
    assert row["measured_speedup_vs_naive"] is None
    assert row["sm_clock_hz"] == 1_980_000_000
    assert row["throttled"] is False
    assert row["compile_time_s"] == 1.5
    assert 0 < row["max_rel_error"] < 1e-2
    assert row["peers"]["torch-flash"]["speedup"] == pytest.approx(1.5, rel=1e-3)
    copy, matmul = document["rates"]
    assert copy["value"] == pytest.approx(4.2e12)
    assert copy["sm_clock_hz"] == 1_980_000_000
    assert matmul["value"] == pytest.approx(750e12)


def test_a_scale_of_its_own_is_said(bench: Callable[..., Result]) -> None:
    result = bench(Device(), "--seq", "1k", "--scale", "0.5")
    assert "scale 0.5" in result.out
    rows = json.loads(bench(Device(), "--seq", "1k", "--scale", "0.5", "--json").out)["rows"]
    assert {row["scale"] for row in rows} == {0.5}


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_width_is_whole(bench: Callable[..., Result], width: int) -> None:
    out = bench(device(), "--seq", "128", "--peer", "torch-flash", COLUMNS=str(width)).out
    assert max(map(len, out.splitlines())) <= width
    text = " ".join(out.split())
    for needle in ("fa2[causal]", "1.000 ms", "vs torch-flash", "% roof", "TFLOP/s", "Predicted", "1.50×"):
        assert needle in text


def test_out_of_memory_is_a_reason_in_any_order(bench: Callable[..., Result], snapshot: Snapshot) -> None:
    def too_big(plan: LaunchPlan) -> None:
        from attnprof.model.errors import OutOfMemory

        if plan.tensor("q").shape[2] == 256 and "big" in plan.launches[0].build.file.name:
            raise OutOfMemory(300 * 2**30, 139 * 2**30)

    specs = (spec("big", demand=demand_of_s), spec("fast"))
    result = bench(device(on_prepare=too_big), "--seq", "128,256,64", specs=specs)
    assert result.code == 0
    snapshot("bench-memory.txt", result.out)
    assert "big at 256: skipped: out of memory: needs 300.00 GiB, 139.00 GiB free" in result.out
    rows = bench(device(on_prepare=too_big), "--seq", "64,256,128", "--json", specs=specs).json["rows"]
    assert {(row["kernel"], row["seq_q"]): row["status"] for row in rows} == {
        (kernel, seq): "skipped" if (kernel, seq) == ("big", 256) else "ok"
        for kernel in ("big", "fast")
        for seq in (64, 128, 256)
    }


def test_a_crash_fails_the_run_and_keeps_the_rows_before_it(bench: Callable[..., Result], tmp_path: Path) -> None:
    def crash(plan: LaunchPlan) -> None:
        if plan.tensor("q").shape[2] == 256:
            raise ContextLost("fast: an illegal memory access")

    file = tmp_path / "run.json"
    arguments = ("--seq", "128,256,64", "--output", str(file))
    result = bench(device(on_launch=crash), *arguments, specs=(spec("fast"),))
    assert result.code == 1
    assert "fast at 256: error: fast: an illegal memory access" in result.out
    assert "context lost" in result.out
    rows = json.loads(file.read_text())["rows"]
    assert [row["status"] for row in rows] == ["ok", "error", "skipped"]


def test_only_a_row_that_is_compared_with_naive_has_its_clock(bench: Callable[..., Result]) -> None:
    def crash(plan: LaunchPlan) -> None:
        if plan.launches[0].build.file.stem == "slow":
            raise KernelFault("slow: too many resources")

    specs = (spec("naive"), spec("fast"), spec("slow"))
    rows = bench(device(on_launch=crash), "--seq", "128", "--json", specs=specs).json["rows"]
    clock_hz = rows[0]["sm_clock_hz"]
    assert clock_hz
    assert [(row["kernel"], row["naive_sm_clock_hz"], row["measured_speedup_vs_naive"] is None) for row in rows] == [
        ("naive", clock_hz, False),
        ("fast", clock_hz, False),
        ("slow", None, True),
    ]


def test_a_wrong_result_fails_the_run_and_is_not_timed(bench: Callable[..., Result]) -> None:
    def wrong(plan: LaunchPlan, memory: Any) -> Any:
        outputs = attend(plan, memory)
        outputs["o"][...] = float("nan")
        return outputs

    result = bench(device(compute=wrong), "--seq", "128", "--json", specs=(spec("fast"),))
    assert result.code == 1
    (row,) = result.json["rows"]
    assert row["status"] == "error"
    assert row["time_s"] is None
    assert row["max_rel_error"] is None
    assert row["verified"] is False
    assert row["reason"]


def test_throttling_and_a_falling_clock_are_said(bench: Callable[..., Result], snapshot: Snapshot) -> None:
    hot = device(
        sm_clock_hz=lambda index: 1_980_000_000 - min(index, 40) * 10_000_000,
        throttle_reasons=lambda _: ("power cap",),
    )
    result = bench(hot, "--seq", "128", specs=(spec("fast"),))
    assert result.code == 0
    assert "every sample throttled: power cap" in result.out
    assert "the SM clock went from" in result.out
    snapshot("bench-throttled.txt", result.out)


def test_more_than_the_roof_is_flagged_and_not_clamped(bench: Callable[..., Result]) -> None:
    result = bench(device(time_s=lambda *_: 1e-9 * 60), "--seq", "512", "--json", specs=(spec("fast"),))
    (row,) = result.json["rows"]
    assert row["pct_of_roof"] > 100
    assert {warning["code"] for warning in row["warnings"]} >= {"above-roof", "fits-l2"}
    shown = bench(device(time_s=lambda *_: 1e-9 * 60), "--seq", "512", specs=(spec("fast"),)).out
    assert f"{row['pct_of_roof']:.1f} % of the roof" in shown


def test_a_timer_at_zero_gives_no_rates_and_no_endless_loop(bench: Callable[..., Result]) -> None:
    result = bench(device(time_s=lambda *_: 0.0), "--seq", "16", "--json", specs=(spec("fast"),))
    (row,) = result.json["rows"]
    assert row["flops_per_s"] is None
    assert row["pct_of_roof"] is None
    assert "below-resolution" in {warning["code"] for warning in row["warnings"]}
    assert bench(device(time_s=lambda *_: 0.0), "--seq", "16", specs=(spec("fast"),)).code == 0


def test_an_interrupt_prints_and_saves_what_is_finished(
    bench: Callable[..., Result], snapshot: Snapshot, tmp_path: Path
) -> None:
    def interrupt(plan: LaunchPlan, index: int) -> None:
        if plan.tensor("q").shape[2] == 256 and index == 12:
            raise KeyboardInterrupt

    file = tmp_path / "run.csv"
    arguments = ("--seq", "128,256,512", "--output", str(file))
    result = bench(device(on_time=interrupt), *arguments, specs=(spec("fast"),))
    assert result.code == 130
    snapshot("bench-interrupted.txt", result.out)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [row["status"] for row in rows] == ["ok", "interrupted"]
    assert float(rows[0]["time_median_s"]) == pytest.approx(1e-3, rel=1e-3)


def test_an_interrupt_before_the_first_row(bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backends, "measure_rates", interrupt)
    result = bench(device(), "--seq", "128", "--json")
    assert result.code == 130
    assert result.json["rows"] == []
    assert result.json["interrupted"] is True


def test_rows_are_saved_as_they_finish(bench: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    seen: list[int] = []

    def look(plan: LaunchPlan) -> None:
        seen.append(len(json.loads(file.read_text())["rows"]) if file.exists() else 0)

    bench(device(on_prepare=look), "--seq", "64,128,256", "--output", str(file), specs=(spec("fast"),))
    assert seen == [0, 1, 2]


def test_the_measured_speed_up_over_naive(bench: Callable[..., Result]) -> None:
    def time_s(plan: LaunchPlan, _: int) -> float:
        return 3e-3 if "naive" in plan.launches[0].build.file.name else 1e-3

    result = bench(device(time_s=time_s), "--seq", "128,256", "--json", specs=(spec("naive"), spec("fast")))
    assert [row["measured_speedup_vs_naive"] for row in result.json["rows"]] == pytest.approx([1.0, 3.0, 1.0, 3.0])


def test_rows_at_other_clocks_than_naives_are_named(bench: Callable[..., Result]) -> None:
    prepared: list[str] = []
    clocks = {"naive": 1_740_000_000, "fast": 1_980_000_000, "near": 1_755_000_000}

    def hot() -> Device:
        return device(
            on_prepare=lambda plan: prepared.append(plan.launches[0].build.file.stem),
            sm_clock_hz=lambda _: clocks.get(prepared[-1]) if prepared else 1_980_000_000,
        )

    specs = tuple(spec(name) for name in (*clocks, "unread"))
    rows = bench(hot(), "--seq", "128", "--json", specs=specs).json["rows"]
    assert [row["sm_clock_hz"] for row in rows] == [*clocks.values(), None]
    assert [row["naive_sm_clock_hz"] for row in rows] == [1_740_000_000] * 4
    said = [line for line in bench(hot(), "--seq", "128", specs=specs).out.splitlines() if "vs naive divides" in line]
    assert said == [
        "fast at 128: vs naive divides times at SM clocks up to 12 % apart (naive and this kernel: 1740 and 1980 MHz), "
        "and is off by up to as much (lock the clocks: nvidia-smi --lock-gpu-clocks)"
    ]
    without = bench(hot(), "--seq", "128", "--json", specs=specs[1:2]).json["rows"]
    assert [row["naive_sm_clock_hz"] for row in without] == [None]


def test_what_is_not_installed_is_left_out_of_the_heading(
    bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Software  driver 580.65.06 (CUDA 13.0) · NVRTC 13.0 · CuPy 14.2.0 (CUDA 13.0) · PyTorch 2.11.0+cu130" in (
        bench(device(), "--seq", "128").out
    )
    monkeypatch.setitem(SOFTWARE, "torch", None)
    monkeypatch.setitem(SOFTWARE, "cudnn", None)
    monkeypatch.setitem(SOFTWARE, "driver", None)
    assert "Software  NVRTC 13.0 · CuPy 14.2.0 (CUDA 13.0)\n" in bench(device(), "--seq", "128").out
    assert bench(device(), "--seq", "128", "--json").json["software"] == SOFTWARE


def test_a_kernel_for_another_architecture_is_one_skipped_row(bench: Callable[..., Result]) -> None:
    specs = (spec("hopper", arches=("sm_90a",)), spec("fast"))
    result = bench(device(device=find("L4"), arch="sm_89"), "--seq", "128", "--json", specs=specs)
    assert result.code == 0
    assert [(row["status"], row["reason"]) for row in result.json["rows"]] == [
        ("skipped", "needs sm_90a, this GPU is sm_89"),
        ("ok", None),
    ]


def test_the_library_may_be_missing(bench: Callable[..., Result]) -> None:
    out = bench(device(), "--seq", "128", "--dtype", "bf16").out
    assert "Measured  in this run: copy 4.2 TB/s at 1.98 GHz · matmul bf16 unknown (PyTorch is missing" in out
    assert "Measured" not in bench(device(), "--seq", "128", "--no-rates").out


def test_progress_redraws_on_a_terminal_only(bench: Callable[..., Result]) -> None:
    result = bench(device(), "--seq", "128", specs=(spec("fast"),))
    assert "\x1b" not in result.err
    assert "\r" not in result.err
    assert result.err.splitlines()[-1].startswith("[1/1] fast b1 h2 s128 d64 fp16: 1.000 ms, ")
