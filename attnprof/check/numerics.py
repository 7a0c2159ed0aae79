"""Does the kernel compute attention? And the same bits each time?"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from attnprof.check import softmax_workloads
from attnprof.check.pipeline import Outcome, outcomes
from attnprof.check.rows import Case, Check, CheckRow, CheckStatus
from attnprof.check.workers import Workers
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.spec import KernelSpec, workload_label
from attnprof.kernels.trial import inputs_for, launch_poisoned, run_once
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, ContextLost, DescriptionError, UnsupportedWorkload
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_numerics(
    spec: KernelSpec,
    cases: Sequence[NumericsCase],
    executor: Executor,
    *,
    seed: int = 0,
    workers: Workers | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckRow]:
    """One row an element type: the case that comes closest to its limit, or how many failed and which came first.

    ``workers`` make inputs and judge outputs while the device runs; without them the device waits.

    A row whose ``context_lost`` is set is the last.
    """
    turned = (replace(case, workload=replace(case.workload, direction=spec.direction)) for case in cases)
    cases = sorted(turned, key=lambda case: case.workload.dtype)
    # The others are wrong by design: check_overflow shows it.
    runnable = [case for case in cases if spec.largest_logit is None or case.distribution not in BEYOND_ANY_LIMIT]
    count = Counter(case.workload.dtype for case in runnable)
    # One pipeline for all rows: the next row's cases run while this one's are judged.
    with closing(
        outcomes(spec, runnable, executor, seed=seed, workers=workers or Workers(0), progress=progress)
    ) as results:
        for dtype in dict.fromkeys(case.workload.dtype for case in cases):
            row = _numerics_row(spec, dtype, islice(results, count[dtype]), executor.arch)
            yield row
            if row.context_lost:
                return


def _numerics_row(
    spec: KernelSpec, dtype: Dtype, results: Iterable[tuple[NumericsCase, Outcome]], arch: str
) -> CheckRow:
    done: list[Case] = []
    refused: list[str] = []
    lost = False
    for case, outcome in results:
        if isinstance(outcome, UnsupportedWorkload):
            refused.append(outcome.message)
            continue
        done.append(case_of(case, outcome))
        lost = lost or isinstance(outcome, ContextLost)

    def row(status: CheckStatus, worst: Case | None, detail: str) -> CheckRow:
        return CheckRow.of_numerics(
            spec.name, Check.NUMERICS, status, worst, dtype, arch, detail, cases=tuple(done), context_lost=lost
        )

    if not done:
        return row(CheckStatus.SKIPPED, None, refused[0] if refused else "no workloads")
    worst = max(done, key=_closeness)
    failed = [case for case in done if case.status is CheckStatus.FAIL]
    if failed:
        first = failed[0]
        return row(
            CheckStatus.FAIL, worst, f"{len(failed)} of {len(done)} {dtype} workloads; {first.workload}: {first.detail}"
        )
    return row(CheckStatus.PASS, worst, f"{len(done)} {dtype} workloads; closest to its limit: {worst.workload}")


# Distributions with logits that no kernel survives which does not subtract the row's maximum.
BEYOND_ANY_LIMIT = (Distribution.LARGE_LOGITS, Distribution.MASKED)


def check_overflow(spec: KernelSpec, case: NumericsCase, executor: Executor, *, seed: int = 0) -> CheckRow:
    """Whether a kernel with a limit on its logits fails beyond it, as it is documented to.

    ``value`` counts the elements that came out NaN or infinite. Were there none, the limit would be a mistake.
    """
    import numpy as np

    from attnprof.model.rounding import decode

    def row(status: CheckStatus, value: int | None, detail: str, *, lost: bool = False) -> CheckRow:
        limit, unit = (None, None) if value is None else (1, "NaN or infinite elements")
        return CheckRow(spec.name, Check.OVERFLOW, status, value, limit, unit, executor.arch, detail, context_lost=lost)

    try:
        plan = spec.plan(case.workload, executor.device)
        inputs = inputs_for(spec, case.workload, executor=executor, distribution=case.distribution, seed=seed)
        outputs = run_once(plan, inputs, executor)
    except ContextLost as error:
        return row(CheckStatus.FAIL, None, error.message, lost=True)
    except DescriptionError:
        raise
    except AttnprofError as error:
        return row(CheckStatus.FAIL, None, error.message)
    values = [decode(output, case.workload.dtype) for output in outputs.values()]
    wild = sum(int(np.count_nonzero(~np.isfinite(each))) for each in values)
    of = f"{wild} of {sum(each.size for each in values)} elements on {case.label}"
    if not wild:
        return row(CheckStatus.FAIL, 0, f"logits beyond {spec.largest_logit:g} came out finite: {of}")
    return row(CheckStatus.PASS, wild, f"logits beyond {spec.largest_logit:g} overflow, as documented: {of}")


def case_of(case: NumericsCase, outcome: Outcome) -> Case:
    """What a case came to, as a row shows it."""
    if isinstance(outcome, AttnprofError):
        return Case(case.label, CheckStatus.FAIL, None, None, outcome.message)
    status = CheckStatus.PASS if outcome.passed else CheckStatus.FAIL
    return Case(case.label, status, outcome.rel_error, outcome.limit, outcome.detail)


def _closeness(case: Case) -> float:
    """Error over limit; what failed without a figure is worst of all."""
    if case.value is None or case.limit is None:
        return float("inf") if case.status is CheckStatus.FAIL else -1.0
    if case.value == 0.0:
        return 0.0
    return case.value / case.limit if case.limit > 0.0 else float("inf")


# Long enough for many blocks to run at once and overtake one another, ragged, and with every head dim's masks.
_DETERMINISM_WORKLOADS = tuple(
    Workload.of(seq_q, seq_kv=seq_kv, batch=2, heads=8, kv_heads=4, head_dim=head_dim, dtype=dtype, causal=causal)
    for seq_q, seq_kv, head_dim, dtype, causal in (
        (1000, 1000, 64, Dtype.FP16, False),
        (1000, 1000, 128, Dtype.BF16, True),
        (8, 10_000, 128, Dtype.FP16, True),  # keys that are split over blocks
    )
)


def check_determinism(spec: KernelSpec, executor: Executor, *, runs: int = 50, seed: int = 0) -> CheckRow:
    """Whether ``runs`` runs on the same input agree bit for bit, outputs poisoned before each."""

    def row(status: CheckStatus, value: int | None, detail: str, *, lost: bool = False) -> CheckRow:
        return CheckRow(
            kernel=spec.name,
            check=Check.DETERMINISM,
            status=status,
            value=value,
            limit=None if value is None else 0,
            unit=None if value is None else "differing runs",
            arch=executor.arch,
            detail=detail,
            context_lost=lost,
        )

    if executor.backend == "emulator":
        return row(CheckStatus.SKIPPED, None, "the emulator runs in one fixed order: nothing could differ")
    if spec.varies is not None:
        return row(CheckStatus.SKIPPED, None, spec.varies)
    chosen = softmax_workloads.determinism_set() if spec.operation == "softmax" else _DETERMINISM_WORKLOADS
    asked = [replace(workload, direction=spec.direction) for workload in chosen]
    workloads = [workload for workload in asked if spec.unsupported(workload) is None]
    if not workloads:
        return row(CheckStatus.SKIPPED, None, spec.unsupported(asked[0]) or "no workloads")
    try:
        for workload in workloads:
            differing, where = _differing_runs(spec, workload, executor, runs, seed)
            if differing:
                name = workload_label(workload, spec.operation)
                detail = f"{differing} of {runs} runs differ from the first on {name}; {where}"
                return row(CheckStatus.FAIL, differing, detail)
    except ContextLost as error:
        return row(CheckStatus.FAIL, None, error.message, lost=True)
    except DescriptionError:
        raise
    except AttnprofError as error:
        return row(CheckStatus.FAIL, None, error.message)
    return row(
        CheckStatus.PASS,
        0,
        f"{runs} runs, bit for bit, on {' and '.join(workload_label(w, spec.operation) for w in workloads)}",
    )


def _differing_runs(spec: KernelSpec, workload: Workload, executor: Executor, runs: int, seed: int) -> tuple[int, str]:
    """How many runs differ from the first, and where the first of those does. Compared while the next one runs."""
    plan = spec.plan(workload, executor.device)
    found: list[str] = []
    comparing: deque[Future[str | None]] = deque()

    def take() -> None:
        where = comparing.popleft().result()
        found.extend([where] if where else [])

    with ThreadPoolExecutor(_COMPARISONS) as pool, executor.prepare(plan) as run:
        for name, values in inputs_for(spec, workload, executor=executor, seed=seed).items():
            run.write(name, values)
        first: Mapping[str, NDArray[Any]] | None = None
        for _ in range(runs):
            if len(comparing) == _COMPARISONS:
                take()
            outputs = launch_poisoned(run, plan)
            if first is None:
                first = outputs
            else:
                comparing.append(pool.submit(_difference, first, outputs))
    while comparing:
        take()
    return len(found), found[0] if found else ""


# Outputs that may wait to be compared: up to 130 MB each.
_COMPARISONS = 2


def _difference(first: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> str | None:
    """Where two sets of outputs differ in a bit, or None."""
    import numpy as np

    for name, values in outputs.items():
        if not np.array_equal(_words(values), _words(first[name])):
            count = int(np.count_nonzero(values.view(np.uint8) != first[name].view(np.uint8)))
            return f"{count} bytes of {name} in the first that does"
    return None


def _words(values: NDArray[Any]) -> NDArray[Any]:
    """The bits of a contiguous array in words as wide as its size allows, to be compared many at a time."""
    width = next(width for width in (8, 4, 2, 1) if values.nbytes % width == 0)
    return values.reshape(-1).view(f"u{width}")
