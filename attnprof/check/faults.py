"""Does the kernel do what a right result can hide: race, read what nothing wrote, leave a copy unwaited?

On the emulator alone, which can watch every access. Numerics run there without that, as it takes three times as long,
so these workloads are few: ragged ones of more than one tile in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from attnprof.check.rows import Case, Check, CheckRow, CheckStatus
from attnprof.check.softmax_workloads import place_set
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor, FaultFinder
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, UnsupportedWorkload
from attnprof.model.workload import Workload

_DTYPES = (Dtype.FP16, Dtype.BF16)
# (queries, keys, query heads): two tiles of any kernel's queries at least, and more keys than any keeps on chip at a
# time; else what a decode kernel takes, its rows two tiles and its keys split; else what fills every tile.
_SHAPES = ((140, 660, 2), (9, 1030, 8), (256, 256, 2))
# Under a mask as many keys as queries, so that whole tiles lie beyond the diagonal.
_CAUSAL_SHAPES = ((200, 197, 2), *_SHAPES[1:])
# A head dim less than the tiles are wide, where a kernel takes one: those of `workloads.small_set`, compiled already.
_PADDED_SHAPE = (140, 150, 2)
_PADDED = {Dtype.FP16: 40, Dtype.BF16: 88}


def fault_cases(spec: KernelSpec) -> tuple[NumericsCase, ...]:
    """What a kernel is watched on, by element type; empty where it takes none of it."""
    if spec.operation == "softmax":
        return tuple(case for case in place_set() if spec.unsupported(case.workload) is None)
    found = (
        next((workload for workload in choices if spec.unsupported(workload) is None), None)
        for dtype in _DTYPES
        for choices in (
            _choices(spec, dtype, causal=False),
            _choices(spec, dtype, causal=True),
            (_workload(spec, _PADDED_SHAPE, 1, _PADDED[dtype], dtype, causal=False),),
        )
    )
    return tuple(NumericsCase(workload) for workload in found if workload is not None)


def check_faults(
    spec: KernelSpec,
    executor: Executor,
    finder: FaultFinder,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckRow]:
    """One row an element type: the most faults of a workload, which must be none, and the first in words.

    Args:
        spec: the kernel.
        executor: whose device and architecture the finder stands for.
        finder: runs and watches.
        seed: of the random inputs.
        progress: called with one line before each run.
    """
    cases = sorted(fault_cases(spec), key=lambda case: case.workload.dtype)
    if not cases:
        reason = spec.unsupported(_workload(spec, _SHAPES[0], 1, 128, Dtype.FP16, causal=False)) or "no workloads"
        yield CheckRow(spec.name, Check.FAULTS, CheckStatus.SKIPPED, None, None, None, executor.arch, reason)
    for dtype, some in groupby(cases, key=lambda case: case.workload.dtype):
        done = []
        for case in some:
            progress(f"{spec.name}: {case.label}, watched for faults")
            done.append(_watched(spec, case, executor, finder, seed))
        yield _row(spec, dtype, done, executor.arch)


def _watched(spec: KernelSpec, case: NumericsCase, executor: Executor, finder: FaultFinder, seed: int) -> Case:
    try:
        plan = spec.plan(case.workload, executor.device)
        found = finder.find(plan, inputs_for(spec, case.workload, distribution=case.distribution, seed=seed))
    except UnsupportedWorkload as error:
        return Case(case.label, CheckStatus.SKIPPED, None, None, error.message)
    except AttnprofError as error:
        return Case(case.label, CheckStatus.FAIL, None, None, error.message)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    status = CheckStatus.FAIL if found else CheckStatus.PASS
    return Case(case.label, status, len(found), 0, f"{found[0]}{more}" if found else "no faults")


def _row(spec: KernelSpec, dtype: Dtype, done: list[Case], arch: str) -> CheckRow:
    run = [case for case in done if case.status is not CheckStatus.SKIPPED]
    failed = [case for case in run if case.status is CheckStatus.FAIL]
    counts = [int(case.value) for case in run if case.value is not None]
    if failed:
        status = CheckStatus.FAIL
        detail = f"{len(failed)} of {len(run)} {dtype} workloads; {failed[0].workload}: {failed[0].detail}"
    elif run:
        status, detail = CheckStatus.PASS, f"{len(run)} {dtype} workloads: {', '.join(case.workload for case in run)}"
    else:
        status, detail = CheckStatus.SKIPPED, done[0].detail
    value, limit, unit = (max(counts), 0, f"faults, {dtype}") if counts else (None, None, None)
    return CheckRow(spec.name, Check.FAULTS, status, value, limit, unit, arch, detail, cases=tuple(done))


def _choices(spec: KernelSpec, dtype: Dtype, *, causal: bool) -> Iterator[Workload]:
    """The same kind of workload, the most telling first: a kernel runs the first that it takes."""
    for shape in _CAUSAL_SHAPES if causal else _SHAPES:
        for kv_heads in (1, shape[2]):
            for head_dim in (64, 128) if causal else (128, 64):
                yield _workload(spec, shape, kv_heads, head_dim, dtype, causal=causal)


def _workload(
    spec: KernelSpec, shape: tuple[int, int, int], kv_heads: int, head_dim: int, dtype: Dtype, *, causal: bool
) -> Workload:
    seq_q, seq_kv, heads = shape
    workload = Workload.of(
        seq_q, seq_kv=seq_kv, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, causal=causal
    )
    return replace(workload, direction=spec.direction)
