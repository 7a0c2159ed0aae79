"""Traps and cures: the real ones on the emulator, and on fakes whatever can go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnprof.bench.sampler import FixedSamples
from attnprof.bench.together import median_times
from attnprof.check.rows import CheckStatus
from attnprof.check.trap_runner import NO_COUNTER, NO_GPU, TrapRow, TrapRunner
from attnprof.check.traps import Quantity, Trap, all_traps
from attnprof.compiler.compiler import Compiler
from attnprof.emulator.counter import EmulatorCounter
from attnprof.emulator.executor import EmulatorExecutor
from attnprof.kernels.executor import Compiled, Counted, EntryResources
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.errors import AttnprofError, CompileError, ContextLost, EnvironmentProblem, KernelFault, OutOfMemory
from attnprof.model.workload import Workload
from tests.fakes import Arrays, FakeClock, FakeExecutor, ReusingExecutor, attend, fake_demand, fake_spec
from tests.mutants.mutants import SPLIT_STORES, materialise

H200, A100 = find("H200"), find("A100-SXM4-80GB")
SMALL = Workload.of(64, heads=1, head_dim=64)
LEDGER_BYTES = fake_demand(SMALL, H200).hbm_bytes
EXPONENTIALS = fake_demand(SMALL, H200).exponentials


def emulated() -> TrapRunner:
    compiler = Compiler()
    executor = EmulatorExecutor(compiler, A100)
    return TrapRunner(executor, EmulatorCounter(compiler, A100), compiler)


def named(name: str) -> Trap:
    return next(trap for trap in all_traps() if trap.name == name)


def test_emulated_every_cure_cures() -> None:
    rows = list(emulated().run(all_traps()))
    assert [row.status for row in rows] == [CheckStatus.PASS] * 11, [row.detail for row in rows]
    figures = {row.trap: (row.trap_kernel, row.trap_value, row.kernel, row.value) for row in rows}
    assert figures == {
        "no swizzle": ("fa2[plain]", 89_600, "fa2", 0),
        "no padding": ("fa2[plain]", 89_600, "fa2[pad]", 0),
        "P in HBM": ("fa2[write-p]", 393_216, "fa2", 262_144),
        "oversized tile": ("fa2[tile-256]", 4, "fa2", 8),
        "no maximum": ("softmax-naive", 16_000, "softmax-safe", 0),
        "no maximum, fused": ("softmax-fused[no-max]", 16_000, "softmax-fused", 0),
        # 16 rows of 1024 halves in and out, 32 bytes a sector; 4 passes over 8 rows of 16,384, 512 bytes a request.
        "lanes apart": ("softmax-fused[scalar]", 8 * 2048, "softmax-fused", 2048),
        "narrow access": ("softmax-safe[narrow]", 8 * 2048, "softmax-safe", 2048),
        # 8 rows, two reductions each: 256 threads take a barrier and 8 levels.
        "tree of barriers": ("softmax-safe[tree]", 8 * 2 * 9, "softmax-safe", 8 * 2),
        "interleaved tree": ("softmax-safe[interleaved]", 8 * 2 * 105, "softmax-safe", 0),
        "rescale each element": (
            "softmax-online[per-element]",
            rows[-1].trap_value,
            "softmax-online",
            rows[-1].value,
        ),
    }
    # A tenth at most for the merges, over 3 and 2 an element.
    assert 3.0 <= (rows[-1].trap_value or 0) / (8 * 16_384) < 3.1
    assert 2.0 <= (rows[-1].value or 0) / (8 * 16_384) < 2.1
    assert {row.time_reason for row in rows} == {NO_GPU}
    assert {row.unit for row in rows} == set(map(str, Quantity))


BROKEN = {
    # A cure that is built like the trap, a cure that is broken in its own way, and a trap that is none.
    "no swizzle": lambda trap: replace(trap, cure=replace(trap.kernel, name="fa2")),
    "no padding": lambda trap: replace(trap, cure=replace(trap.kernel, name="fa2[pad]")),
    "P in HBM": lambda trap: replace(trap, cure=replace(trap.kernel, name="fa2", demand=trap.cure.demand)),
    "oversized tile": lambda trap: replace(trap, cure=replace(trap.kernel, name="fa2")),
    "no maximum": lambda trap: replace(trap, cure=replace(trap.kernel, name="softmax-safe")),
    "no maximum, fused": lambda trap: replace(trap, cure=replace(trap.kernel, name="softmax-fused")),
    "lanes apart": lambda trap: replace(trap, cure=replace(trap.kernel, name="softmax-fused")),
    "narrow access": lambda trap: replace(trap, cure=replace(trap.kernel, name="softmax-safe")),
    "tree of barriers": lambda trap: replace(trap, cure=replace(trap.kernel, name="softmax-safe")),
    "interleaved tree": lambda trap: replace(trap, cure=replace(trap.kernel, name="softmax-safe")),
    # With the demand of the cure that it replaces, as a change to the source alone would have it.
    "rescale each element": lambda trap: replace(
        trap, cure=replace(trap.kernel, name="softmax-online", demand=trap.cure.demand)
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_emulated_a_cure_that_does_not_cure_fails(name: str) -> None:
    (row,) = emulated().run([BROKEN[name](named(name))])
    assert row.status is CheckStatus.FAIL
    assert row.value == row.trap_value
    cure = row.kernel
    assert row.detail.startswith(f"{cure} is wrong" if "maximum" in name else f"the cure does not cure: {cure} has")


def test_every_trap_has_a_broken_cure_here() -> None:
    assert list(BROKEN) == [trap.name for trap in all_traps()]


def test_emulated_stores_taken_apart_are_no_cure(tmp_path: Path) -> None:
    """As NVRTC compiled one in four of the 16-byte stores when they stood in C++."""
    trap = named("lanes apart")
    cure = replace(materialise(SPLIT_STORES, tmp_path), name="softmax-fused")
    (row,) = emulated().run([replace(trap, cure=cure)])
    assert row.status is CheckStatus.FAIL
    # The loads are whole: 1024 sectors, and four times those of the stores.
    assert row.detail == "the cure does not cure: softmax-fused has 5,120 32-byte sectors, and may have 2,048"


def test_emulated_a_trap_that_is_none_fails() -> None:
    trap = named("no padding")
    (row,) = emulated().run([replace(trap, kernel=trap.cure)])
    assert row.status is CheckStatus.FAIL
    assert row.detail == "nothing to cure: fa2[pad] has 0 bank conflicts, its cure may have 0"


@dataclass
class FakeCounter:
    """Figures by the file name of the plan's kernel."""

    figures: Mapping[str, Counted]
    error: Exception | None = None
    counts: list[str] = field(default_factory=list)

    def count(self, plan: LaunchPlan, inputs: Mapping[str, Any]) -> Counted:
        assert set(inputs) == {"q", "k", "v"}
        name = plan.launches[0].build.file.stem
        self.counts.append(name)
        if self.error is not None:
            raise self.error
        return self.figures[name]


@dataclass
class FakeCompiler:
    registers: Mapping[str, int] = field(default_factory=lambda: {"bad": 255, "good": 64})

    def compile(self, build: Build, arch: str) -> Compiled:
        entry = EntryResources("attention", self.registers[build.file.stem], 0, 0, 0, 0)
        return Compiled(build, arch, b"", {"attention": entry, "fa2_forward": entry}, 0.0, True, "")


BAD, GOOD = fake_spec("bad"), fake_spec("good")


def trap(quantity: Quantity, **changes: Any) -> Trap:
    timed = Workload.of(128, heads=1, head_dim=64)
    return replace(Trap("a trap", "wrong", "right", BAD, GOOD, quantity, SMALL, timed), **changes)


def figures(bad: int, good: int) -> FakeCounter:
    """The same figure for everything that is counted, but for 8192 bytes asked for."""
    return FakeCounter({"bad": counted(bad), "good": counted(good)})


def counted(figure: int) -> Counted:
    return Counted(**{field.name: figure for field in fields(Counted)} | {"global_bytes": 8192})


def runner(**changes: Any) -> TrapRunner:
    fields: dict[str, Any] = {
        "executor": FakeExecutor(),
        "counter": figures(100, 0),
        "compiler": FakeCompiler(),
    }
    return TrapRunner(**(fields | changes))


def only(rows: Sequence[TrapRow] | Any) -> TrapRow:
    (row,) = rows
    return row


@pytest.mark.parametrize(
    ("bad", "good", "status", "says"),
    [
        (100, 0, "pass", "wrong; cure: right"),
        (100, 1, "fail", "the cure does not cure: good has 1 bank conflicts, and may have 0"),
        (0, 0, "fail", "nothing to cure: bad has 0 bank conflicts, its cure may have 0"),
    ],
)
def test_conflicts(bad: int, good: int, status: str, says: str) -> None:
    row = only(runner(counter=figures(bad, good)).run([trap(Quantity.BANK_CONFLICTS)]))
    assert (row.status, row.detail) == (status, says)
    assert (row.trap_value, row.value, row.limit) == (bad, good, 0)


@pytest.mark.parametrize(
    ("bad", "good", "status"),
    [
        (LEDGER_BYTES + 1, LEDGER_BYTES, "pass"),
        (2 * LEDGER_BYTES, LEDGER_BYTES + 1, "fail"),
        (LEDGER_BYTES, LEDGER_BYTES, "fail"),
    ],
)
def test_bytes(bad: int, good: int, status: str) -> None:
    row = only(runner(counter=figures(bad, good)).run([trap(Quantity.HBM_BYTES)]))
    assert (row.status, row.limit) == (status, LEDGER_BYTES)


@pytest.mark.parametrize(
    ("quantity", "bad", "good", "limit", "status"),
    [
        # 8192 bytes are 256 sectors and 16 requests.
        (Quantity.SECTORS, 2048, 256, 256, "pass"),
        (Quantity.SECTORS, 2048, 257, 256, "fail"),
        (Quantity.SECTORS, 256, 256, 256, "fail"),
        (Quantity.REQUESTS, 128, 16, 16, "pass"),
        (Quantity.REQUESTS, 128, 17, 16, "fail"),
        (Quantity.BARRIERS, 9, 8, 8, "pass"),
        (Quantity.BARRIERS, 9, 9, 8, "fail"),
        (Quantity.EXPONENTIALS, 10_000, EXPONENTIALS * 11 // 10, EXPONENTIALS * 11 // 10, "pass"),
        (Quantity.EXPONENTIALS, 10_000, EXPONENTIALS * 11 // 10 + 1, EXPONENTIALS * 11 // 10, "fail"),
    ],
)
def test_counts_and_their_limits(quantity: Quantity, bad: int, good: int, limit: int, status: str) -> None:
    row = only(runner(counter=figures(bad, good)).run([trap(quantity)]))
    assert (row.status, row.value, row.limit, row.unit) == (status, good, limit, quantity.value)


@pytest.mark.parametrize(("bad", "good", "status"), [(255, 64, "pass"), (64, 64, "fail"), (64, 255, "fail")])
def test_warps(bad: int, good: int, status: str) -> None:
    compiler = FakeCompiler({"bad": bad, "good": good})
    row = only(runner(compiler=compiler).run([trap(Quantity.WARPS_PER_SM)]))
    # 48 KiB a block of 4 warps: 4 blocks by shared memory, 2 by 255 registers a thread.
    assert (row.trap_value, row.value) == ({255: 8, 64: 16}[bad], {255: 8, 64: 16}[good])
    assert row.status == status


def test_warps_are_those_of_the_device_and_of_the_launch_with_the_fewest() -> None:
    def two_launches(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        plan = GOOD.plan(workload, device)
        (launch,) = plan.launches
        return replace(plan, launches=(launch, replace(launch, block=(32, 1, 1), smem_bytes=0)))

    combined = trap(Quantity.WARPS_PER_SM, cure=replace(GOOD, plan=two_launches))
    assert only(runner().run([combined])).value == 16  # the other's 32 blocks are a warp each
    # An SM that reports 100 KiB holds two blocks of 48 KiB.
    small = replace(H200, smem_per_sm_bytes=100 * 1024)
    assert only(runner(executor=FakeExecutor(device=small)).run([trap(Quantity.WARPS_PER_SM)])).value == 8


def overflow(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> Arrays:
    outputs = attend(plan, memory)
    if plan.launches[0].build.file.stem == "bad":
        outputs["o"] = np.full_like(outputs["o"], np.inf)
    return outputs


def test_what_the_trap_left_in_memory_is_no_result_of_the_cure() -> None:
    executor = ReusingExecutor(lambda plan: plan.launches[0].build.file.stem == "bad")
    row = only(runner(executor=executor).run([trap(Quantity.BANK_CONFLICTS)]))
    assert row.status == "fail"
    assert row.detail.startswith("good is wrong: ")


def test_values_that_are_not_finite() -> None:
    from attnprof.kernels.inputs import Distribution

    large = trap(Quantity.NOT_FINITE, distribution=Distribution.LARGE_LOGITS)
    row = only(runner(executor=FakeExecutor(compute=overflow)).run([large]))
    assert (row.status, row.trap_value, row.value) == ("pass", 64 * 64, 0)
    row = only(runner().run([large]))
    assert (row.status, row.detail) == (
        "fail",
        "nothing to cure: bad has 0 NaN or Inf values, its cure may have 0",
    )


@pytest.mark.parametrize("side", ["bad", "good"])
def test_either_side_must_be_right_on_ordinary_inputs(side: str) -> None:
    def wrong(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> Arrays:
        outputs = attend(plan, memory)
        if plan.launches[0].build.file.stem == side:
            outputs["o"][:] = 0
        return outputs

    row = only(runner(executor=FakeExecutor(compute=wrong)).run([trap(Quantity.BANK_CONFLICTS)]))
    assert row.status is CheckStatus.FAIL
    assert row.detail.startswith(f"{side} is wrong: ")


def test_what_two_traps_share_is_measured_once() -> None:
    counter = figures(100, 0)
    rows = list(runner(counter=counter).run([trap(Quantity.BANK_CONFLICTS), trap(Quantity.BANK_CONFLICTS)]))
    assert counter.counts == ["bad", "good"]
    assert [row.status for row in rows] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("quantity", "changes", "reason"),
    [
        (Quantity.BANK_CONFLICTS, {"counter": None}, NO_COUNTER),
        (Quantity.HBM_BYTES, {"counter": None}, NO_COUNTER),
        (Quantity.SECTORS, {"counter": None}, NO_COUNTER),
        (
            Quantity.BANK_CONFLICTS,
            {"executor": FakeExecutor(device=find("T4"), arch="sm_75")},
            "needs sm_80, this GPU is sm_75",
        ),
    ],
)
def test_what_cannot_be_judged_here_is_skipped(quantity: Quantity, changes: dict[str, Any], reason: str) -> None:
    row = only(runner(**changes).run([trap(quantity)]))
    assert (row.status, row.detail) == ("skipped", reason)
    assert row.as_row()["value"] is None


def test_a_trap_that_the_device_has_no_room_for_is_skipped_and_a_cure_fails() -> None:
    (oversized,) = (each for each in all_traps() if each.name == "oversized tile")
    small = {"executor": FakeExecutor(device=find("L4"), arch="sm_89")}
    row = only(runner(**small).run([oversized]))
    assert (row.status, row.detail) == (
        "skipped",
        "fa2[tile-256] needs 147,456 B of shared memory a block, 101,376 B available",
    )
    swapped = replace(oversized, kernel=oversized.cure, cure=oversized.kernel)
    row = only(runner(**small, compiler=FakeCompiler({"fa2": 128})).run([swapped]))
    assert row.status == "fail", row.detail


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (EnvironmentProblem("cuda_fp16.h is missing", "pip install x"), "skipped", "cuda_fp16.h is missing (pip"),
        (CompileError("fa2.cu(3): expected a ';'"), "fail", "fa2.cu(3): expected a ';'"),
        (KernelFault("bad address"), "fail", "bad address"),
    ],
)
def test_errors(error: Exception, status: str, says: str) -> None:
    counter = figures(100, 0)
    counter.error = error
    row = only(runner(counter=counter).run([trap(Quantity.BANK_CONFLICTS)]))
    assert row.status == status
    assert row.detail.startswith(says)


def test_after_a_lost_context_the_rest_is_skipped() -> None:
    def crash(_: LaunchPlan) -> None:
        raise ContextLost("illegal address")

    rows = list(runner(executor=FakeExecutor(on_launch=crash)).run([trap(Quantity.BANK_CONFLICTS)] * 2))
    assert [row.status for row in rows] == ["fail", "skipped"]
    assert rows[1].detail == "context lost: bad or good crashed"
    assert rows[1].context_lost


def timed(executor: FakeExecutor) -> Any:
    return lambda specs, workload: median_times(specs, workload, executor, rule=FixedSamples(5), clock=executor.clock)


def slow_if_bad(plan: LaunchPlan, _: int) -> float:
    return 3e-3 if plan.launches[0].build.file.stem == "bad" else 1e-3


def test_both_sides_are_timed_in_turns() -> None:
    order: list[str] = []
    executor = FakeExecutor(
        time_s=slow_if_bad,
        clock=FakeClock(),
        on_time=lambda plan, _: order.append(plan.launches[0].build.file.stem),
    )
    row = only(runner(executor=executor, timer=timed(executor)).run([trap(Quantity.BANK_CONFLICTS)]))
    assert row.time_reason is None
    assert (row.trap_time_s, row.cure_time_s) == (pytest.approx(3e-3), pytest.approx(1e-3))
    assert row.as_row()["slowdown"] == pytest.approx(3.0)
    assert order[-4:] == ["bad", "good", "bad", "good"]
    assert executor.open_runs == 0


@pytest.mark.parametrize(
    ("error", "status", "then"),
    [
        (OutOfMemory(2**40, 2**30), "pass", "pass"),
        # A crash is no lack of a figure: what is right on a small workload may still be wrong on a large one.
        (KernelFault("illegal address"), "fail", "fail"),
        (ContextLost("illegal address"), "fail", "skipped"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_what_cannot_be_timed_is_judged_all_the_same_unless_it_crashes(
    error: AttnprofError, status: str, then: str
) -> None:
    def timer(specs: Sequence[KernelSpec], workload: Workload) -> Sequence[float | None]:
        raise error

    first, second = runner(timer=timer).run([trap(Quantity.BANK_CONFLICTS)] * 2)
    assert (first.status, second.status) == (status, then)
    assert first.time_reason == error.message
    assert (first.detail == error.message) is (status == "fail")
    assert first.value == 0
    assert first.as_row()["slowdown"] is None
    assert second.time_reason == (error.message if then != "skipped" else "context lost: bad or good crashed")


@pytest.mark.parametrize("name", ["bad", "good"])
def test_whichever_crashes_while_it_is_timed_fails_the_trap(name: str) -> None:
    def crash(plan: LaunchPlan, index: int) -> None:
        if plan.launches[0].build.file.stem == name and index == 4:
            raise KernelFault(f"{name}: unspecified launch failure")

    executor = FakeExecutor(on_time=crash)
    row = only(runner(executor=executor, timer=timed(executor)).run([trap(Quantity.BANK_CONFLICTS)]))
    assert (row.status, row.detail) == ("fail", f"{name}: unspecified launch failure")


def test_a_time_below_the_clock_is_unknown() -> None:
    executor = FakeExecutor(time_s=lambda plan, _: 0.0 if plan.launches[0].build.file.stem == "good" else 1e-3)
    row = only(runner(executor=executor, timer=timed(executor)).run([trap(Quantity.BANK_CONFLICTS)]))
    assert row.cure_time_s is None
    assert row.time_reason == "too short for the device's clock"
    assert row.as_row()["slowdown"] is None
