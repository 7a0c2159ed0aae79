"""Tuning on a device that exists in the test alone: what wins, what is dropped and why, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from attnprof.bench.rows import RowStatus
from attnprof.bench.runner import BenchOptions, bench
from attnprof.bench.sampler import FixedSamples
from attnprof.bench.trials import Trial, Verdict
from attnprof.bench.tune import TuneOptions, Tuner
from attnprof.bench.winners import Winners
from attnprof.kernels.candidates import Candidate
from attnprof.kernels.catalogue import select
from attnprof.kernels.executor import Compiled, EntryResources
from attnprof.kernels.ladder.fa2 import SPECS
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.kernels.trial import inputs_for
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.errors import CompileError, ContextLost, KernelFault, LaunchLimitError, OutOfMemory
from attnprof.model.workload import Pass, Workload
from tests.fakes import FakeClock, FakeExecutor, FakeRun, ReusingExecutor, attend

(FA2,) = SPECS
WORKLOAD = Workload.of(128, heads=2, head_dim=64)
BUILT_IN, FASTER, SPILLING = "128x128 4w 2st 2b", "64x64 4w 2st 4b", "128x96 4w 2st 2b"


def label_of(build: Build) -> str:
    """The tiles of a build of fa2."""
    macros = dict(build.defines)
    q = " qreg" if macros["Q_IN_REGISTERS"] == "1" else ""
    shape = f"{macros['BLOCK_Q']}x{macros['BLOCK_KV']} {macros['WARPS']}w {macros['KV_STAGES']}st"
    return f"{shape}{q} {macros['MIN_BLOCKS']}b"


def tiles(plan: LaunchPlan) -> str:
    return label_of(plan.launches[0].build)


@dataclass
class Device(FakeExecutor):
    """A device whose times and compilations depend on the tiles."""

    times_s: dict[str, float] = field(default_factory=dict)
    noise: float = 1e-4
    compile_error: Callable[[str], Exception | None] = lambda _: None
    spilling: str = SPILLING
    static_smem_bytes: int = 0
    runs: list[tuple[str, FakeRun]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.time_s = lambda plan, index: self.times_s.get(tiles(plan), 2e-3) * (1 + self.noise * (index % 3))

    def compile(self, build: Build, arch: str | None = None) -> Compiled:
        label = label_of(build)
        error = self.compile_error(label)
        if error is not None:
            raise error
        spilled = 8 if label == self.spilling else 0
        found = EntryResources("fa2_forward", 128, spilled, 2 * spilled, 0, self.static_smem_bytes)
        resources = {"fa2_forward": found}
        return Compiled(build, arch or self.arch, b"", resources, 0.0, True, "")

    def prepare(self, plan: LaunchPlan) -> FakeRun:
        run = super().prepare(plan)
        self.runs.append((tiles(plan), run))
        return run

    def samples(self, label: str) -> list[int]:
        """Timing calls of each run of a choice."""
        return [len(run.calls) for name, run in self.runs if name == label]


def device(**changes: object) -> Device:
    return Device(**{"clock": FakeClock(), "times_s": {BUILT_IN: 1e-3, FASTER: 0.8e-3}, **changes})  # type: ignore[arg-type]


def tuner(executor: Device, tmp_path: Path, **changes: object) -> Tuner:
    options = TuneOptions(**{"rule": FixedSamples(10), "clock": executor.clock, **changes})  # type: ignore[arg-type]
    return Tuner(executor, options, Winners(tmp_path / "tiles.json"))


def run(executor: Device, tmp_path: Path, **changes: object) -> Tuner:
    found = tuner(executor, tmp_path, **changes)
    found(FA2, WORKLOAD, lambda _: None)
    return found


def verdicts(found: Tuner) -> dict[str, Verdict | None]:
    return {trial.label: trial.verdict for trial in found.tunings[0].trials}


def test_the_fastest_is_kept_and_runs_from_then_on(tmp_path: Path) -> None:
    executor = device()
    chosen = tuner(executor, tmp_path)(FA2, WORKLOAD, lambda _: None)
    assert tiles(chosen.plan(WORKLOAD, executor.device)) == FASTER
    assert tiles(FA2.plan(WORKLOAD, executor.device)) == BUILT_IN
    later = Winners(tmp_path / "tiles.json").choosing(FA2)
    assert tiles(later.plan(WORKLOAD, executor.device)) == FASTER
    found = later.tiles(WORKLOAD, executor.device)
    assert found is not None
    assert found.tuned
    assert later.demand(WORKLOAD, executor.device) == found.demand()
    assert executor.open_runs == 0


def test_every_choice_has_a_verdict(tmp_path: Path) -> None:
    found = run(device(), tmp_path)
    said = verdicts(found)
    assert said[BUILT_IN] is Verdict.BUILT_IN
    assert said[FASTER] is Verdict.KEPT
    assert said[SPILLING] is Verdict.SPILLS
    assert set(said.values()) == {Verdict.BUILT_IN, Verdict.KEPT, Verdict.SPILLS, Verdict.SLOWER}
    (tuning,) = found.tunings
    winner = tuning.winner
    assert winner is not None
    assert winner.speedup == pytest.approx(1.25, rel=1e-3)
    assert winner.time is not None
    assert len(winner.time.samples) == 10  # those of the second round
    json.dumps(tuning.as_dict(), allow_nan=False)


def test_a_lead_within_the_spread_is_none(tmp_path: Path) -> None:
    found = run(device(times_s={BUILT_IN: 1e-3, FASTER: 0.999e-3}, noise=0.05), tmp_path, rule=FixedSamples(11))
    # Samples of one round are alike here, so that only unlike noise can hide the lead.
    noisy = device(times_s={BUILT_IN: 1e-3, FASTER: 0.999e-3})
    noisy.time_s = lambda plan, index: (
        noisy.times_s.get(tiles(plan), 2e-3) * (1 + 0.05 * (index % 3 if tiles(plan) == FASTER else (index // 2) % 3))
    )
    unsure = run(noisy, tmp_path)
    assert found.tunings[0].winner is not None
    assert found.tunings[0].winner.label == FASTER
    assert unsure.tunings[0].winner is not None
    assert unsure.tunings[0].winner.label == BUILT_IN
    assert verdicts(unsure)[FASTER] in (Verdict.WITHIN_SPREAD, Verdict.SLOWER)


@pytest.mark.parametrize(
    ("time_s", "expected"), [(1.001e-3, Verdict.WITHIN_SPREAD), (1.2e-3, Verdict.SLOWER), (0.9e-3, Verdict.KEPT)]
)
def test_what_the_spread_hides_is_neither_slower_nor_faster(tmp_path: Path, time_s: float, expected: Verdict) -> None:
    executor = device()

    def noisy_s(plan: LaunchPlan, index: int) -> float:
        label = tiles(plan)
        return {BUILT_IN: 1e-3, FASTER: time_s * (0.98, 1.0, 1.02)[index % 3]}.get(label, 2e-3)

    executor.time_s = noisy_s
    assert verdicts(run(executor, tmp_path))[FASTER] is expected


def test_the_three_fastest_meet_the_built_in_choice_again(tmp_path: Path) -> None:
    labels = [candidate.label for candidate in FA2.candidates(WORKLOAD, device().device)]
    better = [label for label in labels if label not in (BUILT_IN, SPILLING)][:5]
    times_s = {label: 1e-3 - 1e-5 * (position + 1) for position, label in enumerate(better)}
    executor = device(times_s={BUILT_IN: 1e-3, **times_s})
    found = run(executor, tmp_path)
    assert {label for label in labels if len(executor.samples(label)) == 2} == {BUILT_IN, *better[-3:]}
    assert found.tunings[0].winner is not None
    assert found.tunings[0].winner.label == better[-1]


def test_the_first_round_ends_in_time(tmp_path: Path) -> None:
    executor = device()
    run(executor, tmp_path, time_limit_s=1e-3)
    short, again = executor.samples(FASTER)
    patient = device()
    run(patient, tmp_path)
    assert short < patient.samples(FASTER)[0]
    assert again == patient.samples(FASTER)[1]


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_candidates_are_timed_with_the_cache_of_the_rows(tmp_path: Path, l2: str) -> None:
    executor = device()
    run(executor, tmp_path, l2=l2)
    assert {cold for _, each in executor.runs for _, cold in each.calls} == {l2 == "cold"}


@pytest.mark.parametrize("seed", [0, 7])
def test_candidates_compute_on_the_inputs_of_the_seed(tmp_path: Path, seed: int) -> None:
    found: list[np.ndarray] = []

    def compute(plan: LaunchPlan, memory: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found.append(memory["q"])
        return attend(plan, memory)

    run(device(compute=compute), tmp_path, seed=seed)
    expected = inputs_for(FA2, WORKLOAD, seed=seed)["q"]
    assert found
    assert all(np.array_equal(q, expected) for q in found)


def test_each_choice_is_verified_once(tmp_path: Path) -> None:
    executor = device()
    run(executor, tmp_path)
    assert len(executor.samples(FASTER)) == 2
    assert sum(each.launches for label, each in executor.runs if label == FASTER) == 1


def test_what_another_choice_left_in_memory_is_no_result(tmp_path: Path) -> None:
    class Reusing(ReusingExecutor, Device):
        pass

    executor = Reusing(lambda plan: tiles(plan) != FASTER, clock=FakeClock(), times_s={BUILT_IN: 1e-3, FASTER: 0.8e-3})
    assert verdicts(run(executor, tmp_path))[FASTER] is Verdict.WRONG


def test_the_built_in_choice_may_spill(tmp_path: Path) -> None:
    found = run(device(spilling=BUILT_IN), tmp_path)
    assert verdicts(found)[BUILT_IN] is Verdict.BUILT_IN
    assert verdicts(found)[FASTER] is Verdict.KEPT
    built_in = found.tunings[0].trials[0].as_dict()
    assert (built_in["spill_bytes"], built_in["reason"]) == (24, None)


def test_blocks_an_sm_are_those_of_the_device(tmp_path: Path) -> None:
    executor = device(static_smem_bytes=512)
    smem_bytes = FA2.plan(WORKLOAD, executor.device).launches[0].smem_bytes
    first = run(executor, tmp_path).tunings[0].trials[0].as_dict()
    assert (first["tiles"], first["smem_bytes"], first["blocks_per_sm"]) == (BUILT_IN, smem_bytes + 512, 2)
    # An SM that reports less shared memory than its architecture has.
    less = device(static_smem_bytes=512, device=replace(executor.device, smem_per_sm_bytes=2 * smem_bytes))
    for trial in run(less, tmp_path).tunings[0].trials:
        assert (trial.blocks_per_sm or 0) * (trial.main.smem_bytes + 512) <= 2 * smem_bytes


@pytest.mark.parametrize(
    ("kernel", "workload", "entry"),
    [
        ("fa2-decode", Workload.of(1, seq_kv=9000, heads=8, kv_heads=2, head_dim=128), "fa2_decode_attention"),
        ("fa2-bwd", Workload.of(128, heads=2, head_dim=64, direction=Pass.BWD), "fa2_backward_gradients"),
    ],
)
def test_what_is_shown_is_the_launch_that_the_tiles_are_about(kernel: str, workload: Workload, entry: str) -> None:
    (spec,) = select([kernel])
    for candidate in spec.candidates(workload, find("H200")):
        trial = Trial.of(candidate)
        assert len(trial.plan.launches) > 1
        assert trial.main.entry == entry


def test_the_built_in_choice_replaces_a_winner_that_no_longer_wins(tmp_path: Path) -> None:
    run(device(), tmp_path)
    again = device(times_s={BUILT_IN: 1e-3})
    run(again, tmp_path)
    kept = Winners(tmp_path / "tiles.json").choosing(FA2).tiles(WORKLOAD, again.device)
    assert kept is not None
    assert kept.label == BUILT_IN


def test_a_fast_choice_with_a_wrong_result_is_out(tmp_path: Path) -> None:
    def compute(plan: LaunchPlan, memory: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = attend(plan, memory)
        if tiles(plan) == FASTER:
            outputs["o"] = outputs["o"][:, :, ::-1].copy()
        return outputs

    found = run(device(compute=compute), tmp_path)
    trial = next(trial for trial in found.tunings[0].trials if trial.label == FASTER)
    assert trial.verdict is Verdict.WRONG
    assert trial.time is None
    assert trial.reason is not None
    assert FASTER in trial.reason
    assert found.tunings[0].winner is not None
    assert found.tunings[0].winner.label == BUILT_IN


@pytest.mark.parametrize("error", [LaunchLimitError("too many threads"), KernelFault("crashed")], ids=str)
def test_what_cannot_run_is_out_and_says_why(tmp_path: Path, error: Exception) -> None:
    def fail(plan: LaunchPlan) -> None:
        if tiles(plan) == FASTER:
            raise error

    found = run(device(on_prepare=fail), tmp_path)
    trial = next(trial for trial in found.tunings[0].trials if trial.label == FASTER)
    assert (trial.verdict, trial.reason) == (Verdict.DOES_NOT_RUN, str(error))


def test_what_does_not_compile_is_out(tmp_path: Path) -> None:
    found = run(device(compile_error=lambda label: CompileError("no") if label == FASTER else None), tmp_path)
    assert verdicts(found)[FASTER] is Verdict.DOES_NOT_RUN


def test_without_the_built_in_choice_there_is_nothing_to_beat(tmp_path: Path) -> None:
    executor = device(compile_error=lambda label: CompileError("no") if label == BUILT_IN else None)
    found = tuner(executor, tmp_path)
    assert found(FA2, WORKLOAD, lambda _: None) is FA2
    assert found.tunings[0].winner is None
    assert found.tunings[0].reason == "no"
    assert not (tmp_path / "tiles.json").exists()


def test_little_memory_means_more_heats_not_fewer_candidates(tmp_path: Path) -> None:
    """Room for two runs at a time: each choice meets the built-in one alone."""
    executor = device()
    plan = FA2.plan(WORKLOAD, executor.device)

    def full(_: LaunchPlan) -> None:
        if executor.open_runs == 2:
            raise OutOfMemory(2 * plan.footprint_bytes, plan.footprint_bytes)

    executor.on_prepare = full
    found = run(executor, tmp_path)
    assert verdicts(found)[FASTER] is Verdict.KEPT
    assert Verdict.DOES_NOT_RUN not in verdicts(found).values()


def test_too_little_memory_for_any_other_choice(tmp_path: Path) -> None:
    executor = device()

    def full(_: LaunchPlan) -> None:
        if executor.open_runs == 1:
            raise OutOfMemory(2, 1)

    executor.on_prepare = full
    found = run(executor, tmp_path)
    assert set(verdicts(found).values()) == {Verdict.BUILT_IN, Verdict.DOES_NOT_RUN, Verdict.SPILLS}


def test_times_below_the_resolution_decide_nothing(tmp_path: Path) -> None:
    run(device(), tmp_path)
    before = (tmp_path / "tiles.json").read_text()
    found = run(device(times_s={BUILT_IN: 1e-9, FASTER: 0.5e-9}), tmp_path)
    assert verdicts(found)[FASTER] is Verdict.NOT_RESOLVED
    assert found.tunings[0].winner is None
    assert found.tunings[0].reason == "too short to time: choose a larger workload"
    # That nothing was found out is no reason to forget what was.
    assert (tmp_path / "tiles.json").read_text() == before


def test_kernels_without_a_choice_are_left_alone(tmp_path: Path) -> None:
    executor = device()
    found = tuner(executor, tmp_path)
    backward = Workload.of(128, heads=2, head_dim=63)
    assert found(FA2, backward, lambda _: None) is FA2
    assert not found.tunings


@pytest.mark.parametrize("crashing", [FASTER, BUILT_IN])
@pytest.mark.parametrize("when", ["on_launch", "on_time"])
def test_a_lost_context_ends_the_row_and_what_follows(tmp_path: Path, when: str, crashing: str) -> None:
    def crash(plan: LaunchPlan, index: int = 3) -> None:
        if tiles(plan) == crashing and index == 3:
            raise ContextLost("fa2_forward: illegal memory access")

    executor = device(**{when: crash})
    found = tuner(executor, tmp_path)
    rows = list(bench([FA2], [WORKLOAD, WORKLOAD], executor, BenchOptions(clock=executor.clock), tuner=found))
    assert [row.status for row in rows] == [RowStatus.ERROR, RowStatus.SKIPPED]
    # All choices have the same entry point: which one it was must be said.
    assert rows[0].reason == found.tunings[0].reason == f"{crashing}: fa2_forward: illegal memory access"
    crashed = [trial.label for trial in found.tunings[0].trials if trial.verdict is Verdict.DOES_NOT_RUN]
    assert crashed == [crashing]


def test_a_choice_without_a_plan_is_an_error_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    def no_plan() -> LaunchPlan:
        raise LaunchLimitError("no such tiles")

    def candidates(workload: Workload, device: DeviceSpec) -> tuple[Candidate, ...]:
        first, second, *_ = FA2.candidates(workload, device)
        return first, replace(second, plan=no_plan)

    executor = device()
    rows = list(
        bench(
            [replace(FA2, name="mine", candidates=candidates), FA2],
            [WORKLOAD],
            executor,
            BenchOptions(clock=executor.clock, rule=FixedSamples(10)),
            tuner=tuner(executor, tmp_path),
        )
    )
    assert [(row.status, row.reason) for row in rows] == [(RowStatus.ERROR, "no such tiles"), (RowStatus.OK, None)]


def test_rows_run_with_the_winner_and_say_so(tmp_path: Path) -> None:
    executor = device()
    options = BenchOptions(clock=executor.clock, rule=FixedSamples(10))
    (row,) = bench([FA2], [WORKLOAD], executor, options, tuner=tuner(executor, tmp_path))
    values = row.as_row()
    assert (values["tiles"], values["tiles_source"]) == (FASTER, "tuned")
    assert row.time is not None
    assert row.time.median_s == pytest.approx(0.8e-3, rel=1e-3)
    (row,) = bench([FA2], [WORKLOAD], executor, options)
    assert (row.as_row()["tiles"], row.as_row()["tiles_source"]) == (BUILT_IN, "built-in")


def test_everything_is_compiled_ahead_at_once(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def ahead(builds: Sequence[Build]) -> AbstractContextManager[None]:
        asked.append([label_of(build) for build in builds])
        return nullcontext()

    run(device(), tmp_path, ahead=ahead)
    (labels,) = asked
    assert {BUILT_IN, FASTER, SPILLING} < set(labels)
