"""Which workloads a kernel's numerics are checked on, by the operation that it computes."""

from __future__ import annotations

from attnprof.check import softmax_workloads, workloads
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.spec import KernelSpec


def cases_for(spec: KernelSpec, *, full: bool) -> tuple[NumericsCase, ...]:
    """The full set, for a GPU, or the small one, for the emulator."""
    sets = softmax_workloads if spec.operation == "softmax" else workloads
    strided = () if spec.bshd is None else workloads.strided_set(full=full)
    return (*(sets.full_set() if full else sets.small_set()), *strided)
