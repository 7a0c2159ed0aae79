"""What a kernel is tried on and how its output is judged, by the operation that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from attnprof.kernels.executor import Executor, Run
from attnprof.kernels.inputs import Distribution, make_inputs, make_matrix
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec, Layout, Operation, RoundingPoint
from attnprof.kernels.verify import WORK_LIMIT_FLOPS, Verification, verify
from attnprof.kernels.verify_softmax import verify_softmax
from attnprof.model.errors import UnsupportedWorkload
from attnprof.model.workload import Pass, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


# The kernel whose O and log-sum-exp a backward gets where the host would take long to compute them.
FORWARD = "fa2"
# Forward FLOPs up to which the host computes them, in float64: a fraction of a second.
HOST_FORWARD_FLOPS = 4_000_000_000


class Tried(Protocol):
    """What of a `KernelSpec` decides its inputs and what they should become."""

    @property
    def operation(self) -> Operation:
        """What it computes."""
        ...

    @property
    def layout(self) -> Layout:
        """How its tensors lie."""
        ...

    @property
    def rounds(self) -> tuple[RoundingPoint, ...]:
        """Where it rounds."""
        ...


@dataclass(frozen=True, slots=True)
class Outline:
    """These fields of a kernel alone: what another process can be sent."""

    operation: Operation
    layout: Layout
    rounds: tuple[RoundingPoint, ...]

    @classmethod
    def of(cls, spec: KernelSpec) -> Outline:
        """Those of a kernel."""
        return cls(spec.operation, spec.layout, spec.rounds)


def inputs_for(
    spec: Tried,
    workload: Workload,
    *,
    executor: Executor | None = None,
    distribution: Distribution = Distribution.NORMAL,
    seed: int = 0,
) -> Mapping[str, Array]:
    """The input tensors by name, in storage form: Q, K and V of an attention, the matrix of a softmax.

    In the kernel's own layout: of one that has the heads inside the sequence, transposed copies.
    Of a backward, dO, O and the log-sum-exp too. The last two come from the float64 reference where that is quick,
    else from the forward kernel `FORWARD`, run on the executor.

    Raises:
        UnsupportedWorkload: a large backward, and no executor or forward kernel for it.
        KernelFault, OutOfMemory and others: running the forward failed.
    """
    make = make_matrix if spec.operation == "softmax" else make_inputs
    inputs = make(workload, distribution=distribution, seed=seed)
    if spec.operation == "softmax" or workload.direction is Pass.FWD:
        return _transposed(inputs) if spec.layout == "bshd" else inputs
    forward = replace(workload, direction=Pass.FWD)
    on_device = needs_device(spec, workload)
    return {**inputs, **(_on_device(forward, inputs, executor) if on_device else _on_host(forward, inputs))}


def needs_device(spec: Tried, workload: Workload) -> bool:
    """Whether `inputs_for` needs an executor."""
    backward = spec.operation == "attention" and workload.direction is Pass.BWD
    return backward and replace(workload, direction=Pass.FWD).flops > HOST_FORWARD_FLOPS


def judge(
    spec: Tried,
    workload: Workload,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    work_limit_flops: int = WORK_LIMIT_FLOPS,
) -> Verification:
    """Compare the outputs with the float64 reference.

    Args:
        spec: the kernel.
        workload: what was computed.
        inputs: what `inputs_for` gave.
        outputs: every tensor of role ``out``, in storage form, poisoned before the run.
        work_limit_flops: attention: rows are sampled when the reference of all of them would cost more.
    """
    if spec.layout == "bshd":
        inputs, outputs = _transposed(inputs), _transposed(outputs)
    if spec.operation == "softmax":
        return verify_softmax(workload, inputs["x"], outputs["y"])
    if workload.direction is Pass.BWD:
        from attnprof.kernels.verify_gradients import verify_gradients

        return verify_gradients(workload, spec.rounds, inputs, outputs, work_limit_flops=work_limit_flops)
    lse = outputs.get("lse")
    return verify(workload, spec.rounds, inputs, outputs["o"], lse, work_limit_flops=work_limit_flops)


def run_once(plan: LaunchPlan, inputs: Mapping[str, Array], executor: Executor) -> dict[str, Array]:
    """The outputs of one run on these inputs, poisoned before it.

    Raises:
        KernelFault, OutOfMemory and others: see `Executor.prepare` and `Run.launch`.
    """
    with executor.prepare(plan) as run:
        for name, values in inputs.items():
            run.write(name, values)
        return launch_poisoned(run, plan)


def launch_poisoned(run: Run, plan: LaunchPlan) -> dict[str, Array]:
    """Launch a run whose inputs are written, its outputs poisoned before, and read every output, by name."""
    run.poison()
    run.launch()
    return {tensor.name: run.read(tensor.name) for tensor in plan.tensors if tensor.role == "out"}


def _transposed(tensors: Mapping[str, Array]) -> Mapping[str, Array]:
    """The tensors of four axes with heads and sequence exchanged, contiguous again; the others (lse) as they are."""
    import numpy as np

    return {
        name: np.ascontiguousarray(values.swapaxes(1, 2)) if values.ndim == 4 else values
        for name, values in tensors.items()
    }


def _on_host(forward: Workload, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    import numpy as np

    from attnprof.model.reference import attention
    from attnprof.model.rounding import decode, encode

    q, k, v = (decode(inputs[name], forward.dtype) for name in ("q", "k", "v"))
    o, lse = attention(q, k, v, causal=forward.causal, scale=forward.scale)
    return {"o": encode(o, forward.dtype), "lse": lse.astype(np.float32)}


def _on_device(forward: Workload, inputs: Mapping[str, Array], executor: Executor | None) -> Mapping[str, Array]:
    from attnprof.kernels.catalogue import select

    if executor is None:
        raise UnsupportedWorkload(f"no device to run the forward of {forward.label} on")
    (spec,) = select([FORWARD])
    reason = spec.runs_on(executor.device.compute_capability) or spec.unsupported(forward)
    if reason is not None or spec.plan_lse is None:
        raise UnsupportedWorkload(f"no forward for the backward's O and log-sum-exp: {reason or 'it writes none'}")
    plan = spec.plan_lse(forward, executor.device)
    with executor.prepare(plan) as run:
        for name in ("q", "k", "v"):
            run.write(name, inputs[name])
        run.launch()
        return {name: run.read(name) for name in ("o", "lse")}
