"""The checklist: for each kernel, all that a compiler can tell, then all that a run can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from attnprof.check import resources
from attnprof.check.cases import cases_for
from attnprof.check.faults import check_faults, fault_cases
from attnprof.check.large import NOT_WITHOUT_A_GPU, check_large_tensors
from attnprof.check.numerics import check_determinism, check_numerics, check_overflow
from attnprof.check.resources import Compiler
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.softmax_workloads import overflow_case
from attnprof.check.workers import Workers
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor, FaultFinder
from attnprof.kernels.plan import Build
from attnprof.kernels.spec import KernelSpec
from attnprof.model.errors import AttnprofError


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check, and how thoroughly.

    Attributes:
        checks: the checks to run.
        full: the full set of workloads or the small one; None: full on a GPU, small on the emulator.
        determinism_runs: runs that must agree bit for bit.
        seed: of the random inputs.
        workers: that make inputs and judge outputs while a GPU runs. The emulator leaves no core idle: it has none.
        finder: finds faults; None where kernels run on a GPU, and there is no such check.
        progress: called with one line at each step.
    """

    checks: frozenset[Check] = frozenset(Check)
    full: bool | None = None
    determinism_runs: int = 50
    seed: int = 0
    workers: int = 0
    finder: FaultFinder | None = None
    progress: Callable[[str], None] = lambda _: None


def run_checks(
    specs: Sequence[KernelSpec], executor: Executor, compiler: Compiler, options: CheckOptions
) -> Iterator[CheckRow]:
    """Yield a row for each kernel, check and architecture, as it finishes.

    After a lost device context, the checks that could no longer run are rows of status ``skipped`` that say so.

    Args:
        specs: the kernels.
        executor: where kernels run.
        compiler: compiles for any architecture, no device needed.
        options: what to check.
    """
    with Workers(options.workers if executor.backend == "gpu" else 0) as workers:
        yield from _rows(specs, executor, compiler, options, workers)


def _rows(
    specs: Sequence[KernelSpec],
    executor: Executor,
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
        blocked = lost or spec.runs_on(executor.device.compute_capability)
        for check in (Check.NUMERICS, Check.FAULTS, Check.LARGE_TENSORS, Check.DETERMINISM, Check.OVERFLOW):
            if check not in options.checks or not _has(check, spec, options):
                continue
            if blocked is not None:
                yield CheckRow(spec.name, check, CheckStatus.SKIPPED, None, None, None, executor.arch, blocked)
                continue
            for row in _run(check, spec, executor, options, workers):
                if row.context_lost:
                    lost = blocked = f"context lost: {spec.name} crashed in {check}"
                yield row


def _has(check: Check, spec: KernelSpec, options: CheckOptions) -> bool:
    """Whether there is such a check of the kernel, here."""
    if check is Check.OVERFLOW:
        return spec.largest_logit is not None
    return check is not Check.FAULTS or options.finder is not None


def compilations(
    specs: Sequence[KernelSpec], executor: Executor, options: CheckOptions
) -> Iterator[tuple[Build, str, Literal["cubin", "ptx"]]]:
    """What `run_checks` will have compiled with the same arguments, in that order: build, architecture and target.

    But for what the other checks that run alone would need: little, and seldom.
    """
    for spec in specs:
        if options.checks & resources.CHECKS:
            yield from ((build, arch, "cubin") for build, arch in resources.builds(spec))
        if spec.runs_on(executor.device.compute_capability) is None:
            target: Literal["cubin", "ptx"] = "ptx" if executor.backend == "emulator" else "cubin"
            for case in _compiled_cases(spec, executor, options):
                workload = replace(case.workload, direction=spec.direction)
                if spec.unsupported(workload) is not None:
                    continue
                with suppress(AttnprofError):  # for the check to report
                    launches = spec.plan(workload, executor.device).launches
                    yield from ((launch.build, executor.arch, target) for launch in launches)


def _compiled_cases(spec: KernelSpec, executor: Executor, options: CheckOptions) -> Iterator[NumericsCase]:
    if Check.NUMERICS in options.checks:
        yield from cases_for(spec, full=_full(executor, options))
    if Check.FAULTS in options.checks and options.finder is not None:
        yield from fault_cases(spec)


def _run(
    check: Check, spec: KernelSpec, executor: Executor, options: CheckOptions, workers: Workers
) -> Iterator[CheckRow]:
    if check is Check.DETERMINISM:
        options.progress(f"{spec.name}: {options.determinism_runs} runs on the same input")
        yield check_determinism(spec, executor, runs=options.determinism_runs, seed=options.seed)
        return
    if check is Check.FAULTS and options.finder is not None:
        yield from check_faults(spec, executor, options.finder, seed=options.seed, progress=options.progress)
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
