"""A run on known inputs, and the verdict on what it computed: what `check` does to every workload and `bench` once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnprof.kernels.executor import Executor, Run
from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.verify import Verification, verify
from attnprof.model.errors import UnsupportedWorkload
from attnprof.model.workload import Pass, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Inputs = Mapping[str, NDArray[Any]]

# The kernel whose O and log-sum-exp a backward gets where the host would take long to compute them.
FORWARD = "fa2"
# Forward FLOPs up to which the host computes them, in float64: a fraction of a second.
HOST_FORWARD_FLOPS = 4_000_000_000


def trial_inputs(
    workload: Workload, executor: Executor, *, distribution: Distribution = Distribution.NORMAL, seed: int = 0
) -> Inputs:
    """Every input of a workload, in storage form: those of `make_inputs`, and a backward's ``o`` and ``lse``.

    O and the log-sum-exp of a small backward come from the float64 reference, those of a large one from the forward
    kernel `FORWARD`, which is run on the executor.

    Raises:
        UnsupportedWorkload: the forward kernel does not take this large workload.
        KernelFault, OutOfMemory and others: running it failed.
    """
    inputs = make_inputs(workload, distribution=distribution, seed=seed)
    if workload.direction is Pass.FWD:
        return inputs
    forward = replace(workload, direction=Pass.FWD)
    on_host = forward.flops <= HOST_FORWARD_FLOPS
    return {**inputs, **(_on_host(forward, inputs) if on_host else _on_device(forward, inputs, executor))}


def trial(spec: KernelSpec, workload: Workload, plan: LaunchPlan, run: Run, inputs: Inputs) -> Verification:
    """Poison every output, launch once, and judge every output. The inputs must have been written."""
    run.poison()
    run.launch()
    outputs = {tensor.name: run.read(tensor.name) for tensor in plan.tensors if tensor.role == "out"}
    if workload.direction is Pass.FWD:
        return verify(workload, spec.rounds, inputs, outputs["o"], outputs.get("lse"))
    from attnprof.kernels.verify_gradients import verify_gradients

    return verify_gradients(workload, spec.rounds, inputs, outputs)


def _on_host(forward: Workload, inputs: Inputs) -> Inputs:
    import numpy as np

    from attnprof.model.reference import attention
    from attnprof.model.rounding import decode, encode

    q, k, v = (decode(inputs[name], forward.dtype) for name in ("q", "k", "v"))
    o, lse = attention(q, k, v, causal=forward.causal, scale=forward.scale)
    return {"o": encode(o, forward.dtype), "lse": lse.astype(np.float32)}


def _on_device(forward: Workload, inputs: Inputs, executor: Executor) -> Inputs:
    from attnprof.kernels.catalogue import select

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
