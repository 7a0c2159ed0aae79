"""Is the kernel right where an offset no longer fits 32 bits?

The tensors take gigabytes, so they are few, live in this process alone, and what does not fit is skipped and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from attnprof.check.numerics import case_of
from attnprof.check.pipeline import Outcome, outcomes
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.softmax_workloads import matrix
from attnprof.check.workers import Workers
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor
from attnprof.kernels.host import available_bytes
from attnprof.kernels.inputs import forget_inputs
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.verify import Verification
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import ContextLost, OutOfMemory, UnsupportedWorkload
from attnprof.model.workload import Workload

# What judging an output takes beside the tensors.
_MARGIN_BYTES = 1 << 30
# Tensors with the heads inside the sequence are transposed for the kernel, and back to be judged.
_COPIES_OF_OTHER_LAYOUT = 3

# Few queries, as a decode kernel takes them. In the first K, V, dK, dV and the scores have more than 2^31 elements.
# In the second Q, O and dQ have, and there are more heads than one dimension of a grid holds beside x.
_ATTENTION = (
    Workload.of(16, seq_kv=65_536, heads=2056, kv_heads=257, head_dim=128),
    Workload.of(16, seq_kv=3, batch=65_541, heads=16, kv_heads=1, head_dim=128),
)
_SOFTMAX = (matrix(65_541, 32_771, Dtype.FP16),)

NOT_WITHOUT_A_GPU = "tensors of more than 2^31 elements are for a GPU"


def large_cases(spec: KernelSpec) -> tuple[NumericsCase, ...]:
    """What a kernel is tried on: tensors of more than 2^31 elements each."""
    workloads = _SOFTMAX if spec.operation == "softmax" else _ATTENTION
    return tuple(NumericsCase(replace(w, direction=spec.direction), operation=spec.operation) for w in workloads)


def check_large_tensors(
    spec: KernelSpec, executor: Executor, *, seed: int = 0, progress: Callable[[str], None] = lambda _: None
) -> Iterator[CheckRow]:
    """One row a workload: ``skipped`` where the kernel does not take it, or the device or the host lacks the memory."""
    for case in large_cases(spec):
        outcome = _outcome(spec, case, executor, seed, progress)
        yield _row(spec, case, outcome, executor.arch)
        if isinstance(outcome, ContextLost):
            return


def _row(spec: KernelSpec, case: NumericsCase, outcome: Outcome, arch: str) -> CheckRow:
    done = case_of(case, outcome)
    return CheckRow.of_numerics(
        spec.name,
        Check.LARGE_TENSORS,
        CheckStatus.SKIPPED if isinstance(outcome, OutOfMemory | UnsupportedWorkload) else done.status,
        done if isinstance(outcome, Verification) else None,
        case.workload.dtype,
        arch,
        f"{case.label}: {done.detail}",
        context_lost=isinstance(outcome, ContextLost),
    )


def _outcome(
    spec: KernelSpec, case: NumericsCase, executor: Executor, seed: int, progress: Callable[[str], None]
) -> Outcome:
    if spec.unsupported(case.workload) is None:
        needed, available = _host_bytes(spec, case, executor), available_bytes()
        if available is not None and available < needed:
            return OutOfMemory(needed, available, "on the host")
    try:
        # Without workers: the tensors are not sent anywhere.
        with closing(outcomes(spec, [case], executor, seed=seed, workers=Workers(0), progress=progress)) as results:
            return next(outcome for _, outcome in results)
    except MemoryError:
        return UnsupportedWorkload("out of memory on the host")
    finally:
        forget_inputs()


def _host_bytes(spec: KernelSpec, case: NumericsCase, executor: Executor) -> int:
    tensors = spec.plan(case.workload, executor.device).tensors
    held = sum(tensor.nbytes for tensor in tensors if tensor.role != "scratch")
    return held * (_COPIES_OF_OTHER_LAYOUT if spec.layout == "bshd" else 1) + _MARGIN_BYTES
