"""The record that describes a kernel to everything else: the CLI, the tests, the docs and the benchmark read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.model.demand import Demand
from attnprof.model.devices import DeviceSpec
from attnprof.model.softmax_traffic import softmax_flops
from attnprof.model.workload import Pass, Workload

# Where a kernel rounds to the element type besides its inputs: the scores S, the probabilities P, the output O.
RoundingPoint = Literal["s", "p", "o"]
# What a kernel computes: attention, or the softmax of the rows of a matrix that is shaped like an attention's scores.
Operation = Literal["attention", "softmax"]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of the catalogue.

    Attributes:
        name: what ``--kernel`` takes.
        rung: its place on the ladder, lowest first; tables list kernels in this order.
        title: one line for a table.
        idea: what this rung changes and why, in one or two sentences.
        file: the ``.cu`` file, absolute.
        direction: the pass it computes.
        arches: architectures it is compiled and checked for, e.g. ``("sm_80", "sm_90a")``; the first is the oldest.
        demand: the HBM ledger and the work for each unit, for any workload (both passes), supported or not.
        unsupported: why this workload cannot run here, naming what is allowed; ``None`` when it can.
        plan: tensors and launches for a supported workload. Inputs are named ``q``, ``k``, ``v``, the output ``o``
            and the log-sum-exp (natural logarithm, fp32, (batch, heads, seq_q)) ``lse``, where a kernel has it.
            A softmax kernel has the input ``x`` and the output ``y``, both (batch · heads · seq_q, seq_kv).
        builds: every compiled variant, for the compile checks; `builds_on` picks those of an architecture.
        rounds: where it rounds to the element type; the tolerance is derived from it (see ``check``).
        operation: what it computes.
        largest_logit: how far from 0 its logits may lie before its result is wrong; None where there is no limit.
        demand_on: the demand on one device, for a kernel whose traffic depends on how much the device's caches and
            shared memory hold; ``demand`` then assumes that no re-read hits L2 and that the chip holds what the
            kernel keeps there.
        plan_on: the plan for one architecture, for a kernel that has better variants on newer ones; ``plan`` is then
            the one that runs on all.
    """

    name: str
    rung: int
    title: str
    idea: str
    file: Path
    direction: Pass
    arches: tuple[str, ...]
    demand: Callable[[Workload], Demand]
    unsupported: Callable[[Workload], str | None]
    plan: Callable[[Workload], LaunchPlan]
    builds: tuple[Build, ...]
    rounds: tuple[RoundingPoint, ...]
    operation: Operation = "attention"
    largest_logit: float | None = None
    demand_on: Callable[[Workload, DeviceSpec], Demand] | None = None
    plan_on: Callable[[Workload, str], LaunchPlan] | None = None

    def flops(self, workload: Workload) -> int:
        """The FLOPs that its FLOP/s divide by: the pass's matrix work, or for a softmax 5 an element."""
        return softmax_flops(workload) if self.operation == "softmax" else workload.flops

    def demand_for(self, workload: Workload, device: DeviceSpec) -> Demand:
        """The demand on this device: ``demand_on`` where the kernel has it, else ``demand``."""
        return self.demand(workload) if self.demand_on is None else self.demand_on(workload, device)

    def plan_for(self, workload: Workload, arch: str) -> LaunchPlan:
        """The plan for this architecture: ``plan_on`` where the kernel has it, else ``plan``."""
        return self.plan(workload) if self.plan_on is None else self.plan_on(workload, arch)

    def builds_on(self, arch: str) -> tuple[Build, ...]:
        """The variants that compile for an architecture."""
        capability = compute_capability(arch)
        return tuple(
            build for build in self.builds if build.requires is None or compute_capability(build.requires) <= capability
        )

    @property
    def requires(self) -> str:
        """The oldest architecture it runs on; an ``a`` suffix means that one only."""
        return self.arches[0]

    def runs_on(self, compute_capability: tuple[int, int]) -> str | None:
        """Why a device of that compute capability cannot run it, or None when it can."""
        match = re.fullmatch(r"sm_(\d+)(\d)(a?)", self.requires)
        if match is None:
            raise ValueError(f"{self.name}: {self.requires!r} is no architecture name")
        needed = (int(match[1]), int(match[2]))
        fits = compute_capability == needed if match[3] else compute_capability >= needed
        return None if fits else f"needs {self.requires}, this GPU is {sm_name(compute_capability)}"


def workload_label(workload: Workload, operation: Operation) -> str:
    """A short name for progress lines: the workload's own, or ``1024 x 4096 fp16`` of a softmax's matrix."""
    if operation == "softmax":
        return f"{workload.rows} x {workload.seq_kv} {workload.dtype}"
    return workload.label


def compute_capability(arch: str) -> tuple[int, int]:
    """``sm_90a`` → ``(9, 0)``.

    Raises:
        ValueError: not an architecture name.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if match is None:
        raise ValueError(f"{arch!r} is no architecture name; it looks like sm_80 or sm_90a")
    return int(match[1]), int(match[2])


def sm_name(compute_capability: tuple[int, int]) -> str:
    """``(9, 0)`` → ``sm_90``."""
    return f"sm_{compute_capability[0]}{compute_capability[1]}"
