"""What a kernel is tried on and how its output is judged, by the operation that it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnprof.kernels.inputs import Distribution, make_inputs, make_matrix
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.verify import Verification, verify
from attnprof.kernels.verify_softmax import verify_softmax
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def inputs_for(
    spec: KernelSpec, workload: Workload, *, distribution: Distribution = Distribution.NORMAL, seed: int = 0
) -> Mapping[str, Array]:
    """The input tensors by name, in storage form: Q, K and V of an attention, the matrix of a softmax."""
    make = make_matrix if spec.operation == "softmax" else make_inputs
    return make(workload, distribution=distribution, seed=seed)


def judge(
    spec: KernelSpec, workload: Workload, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Verification:
    """Compare the outputs with the float64 reference.

    Args:
        spec: the kernel.
        workload: what was computed.
        inputs: what `inputs_for` gave.
        outputs: every tensor of role ``out``, in storage form, poisoned before the run.
    """
    if spec.operation == "softmax":
        return verify_softmax(workload, inputs["x"], outputs["y"])
    return verify(workload, spec.rounds, inputs, outputs["o"], outputs.get("lse"))
