"""Is the kernel right where an offset no longer fits 32 bits?

The tensors take gigabytes, so they are few, live in this process alone, and what does not fit is skipped and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.softmax_workloads import matrix
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor
from attnprof.kernels.host import available_bytes
from attnprof.kernels.inputs import forget_inputs
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for, judge, run_once
from attnprof.kernels.verify import Verification
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, ContextLost, OutOfMemory, UnsupportedWorkload
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
        progress(f"{spec.name}: {case.label}")
        row = _row(spec, case, executor, seed)
        yield row
        if row.context_lost:
            return


def _row(spec: KernelSpec, case: NumericsCase, executor: Executor, seed: int) -> CheckRow:
    def row(status: CheckStatus, detail: str, verdict: Verification | None = None, *, lost: bool = False) -> CheckRow:
        return CheckRow(
            kernel=spec.name,
            check=Check.LARGE_TENSORS,
            status=status,
            value=verdict.rel_error if verdict else None,
            limit=verdict.limit if verdict else None,
            unit=f"relative L2, {case.workload.dtype}" if verdict else None,
            arch=executor.arch,
            detail=f"{case.label}: {detail}",
            context_lost=lost,
        )

    try:
        verdict = _verdict(spec, case, executor, seed)
    except (OutOfMemory, UnsupportedWorkload) as problem:
        return row(CheckStatus.SKIPPED, problem.message)
    except MemoryError:
        return row(CheckStatus.SKIPPED, "out of memory on the host")
    except ContextLost as error:
        return row(CheckStatus.FAIL, error.message, lost=True)
    except AttnprofError as error:
        return row(CheckStatus.FAIL, error.message)
    finally:
        forget_inputs()
    return row(CheckStatus.PASS if verdict.passed else CheckStatus.FAIL, verdict.detail, verdict)


def _verdict(spec: KernelSpec, case: NumericsCase, executor: Executor, seed: int) -> Verification:
    reason = spec.unsupported(case.workload)
    if reason is not None:
        raise UnsupportedWorkload(reason)
    plan = spec.plan(case.workload, executor.device)
    needed = sum(tensor.nbytes for tensor in plan.tensors if tensor.role != "scratch")
    if spec.layout == "bshd":
        needed *= _COPIES_OF_OTHER_LAYOUT
    needed += _MARGIN_BYTES
    available = available_bytes()
    if available is not None and available < needed:
        raise OutOfMemory(needed, available, "on the host")
    inputs = inputs_for(spec, case.workload, executor=executor, distribution=case.distribution, seed=seed)
    outputs = run_once(plan, inputs, executor)
    return judge(spec, case.workload, inputs, outputs)
