"""The record that describes a kernel to everything else: the CLI, the tests, the docs and the benchmark read it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from attnprof.kernels.candidates import Candidate, Candidates, Choose, chosen_first, no_candidates
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.model.demand import Demand
from attnprof.model.devices import DeviceSpec
from attnprof.model.errors import UsageError
from attnprof.model.softmax_traffic import softmax_flops
from attnprof.model.workload import Pass, Workload

# Where a kernel rounds to the element type besides its inputs: the scores S, the probabilities P, the gradient dS of
# the scores, the output O (of a backward: dQ, dK and dV).
RoundingPoint = Literal["s", "p", "ds", "o"]
# Every architecture from Ampere on, an entry a generation: of kernels without instructions of a single one.
AMPERE_AND_LATER = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
# What a kernel computes: attention, or the softmax of the rows of a matrix that is shaped like an attention's scores.
Operation = Literal["attention", "softmax"]
# The order of the axes of Q, K, V and O: batch, heads, sequence, head dim; or with the heads inside the sequence.
Layout = Literal["bhsd", "bshd"]
LAYOUTS: tuple[Layout, ...] = ("bhsd", "bshd")
# Compute capability, its last digit apart; with an a that one only, with an f later ones of the same first number.
_ARCH = re.compile(r"sm_(\d{1,2})(\d)([af]?)", re.ASCII)


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
        demand: the HBM ledger and the work for each unit on a device, for any workload (both passes), supported or
            not. The device matters where tiles, splits or cache hits depend on it.
        unsupported: why this workload cannot run here, naming what is allowed; ``None`` when it can.
        plan: tensors and launches for a supported workload on a device. Inputs are named ``q``, ``k``, ``v``, the
            output ``o`` and the log-sum-exp (natural logarithm, fp32, (batch, heads, seq_q)) ``lse``, where a kernel
            has it. A backward's inputs are these five and the gradient ``dout`` of O, its outputs ``dq``, ``dk``
            and ``dv``. A softmax kernel has the input ``x`` and the output ``y``, both (batch · heads · seq_q, seq_kv).
        builds: every variant that is compiled for a device, for the compile checks.
        rounds: where it rounds to the element type; the tolerance is derived from it (see ``check``).
        plan_lse: as ``plan``, with the log-sum-exp as a further output, of a kernel that writes it only when asked to
            (a forward for training); None where it never does, or always.
        varies: why two runs on the same input may differ in their last bits; None where they agree bit for bit.
        niche: made for a corner of the workloads: without ``--kernel``, listed only where it can run.
        operation: what it computes.
        variants: the same kernel built otherwise, to be measured beside it: traps, and other cures. Named
            ``fa2[plain]``; in no catalogue, and named by ``--variant plain``. They pass the same numerics.
        largest_logit: how far from 0 its logits may lie before its result is wrong; None where there is no limit.
        candidates: the tile choices for a workload on a device, the one that `plan` and `demand` take first; none where
            there is no choice, or the kernel cannot run the workload.
        layout: the order of the axes of its tensors Q, K, V and O. Inputs are made, and outputs judged, as (batch,
            heads, sequence, head dim), and transposed on the way; see `attnprof.kernels.trial`.
        bshd: the same kernel on tensors with the heads inside the sequence, as they lie; None where it has none.

    Raises:
        ValueError: ``file`` is no path, ``arches`` is empty or holds what is no architecture name, or ``rounds`` holds
            what is no such place.
    """

    name: str
    rung: int
    title: str
    idea: str
    file: Path
    direction: Pass
    arches: tuple[str, ...]
    demand: Callable[[Workload, DeviceSpec], Demand]
    unsupported: Callable[[Workload], str | None]
    plan: Callable[[Workload, DeviceSpec], LaunchPlan]
    builds: Callable[[DeviceSpec], tuple[Build, ...]]
    rounds: tuple[RoundingPoint, ...]
    plan_lse: Callable[[Workload, DeviceSpec], LaunchPlan] | None = None
    varies: str | None = None
    niche: bool = False
    operation: Operation = "attention"
    largest_logit: float | None = None
    variants: Callable[[], tuple[KernelSpec, ...]] = lambda: ()
    candidates: Candidates = no_candidates
    layout: Layout = "bhsd"
    bshd: Callable[[], KernelSpec] | None = None

    def __post_init__(self) -> None:
        # Now, and not where it would matter first: in a user's file the line that makes the spec is named.
        if not isinstance(self.file, Path):
            raise ValueError(f"{self.name}: file is {self.file!r}, not a Path")
        if not self.arches:
            raise ValueError(f"{self.name}: names no architecture; arches look like ('sm_80', 'sm_90a')")
        for arch in self.arches:
            self._needed(arch)
        places = get_args(RoundingPoint)
        for place in self.rounds:
            if place not in places:
                allowed = ", ".join(map(repr, places))
                raise ValueError(f"{self.name}: rounds holds {place!r}; it may hold {allowed}")

    def flops(self, workload: Workload) -> int:
        """The FLOPs that its FLOP/s divide by: the pass's matrix work, or for a softmax 5 an element."""
        return softmax_flops(workload) if self.operation == "softmax" else workload.flops

    def variant(self, name: str) -> KernelSpec:
        """The variant of that name, without the brackets.

        Raises:
            UsageError: there is none; the hint lists those that there are.
        """
        found = {variant_name(self, each): each for each in self.variants()}
        if name not in found:
            others = f"it has {', '.join(found)}" if found else "leave out --variant"
            raise UsageError(f"{self.name} has no variant {name!r}", others)
        return found[name]

    def laid_out(self, layout: Layout) -> KernelSpec:
        """The same kernel on tensors of that layout. Where there is none, one that is unsupported and says so."""
        if layout == self.layout:
            return self
        if self.bshd is not None and layout == "bshd":
            return self.bshd()
        reason = f"{self.name} takes {self.layout} tensors only, not {layout}"
        return replace(self, layout=layout, unsupported=lambda _: reason, candidates=no_candidates)

    def tiles(self, workload: Workload, device: DeviceSpec) -> Candidate | None:
        """The tile choice that `plan` takes; None where there is no choice, or the kernel cannot run the workload."""
        return next(iter(self.candidates(workload, device)), None)

    def choosing(self, choose: Choose) -> KernelSpec:
        """The same kernel with the tiles that ``choose`` names; with its own where it names none of the candidates."""

        def candidates(workload: Workload, device: DeviceSpec) -> tuple[Candidate, ...]:
            found = self.candidates(workload, device)
            return chosen_first(found, choose(workload, device, found)) if found else found

        def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
            found = candidates(workload, device)
            return found[0].plan() if found else self.plan(workload, device)

        def demand(workload: Workload, device: DeviceSpec) -> Demand:
            found = candidates(workload, device)
            return found[0].demand() if found else self.demand(workload, device)

        return replace(self, plan=plan, demand=demand, candidates=candidates)

    @property
    def requires(self) -> str:
        """The oldest architecture it runs on; ``a`` behind it means that one only, ``f`` its family only."""
        return self.arches[0]

    def runs_on(self, compute_capability: tuple[int, int]) -> str | None:
        """Why a device of that compute capability cannot run it, or None when it can."""
        needed, suffix = self._needed(self.requires)
        last = {"a": needed, "f": (needed[0], 9)}.get(suffix, compute_capability)
        fits = needed <= compute_capability <= last
        return None if fits else f"needs {self.requires}, this GPU is {sm_name(compute_capability)}"

    def _needed(self, arch: str) -> tuple[tuple[int, int], str]:
        """The compute capability of an architecture, and its suffix."""
        match = _ARCH.fullmatch(arch)
        if match is None:
            raise ValueError(f"{self.name}: {arch!r} is no architecture name; arches look like ('sm_80', 'sm_90a')")
        return (int(match[1]), int(match[2])), match[3]


def tile_fields(spec: KernelSpec, workload: Workload, device: DeviceSpec) -> dict[str, str | None]:
    """How the tensors lie and which tiles run, for a row: ``layout``, ``tiles`` and ``tiles_source``.

    ``tiles_source`` is ``built-in``, or ``tuned`` where the choice was kept by measurement.
    """
    tiles = spec.tiles(workload, device)
    return {
        "layout": None if spec.operation == "softmax" else spec.layout,
        "tiles": tiles.label if tiles else None,
        "tiles_source": ("tuned" if tiles.tuned else "built-in") if tiles else None,
    }


def variant_name(spec: KernelSpec, variant: KernelSpec) -> str:
    """``plain`` of ``fa2[plain]``."""
    return variant.name.removeprefix(f"{spec.name}[").removesuffix("]")


def workload_label(workload: Workload, operation: Operation) -> str:
    """A short name for progress lines: the workload's own, or ``1024 x 4096 fp16`` of a softmax's matrix."""
    if operation == "softmax":
        return f"{workload.rows} x {workload.seq_kv} {workload.dtype}"
    return workload.label


def sm_name(compute_capability: tuple[int, int]) -> str:
    """``(9, 0)`` → ``sm_90``."""
    return f"sm_{compute_capability[0]}{compute_capability[1]}"
