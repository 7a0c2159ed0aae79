"""Kernels timed against one another on one workload, in turns: what ``check --traps`` asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from attnprof.bench.sampler import Sampling, StoppingRule, UntilSteady
from attnprof.bench.statistics import TimeStats
from attnprof.kernels.executor import TimedExecutor
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for
from attnprof.model.errors import KernelFault
from attnprof.model.workload import Workload

# A factor is wanted, not a per mille: some tens of samples of each.
BRIEF = UntilSteady(min_time_s=0.1, time_limit_s=2.0)


def median_times(
    specs: Sequence[KernelSpec],
    workload: Workload,
    executor: TimedExecutor,
    *,
    rule: StoppingRule = BRIEF,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[float | None, ...]:
    """The median time of each kernel in seconds, L2 flushed before each launch; all are allocated at once.

    None for one that is too short for the device's clock.

    Raises:
        UnsupportedWorkload, LaunchLimitError, OutOfMemory: one cannot run on this device.
        KernelFault: one crashed.
    """
    with ExitStack() as stack:
        runs = {}
        for spec in specs:
            run = stack.enter_context(executor.prepare(spec.plan(workload, executor.device)))
            for name, values in inputs_for(spec, workload, seed=seed).items():
                run.write(name, values)
            runs[spec.name] = run
        sampling = Sampling(runs, rule, clock=clock)
        sampling.run()
        for message in sampling.failed.values():
            raise KernelFault(message)
    medians: list[float | None] = []
    for spec in specs:
        series = sampling.series.get(spec.name)
        stats = TimeStats.of(series.samples) if series is not None and series.resolved else None
        medians.append(stats.median_s if stats is not None and stats.median_s > 0.0 else None)
    return tuple(medians)
