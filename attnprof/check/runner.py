"""The checklist: for each kernel, all that a compiler can tell, then all that a run can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from attnprof.check import resources
from attnprof.check.cases import cases_for
from attnprof.check.large import NOT_WITHOUT_A_GPU, check_large_tensors
from attnprof.check.numerics import check_determinism, check_numerics, check_overflow
from attnprof.check.resources import Compiler
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.softmax_workloads import overflow_case
from attnprof.check.workers import Workers
from attnprof.kernels.executor import Executor
from attnprof.kernels.plan import Build
from attnprof.kernels.spec import KernelSpec
from attnprof.model.errors import AttnprofError

NO_EXECUTOR = "needs a GPU or the emulator: there is neither"


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check, and how thoroughly.

    Attributes:
        checks: the checks to run.
        full: the full set of workloads or the small one; None: full on a GPU, small on the emulator.
        determinism_runs: runs that must agree bit for bit.
        seed: of the random inputs.
        workers: that make inputs and judge outputs while a GPU runs. The emulator leaves no core idle: it has none.
        no_executor: the reason to give where there is nothing to run on.
        progress: called with one line at each step.
    """

    checks: frozenset[Check] = frozenset(Check)
    full: bool | None = None
    determinism_runs: int = 50
    seed: int = 0
    workers: int = 0
    no_executor: str = NO_EXECUTOR
    progress: Callable[[str], None] = lambda _: None


def run_checks(
    specs: Sequence[KernelSpec], executor: Executor | None, compiler: Compiler, options: CheckOptions
) -> Iterator[CheckRow]:
    """Yield a row for each kernel, check and architecture, as it finishes.

    Without an executor the checks that need one are rows of status ``skipped`` that say so. After a lost device
    context, so are those that could no longer run.

    Args:
        specs: the kernels.
        executor: where kernels run; None where there is nothing.
        compiler: compiles for any architecture, no device needed.
        options: what to check.
    """
    beside_a_gpu = executor is not None and executor.backend == "gpu"
    with Workers(options.workers if beside_a_gpu else 0) as workers:
        yield from _rows(specs, executor, compiler, options, workers)


def _rows(
    specs: Sequence[KernelSpec],
    executor: Executor | None,
    compiler: Compiler,
    options: CheckOptions,
    workers: Workers,
) -> Iterator[CheckRow]:
    lost: str | None = None
    for spec in specs:
        if options.checks & resources.CHECKS:  # else there is nothing to compile ahead
            for row in resources.check_resources(spec, compiler, progress=options.progress):
                if row.check in options.checks:
                    yield row
        blocked = lost or _blocked(spec, executor, options)
        for check in (Check.NUMERICS, Check.LARGE_TENSORS, Check.DETERMINISM, Check.OVERFLOW):
            if check not in options.checks or (check is Check.OVERFLOW and spec.largest_logit is None):
                continue
            if executor is None or blocked is not None:
                arch = executor.arch if executor else None
                reason = blocked or options.no_executor
                yield CheckRow(spec.name, check, CheckStatus.SKIPPED, None, None, None, arch, reason)
                continue
            for row in _run(check, spec, executor, options, workers):
                if row.context_lost:
                    lost = blocked = f"context lost: {spec.name} crashed in {check}"
                yield row


def compilations(
    specs: Sequence[KernelSpec], executor: Executor | None, options: CheckOptions
) -> Iterator[tuple[Build, str, Literal["cubin", "ptx"]]]:
    """What `run_checks` will have compiled with the same arguments, in that order: build, architecture and target.

    But for what the other checks that run alone would need: little, and seldom.
    """
    for spec in specs:
        if options.checks & resources.CHECKS:
            yield from ((build, arch, "cubin") for build, arch in resources.builds(spec))
        runs = executor is not None and Check.NUMERICS in options.checks and _blocked(spec, executor, options) is None
        if executor is not None and runs:
            target: Literal["cubin", "ptx"] = "ptx" if executor.backend == "emulator" else "cubin"
            for case in cases_for(spec, full=_full(executor, options)):
                workload = replace(case.workload, direction=spec.direction)
                if spec.unsupported(workload) is not None:
                    continue
                with suppress(AttnprofError):  # for the check to report
                    launches = spec.plan(workload, executor.device).launches
                    yield from ((launch.build, executor.arch, target) for launch in launches)


def _run(
    check: Check, spec: KernelSpec, executor: Executor, options: CheckOptions, workers: Workers
) -> Iterator[CheckRow]:
    if check is Check.DETERMINISM:
        options.progress(f"{spec.name}: {options.determinism_runs} runs on the same input")
        yield check_determinism(spec, executor, runs=options.determinism_runs, seed=options.seed)
        return
    if check is Check.LARGE_TENSORS:
        if _full(executor, options):
            yield from check_large_tensors(spec, executor, seed=options.seed, progress=options.progress)
        else:
            yield CheckRow(spec.name, check, CheckStatus.SKIPPED, None, None, None, executor.arch, NOT_WITHOUT_A_GPU)
        return
    if check is Check.OVERFLOW:
        yield check_overflow(spec, overflow_case(), executor, seed=options.seed)
        return
    cases = cases_for(spec, full=_full(executor, options))
    yield from check_numerics(spec, cases, executor, seed=options.seed, workers=workers, progress=options.progress)


def _full(executor: Executor, options: CheckOptions) -> bool:
    return options.full if options.full is not None else executor.backend == "gpu"


def _blocked(spec: KernelSpec, executor: Executor | None, options: CheckOptions) -> str | None:
    if executor is None:
        return options.no_executor
    return spec.runs_on(executor.device.compute_capability)
