"""The sweep: for each workload and kernel, predict, compile, verify once, sample, and say what came of it.

A row that cannot run says why and the sweep goes on. Only two things end it early: a lost device context, after which
every remaining row says so, and an interrupt, whose row keeps the samples it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

from attnprof.bench.rates import rate_of
from attnprof.bench.rows import BenchRow, L2Mode, MeasuredRate, PeerResult, RowStatus
from attnprof.bench.sampler import Sampling, StoppingRule, UntilSteady
from attnprof.bench.statistics import DeviceReadings, TimeStats
from attnprof.bench.warnings import row_warnings
from attnprof.kernels.executor import Timed, TimedExecutor, TimedRun
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec, tile_fields
from attnprof.kernels.trial import inputs_for, judge, launch_poisoned
from attnprof.kernels.verify import Verification
from attnprof.model.ceilings import Source
from attnprof.model.errors import (
    AttnprofError,
    ContextLost,
    DescriptionError,
    LaunchLimitError,
    OutOfMemory,
    UnsupportedWorkload,
)
from attnprof.model.roofline import Roofline, roofline, row
from attnprof.model.workload import Workload

# Says what a row is doing, in a few words.
Report = Callable[[str], None]
# A kernel with the tiles that win on a workload, measured before the row is: `attnprof.bench.tune.Tuner`.
TilesByMeasurement = Callable[[KernelSpec, Workload, Report], KernelSpec]
# Opens a peer (a library's attention) on a workload, allocated and ready to be timed.
PeerFactory = Callable[[Workload], AbstractContextManager[Timed]]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sweep is doing: row ``index`` of ``total`` (from 0), and its phase."""

    index: int
    total: int
    kernel: str
    workload: Workload
    phase: str


def _silent(progress: Progress) -> None:
    del progress


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How to run a sweep.

    Attributes:
        l2: ``cold`` flushes the L2 cache before each launch; ``warm`` leaves what the last launch left.
        rule: when to stop sampling.
        ceilings: what the roof is made of.
        verify: compare the output with the float64 reference before timing.
        seed: of the random inputs.
        target_sample_s: launches are batched until a sample lasts about this long.
        clock: host time in seconds.
        progress: called at each phase of each row.
    """

    l2: L2Mode = "cold"
    rule: StoppingRule = field(default_factory=UntilSteady)
    ceilings: Source = "datasheet"
    verify: bool = True
    seed: int = 0
    target_sample_s: float = 5e-3
    clock: Callable[[], float] = time.monotonic
    progress: Callable[[Progress], None] = _silent


def bench(
    specs: Sequence[KernelSpec],
    workloads: Sequence[Workload],
    executor: TimedExecutor,
    options: BenchOptions,
    *,
    peers: Mapping[str, PeerFactory] | None = None,
    rates: Sequence[MeasuredRate] = (),
    tuner: TilesByMeasurement | None = None,
) -> Iterator[BenchRow]:
    """Run the sweep, a row at a time: every workload in order, and every kernel on it.

    An interrupt ends the sweep after a row that holds what was measured (status ``interrupted``).

    Args:
        specs: the kernels.
        workloads: the workloads.
        executor: the device.
        options: how to run.
        peers: libraries to sample in the same loop, by name.
        rates: rates measured in this run; a row that exceeds one is flagged.
        tuner: chooses each row's tiles before it is measured; None takes them as they are.
    """
    total = len(specs) * len(workloads)
    lost: str | None = None
    for index, (workload, spec) in enumerate((w, s) for w in workloads for s in specs):
        attempt = _Attempt(spec, workload, executor, options, peers or {}, rates)
        if lost is not None:
            yield attempt.row(RowStatus.SKIPPED, f"context lost: {lost}")
            continue

        def report(phase: str, index: int = index, spec: KernelSpec = spec, workload: Workload = workload) -> None:
            options.progress(Progress(index, total, spec.name, workload, phase))

        try:
            if tuner is not None:
                attempt = _Attempt(tuner(spec, workload, report), workload, executor, options, peers or {}, rates)
            finished = attempt.run(report)
        except DescriptionError:
            raise
        except AttnprofError as error:  # from tuning
            lost_now = isinstance(error, ContextLost)
            finished = replace(attempt.row(RowStatus.ERROR, error.message), context_lost=lost_now)
        except KeyboardInterrupt:
            yield attempt.row(RowStatus.INTERRUPTED, "interrupted")
            return
        if finished.context_lost:
            lost = f"{spec.name} crashed on {workload.label}"
        yield finished


class _Attempt:
    """One row in the making: what is known so far can be turned into a row at any moment."""

    def __init__(
        self,
        spec: KernelSpec,
        workload: Workload,
        executor: TimedExecutor,
        options: BenchOptions,
        peers: Mapping[str, PeerFactory],
        rates: Sequence[MeasuredRate],
    ) -> None:
        self._spec = spec
        self._workload = workload
        self._executor = executor
        self._options = options
        self._peers = peers
        self._rates = rates
        demand = spec.demand(workload, executor.device)
        self._flops = spec.flops(workload)
        self._hbm_bytes = demand.hbm_bytes
        self._roof: Roofline = roofline(workload, demand, executor.device, options.ceilings, flops=self._flops)
        self._prediction = {
            **row(spec.name, workload, demand, self._roof, flops=self._flops),
            "operation": spec.operation,
            **tile_fields(spec, workload, executor.device),
        }
        self._run: TimedRun | None = None
        self._verification: Verification | None = None
        self._sampling: Sampling | None = None
        self._peer_reasons: dict[str, str] = {}

    def run(self, report: Report) -> BenchRow:
        """Carry the row as far as it goes."""
        reason = self._cannot_run()
        if reason is not None:
            return self.row(RowStatus.SKIPPED, reason)
        try:
            plan = self._spec.plan(self._workload, self._executor.device)
            report("compiling")
            with self._executor.prepare(plan) as run:
                self._run = run
                return self._measure(run, plan, report)
        except (UnsupportedWorkload, LaunchLimitError, OutOfMemory) as error:
            # Nothing went wrong: this kernel, workload and device do not fit one another.
            return self.row(RowStatus.SKIPPED, error.message)
        except ContextLost as error:
            return replace(self.row(RowStatus.ERROR, error.message), context_lost=True)
        except DescriptionError:
            raise
        except AttnprofError as error:
            return self.row(RowStatus.ERROR, error.message)

    def _cannot_run(self) -> str | None:
        if self._workload.direction is not self._spec.direction:
            return f"computes the {self._spec.direction} pass only"
        return self._spec.runs_on(self._executor.device.compute_capability) or self._spec.unsupported(self._workload)

    def _measure(self, run: TimedRun, plan: LaunchPlan, report: Report) -> BenchRow:
        report("filling inputs")
        inputs = inputs_for(self._spec, self._workload, executor=self._executor, seed=self._options.seed)
        for name, values in inputs.items():
            run.write(name, values)
        if self._options.verify:
            report("verifying")
            outputs = launch_poisoned(run, plan)
            self._verification = judge(self._spec, self._workload, inputs, outputs)
            if not self._verification.passed:
                return self.row(RowStatus.ERROR, f"wrong result, not timed: {self._verification.detail}")
        report("sampling")
        with ExitStack() as stack:
            contestants: dict[str, Timed] = {self._spec.name: run}
            for name, factory in self._peers.items():
                try:
                    contestants[f"peer {name}"] = stack.enter_context(factory(self._workload))
                except ContextLost:
                    raise
                except AttnprofError as error:
                    self._peer_reasons[name] = error.message
            self._sampling = Sampling(
                contestants,
                self._options.rule,
                cold_l2=self._options.l2 == "cold",
                target_sample_s=self._options.target_sample_s,
                clock=self._options.clock,
            )
            self._sampling.run()
        return self.row(RowStatus.OK, None)

    def row(self, status: RowStatus, reason: str | None) -> BenchRow:
        """The row, with whatever is known by now."""
        sampling, run = self._sampling, self._run
        series = sampling.series.get(self._spec.name) if sampling else None
        stats = TimeStats.of(series.samples, warmup_launches=series.warmup_launches) if series else None
        # Below the timer's resolution a rate would be noise, and at 0 s infinite; of a failed run it means nothing.
        sound = series is not None and series.resolved and status is not RowStatus.ERROR
        median_s = stats.median_s if sound and stats and stats.median_s > 0.0 else None
        roof_time_s = self._roof.time_s
        finished = BenchRow(
            kernel=self._spec.name,
            workload=self._workload,
            status=status,
            reason=reason,
            prediction=self._prediction,
            arch=self._executor.arch,
            l2=self._options.l2,
            verification=self._verification,
            time=stats,
            stop_reason=sampling.stop_reason if sampling else None,
            flops_per_s=rate_of(self._flops, median_s),
            hbm_bytes_per_s=rate_of(self._hbm_bytes, median_s),
            pct_of_roof=100.0 * roof_time_s / median_s if median_s is not None and roof_time_s is not None else None,
            readings=DeviceReadings.of(series.samples) if series and series.samples else None,
            compile_time_s=sum(compiled.compile_time_s for compiled in run.compiled) if run else None,
            compile_cached=all(compiled.cached for compiled in run.compiled) if run else None,
            peers=self._peer_results(median_s),
        )
        warnings = row_warnings(finished, self._roof, resolved=series.resolved if series else True, rates=self._rates)
        return replace(finished, warnings=warnings)

    def _peer_results(self, median_s: float | None) -> dict[str, PeerResult]:
        results = {}
        for name in self._peers:
            key = f"peer {name}"
            series = self._sampling.series.get(key) if self._sampling else None
            failed = self._sampling.failed.get(key) if self._sampling else None
            stats = TimeStats.of(series.samples, warmup_launches=series.warmup_launches) if series else None
            peer_s = stats.median_s if stats and series and series.resolved and stats.median_s > 0.0 else None
            results[name] = PeerResult(
                name=name,
                time=stats,
                flops_per_s=rate_of(self._flops, peer_s),
                speedup=peer_s / median_s if peer_s is not None and median_s is not None else None,
                reason=None if stats else self._peer_reasons.get(name) or failed or "not sampled",
            )
        return results
