"""Tuning: every tile choice of a kernel compiled, verified and timed in turns with the built-in one.

Two rounds. In the first all choices take a few samples each, in turns. In the second the fastest few meet the built-in
choice again, in fresh samples, until the stopping rule is content: that the first round's winner was partly lucky does
not count then. A choice is kept only if it beats the built-in one by more than the spread of the samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnprof.bench.rows import L2Mode
from attnprof.bench.sampler import Sampling, StoppingRule, UntilSteady
from attnprof.bench.trials import Trial, Tuning, Verdict
from attnprof.bench.winners import Winners
from attnprof.kernels.candidates import Candidate
from attnprof.kernels.executor import TimedExecutor, TimedRun
from attnprof.kernels.plan import Build
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for, judge, launch_poisoned
from attnprof.model.errors import AttnprofError, ContextLost, DescriptionError, OutOfMemory
from attnprof.model.occupancy import occupancy
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Samples of each choice in the first round, and how many choices meet the built-in one again.
FIRST_ROUND_SAMPLES = 6
FINALISTS = 3
# float64 work for the verification of each choice: some tenths of a second. What is kept is verified like any kernel
# when its row is measured.
VERIFY_FLOPS = 500_000_000


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How to tune.

    Attributes:
        l2: as of a row.
        rule: when the second round ends.
        time_limit_s: end the first round after this long.
        seed: of the random inputs.
        target_sample_s: launches are batched until a sample lasts about this long.
        clock: host time in seconds.
        ahead: while it is open, these builds are compiled before they are asked for, many at a time if it can.
    """

    l2: L2Mode = "cold"
    rule: StoppingRule = field(default_factory=UntilSteady)
    time_limit_s: float = 15.0
    seed: int = 0
    target_sample_s: float = 2e-3
    clock: Callable[[], float] = time.monotonic
    ahead: Callable[[Sequence[Build]], AbstractContextManager[None]] = lambda _: nullcontext()


@dataclass
class Tuner:
    """Tunes kernels one after another, and keeps what wins.

    Attributes:
        executor: the device.
        options: how.
        winners: where winners are kept.
        tunings: the outcomes so far.
    """

    executor: TimedExecutor
    options: TuneOptions
    winners: Winners
    tunings: list[Tuning] = field(default_factory=list)

    def __call__(self, spec: KernelSpec, workload: Workload, report: Callable[[str], None]) -> KernelSpec:
        """The kernel with the tiles that win on a workload; as it is where it has no choice or cannot run.

        Raises:
            ContextLost: a choice crashed, and nothing more can run in this process.
            DescriptionError: the kernel's own description went wrong.
        """
        device = self.executor.device
        if spec.direction is not workload.direction or spec.runs_on(device.compute_capability) is not None:
            return spec
        candidates = spec.candidates(workload, device)
        if len(candidates) < 2:
            return spec
        race = _Race(spec, workload, candidates, self.executor, self.options, report)
        try:
            winner = race.run()
        except AttnprofError as error:
            self.tunings.append(Tuning(spec, workload, race.trials, None, error.message))
            if isinstance(error, (ContextLost, DescriptionError)):
                raise
            return spec
        self.tunings.append(Tuning(spec, workload, race.trials, winner))
        self.winners.keep(
            *(spec, workload, device, winner.candidate),
            built_in=race.trials[0].label,
            speedup=winner.speedup or 1.0,
        )
        return spec.choosing(lambda *_: winner.label)


class _Race:
    """All choices of one kernel on one workload."""

    def __init__(
        self,
        spec: KernelSpec,
        workload: Workload,
        candidates: Sequence[Candidate],
        executor: TimedExecutor,
        options: TuneOptions,
        report: Callable[[str], None],
    ) -> None:
        self._spec, self._workload, self._executor, self._options = spec, workload, executor, options
        self._report = report
        self._inputs: Mapping[str, NDArray[Any]] = {}
        self.trials = tuple(Trial.of(candidate) for candidate in candidates)

    def run(self) -> Trial:
        """The winner, after both rounds.

        Raises:
            AttnprofError: the built-in choice does not run, or no choice can be timed.
            ContextLost: a choice crashed; the message names it.
        """
        built_in, *others = self.trials
        builds = [launch.build for trial in self.trials for launch in trial.plan.launches]
        self._report(f"compiling {len(self.trials)} tile choices")
        with self._options.ahead(builds):
            for trial in self.trials:
                self._compile(trial)
        self._inputs = inputs_for(self._spec, self._workload, executor=self._executor, seed=self._options.seed)
        first = UntilSteady(
            min_samples=FIRST_ROUND_SAMPLES,
            min_time_s=0.0,
            max_relative_std=math.inf,
            time_limit_s=self._options.time_limit_s,
        )
        waiting = [trial for trial in others if trial.verdict is None]
        while waiting:
            self._report(f"timing {len(waiting)} tile choices")
            waiting = self._heat(built_in, waiting, first)
        if any(trial.verdict is Verdict.NOT_RESOLVED for trial in others) and built_in.speedup is None:
            # Nothing is known, so what was kept earlier stays.
            raise AttnprofError("too short to time: choose a larger workload")
        faster = [trial for trial in others if trial.verdict is None and (trial.speedup or 0.0) > 1.0]
        finalists = sorted(faster, key=lambda trial: trial.speedup or 0.0, reverse=True)[:FINALISTS]
        while finalists:
            self._report(f"{', '.join(trial.label for trial in finalists)} against {built_in.label}")
            finalists = self._heat(built_in, finalists, self._options.rule)
        return self._decide(built_in, others)

    def _decide(self, built_in: Trial, others: Sequence[Trial]) -> Trial:
        open_ = [trial for trial in others if trial.verdict is None]
        best = max((trial for trial in open_ if trial.wins), key=lambda trial: trial.speedup or 0.0, default=None)
        for trial in open_:
            slower = trial.speedup is None or trial.speedup + (trial.spread or 0.0) < 1.0
            trial.verdict = Verdict.SLOWER if slower else Verdict.BEATEN if trial.wins else Verdict.WITHIN_SPREAD
        built_in.verdict = Verdict.BUILT_IN
        if best is None:
            return built_in
        best.verdict = Verdict.KEPT
        return best

    def _compile(self, trial: Trial) -> None:
        """Registers, spills and blocks an SM; a choice that spills is out, but for the built-in one."""
        built_in = trial is self.trials[0]
        try:
            compiled = {launch.build: self._executor.compile(launch.build) for launch in trial.plan.launches}
        except AttnprofError as error:
            if built_in:
                raise
            trial.drop(Verdict.DOES_NOT_RUN, error.message)
            return
        found = trial.resources = compiled[trial.main.build].resources.get(trial.main.entry)
        facts = self._executor.device.architecture
        if found is None:
            return
        if facts is not None:
            trial.blocks_per_sm = occupancy(
                facts,
                threads=trial.main.threads,
                registers=found.registers,
                smem_bytes=trial.main.smem_bytes + found.static_smem_bytes,
                smem_per_sm_bytes=self._executor.device.smem_per_sm_bytes,
            ).blocks_per_sm
        if found.spill_store_bytes + found.spill_load_bytes and not built_in:
            trial.drop(Verdict.SPILLS, f"{found.spill_store_bytes + found.spill_load_bytes} bytes a thread")

    def _heat(self, built_in: Trial, waiting: Sequence[Trial], rule: StoppingRule) -> list[Trial]:
        """Time choices in turns with the built-in one; those that the memory has no room for beside them are left."""
        left: list[Trial] = []
        with ExitStack() as stack:
            runs = {built_in.label: self._open(built_in, stack)}
            for trial in waiting:
                try:
                    runs[trial.label] = self._open(trial, stack)
                except ContextLost:
                    raise
                except OutOfMemory as error:
                    if len(runs) > 1:
                        left.append(trial)
                    else:
                        trial.drop(Verdict.DOES_NOT_RUN, error.message)
                except _WrongResult as wrong:
                    trial.drop(Verdict.WRONG, wrong.message)
                except AttnprofError as error:
                    trial.drop(Verdict.DOES_NOT_RUN, error.message)
            sampling = Sampling(
                runs,
                rule,
                cold_l2=self._options.l2 == "cold",
                target_sample_s=self._options.target_sample_s,
                clock=self._options.clock,
            )
            try:
                sampling.run()
            except ContextLost as lost:
                raise _crashed(next(trial for trial in self.trials if trial.label in sampling.failed), lost) from lost
        for trial in (built_in, *waiting):
            if trial.label in sampling.failed:
                trial.drop(Verdict.DOES_NOT_RUN, sampling.failed[trial.label])
            elif trial.label in sampling.series:
                trial.take(sampling.series[trial.label], sampling.series[built_in.label])
        return left

    def _open(self, trial: Trial, stack: ExitStack) -> TimedRun:
        """The choice on the device, its inputs written, its result found right once.

        Raises:
            AttnprofError: it does not run, or its result is wrong.
        """
        try:
            run = stack.enter_context(self._executor.prepare(trial.plan))
            for name, values in self._inputs.items():
                run.write(name, values)
            if not trial.verified:
                self._verify(trial, run)
            return run
        except ContextLost as lost:
            raise _crashed(trial, lost) from lost

    def _verify(self, trial: Trial, run: TimedRun) -> None:
        outputs = launch_poisoned(run, trial.plan)
        verdict = judge(self._spec, self._workload, self._inputs, outputs, work_limit_flops=VERIFY_FLOPS)
        if not verdict.passed:
            raise _WrongResult(f"wrong result with {trial.label}: {verdict.detail}")
        trial.verified = True


def _crashed(trial: Trial, lost: ContextLost) -> ContextLost:
    """The same with the tiles named: all choices share the entry point that it names."""
    trial.drop(Verdict.DOES_NOT_RUN, lost.message)
    return ContextLost(f"{trial.label}: {lost.message}", lost.hint)


class _WrongResult(AttnprofError):
    """The output is not that of attention."""
