"""Does the kernel compute attention? And the same bits each time?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attnprof.check import softmax_workloads
from attnprof.check.rows import Case, Check, CheckRow, CheckStatus
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor, Run
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec, workload_label
from attnprof.kernels.trial import inputs_for, judge
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, ContextLost, UnsupportedWorkload
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_numerics(
    spec: KernelSpec,
    cases: Sequence[NumericsCase],
    executor: Executor,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckRow]:
    """One row an element type: the case that comes closest to its limit, or how many failed and which came first."""
    cases = [replace(case, workload=replace(case.workload, direction=spec.direction)) for case in cases]
    for dtype, group in groupby(sorted(cases, key=lambda case: case.workload.dtype), lambda case: case.workload.dtype):
        yield _numerics_row(spec, dtype, tuple(group), executor, seed, progress)


def _numerics_row(
    spec: KernelSpec,
    dtype: Dtype,
    cases: tuple[NumericsCase, ...],
    executor: Executor,
    seed: int,
    progress: Callable[[str], None],
) -> CheckRow:
    done: list[Case] = []
    refused: list[str] = []
    lost = False
    for case in cases:
        reason = spec.laid_out(case.layout).unsupported(case.workload)
        if reason is not None:
            refused.append(reason)
            continue
        if spec.largest_logit is not None and case.distribution in BEYOND_ANY_LIMIT:
            continue  # wrong by design: check_overflow shows it
        progress(f"{spec.name}: {case.label}")
        try:
            done.append(_run_case(spec, case, executor, seed))
        except UnsupportedWorkload as error:
            refused.append(error.message)
        except ContextLost as error:
            done.append(_failed(case, error))
            lost = True
            break
        except AttnprofError as error:
            done.append(_failed(case, error))

    def row(status: CheckStatus, worst: Case | None, detail: str) -> CheckRow:
        return CheckRow(
            kernel=spec.name,
            check=Check.NUMERICS,
            status=status,
            value=worst.value if worst else None,
            limit=worst.limit if worst else None,
            unit=f"relative L2, {dtype}" if worst else None,
            arch=executor.arch,
            detail=detail,
            cases=tuple(done),
            context_lost=lost,
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
        _, outputs = _run(spec, case, executor, seed)
    except ContextLost as error:
        return row(CheckStatus.FAIL, None, error.message, lost=True)
    except AttnprofError as error:
        return row(CheckStatus.FAIL, None, error.message)
    values = [decode(output, case.workload.dtype) for output in outputs.values()]
    wild = sum(int(np.count_nonzero(~np.isfinite(each))) for each in values)
    of = f"{wild} of {sum(each.size for each in values)} elements on {case.label}"
    if not wild:
        return row(CheckStatus.FAIL, 0, f"logits beyond {spec.largest_logit:g} came out finite: {of}")
    return row(CheckStatus.PASS, wild, f"logits beyond {spec.largest_logit:g} overflow, as documented: {of}")


def _failed(case: NumericsCase, error: AttnprofError) -> Case:
    return Case(case.label, CheckStatus.FAIL, None, None, error.message)


def _closeness(case: Case) -> float:
    """Error over limit; what failed without a figure is worst of all."""
    if case.value is None or case.limit is None:
        return float("inf") if case.status is CheckStatus.FAIL else -1.0
    if case.value == 0.0:
        return 0.0
    return case.value / case.limit if case.limit > 0.0 else float("inf")


def _run_case(spec: KernelSpec, case: NumericsCase, executor: Executor, seed: int) -> Case:
    spec = spec.laid_out(case.layout)
    inputs, outputs = _run(spec, case, executor, seed)
    verdict = judge(spec, case.workload, inputs, outputs)
    status = CheckStatus.PASS if verdict.passed else CheckStatus.FAIL
    return Case(case.label, status, verdict.rel_error, verdict.limit, verdict.detail)


def _run(
    spec: KernelSpec, case: NumericsCase, executor: Executor, seed: int
) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]]:
    """Inputs and outputs of one run, outputs poisoned before it."""
    plan = spec.plan(case.workload, executor.device)
    inputs = inputs_for(spec, case.workload, executor=executor, distribution=case.distribution, seed=seed)
    with executor.prepare(plan) as run:
        for name, values in inputs.items():
            run.write(name, values)
        run.poison()
        run.launch()
        return inputs, _outputs(run, plan)


def _outputs(run: Run, plan: LaunchPlan) -> dict[str, NDArray[Any]]:
    return {tensor.name: run.read(tensor.name) for tensor in plan.tensors if tensor.role == "out"}


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
    except AttnprofError as error:
        return row(CheckStatus.FAIL, None, error.message)
    return row(
        CheckStatus.PASS,
        0,
        f"{runs} runs, bit for bit, on {' and '.join(workload_label(w, spec.operation) for w in workloads)}",
    )


def _differing_runs(spec: KernelSpec, workload: Workload, executor: Executor, runs: int, seed: int) -> tuple[int, str]:
    import numpy as np

    plan = spec.plan(workload, executor.device)
    with executor.prepare(plan) as run:
        for name, values in inputs_for(spec, workload, executor=executor, seed=seed).items():
            run.write(name, values)
        first: dict[str, NDArray[Any]] = {}
        differing, where = 0, ""
        for _ in range(runs):
            run.poison()
            run.launch()
            outputs = {name: values.view(np.uint8) for name, values in _outputs(run, plan).items()}
            if not first:
                first = outputs
                continue
            unequal = [name for name, values in outputs.items() if not np.array_equal(values, first[name])]
            if unequal and not differing:
                count = int(np.count_nonzero(outputs[unequal[0]] != first[unequal[0]]))
                where = f"{count} bytes of {unequal[0]} in the first that does"
            differing += bool(unequal)
        return differing, where
