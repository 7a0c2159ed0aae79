"""Tile choices of a kernel for one workload: what there is to choose from, and what was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnprof.kernels.plan import LaunchPlan
from attnprof.model.demand import Demand
from attnprof.model.devices import DeviceSpec
from attnprof.model.workload import Workload


@dataclass(frozen=True, slots=True)
class Candidate:
    """One tile choice of a kernel for a workload on a device.

    Attributes:
        label: its name, e.g. ``128x64 4w 2st 2b``; two choices of a kernel and family have the same only if they are
            the same.
        family: what kind of tiles it is an alternative of, e.g. ``d128`` or ``d128 strided``. Choices of another family
            cannot replace it, whatever their label.
        plan: tensors and launches with these tiles.
        demand: ledger and work with these tiles.
        tuned: it was chosen by measurement, see `chosen_first`.
    """

    label: str
    family: str
    plan: Callable[[], LaunchPlan]
    demand: Callable[[], Demand]
    tuned: bool = False


# The candidates of a workload on a device, the one that runs first; none where the kernel has no choice, or cannot run.
Candidates = Callable[[Workload, DeviceSpec], tuple[Candidate, ...]]
# The label of the candidate to run, given those there are; None for the kernel's own choice.
Choose = Callable[[Workload, DeviceSpec, tuple[Candidate, ...]], str | None]


def no_candidates(workload: Workload, device: DeviceSpec) -> tuple[Candidate, ...]:
    """Of a kernel without a choice of tiles."""
    del workload, device
    return ()


def of_tiles(
    choices: tuple[Any, ...],
    family: str,
    plan: Callable[[Any], LaunchPlan],
    demand: Callable[[Any], Demand],
) -> tuple[Candidate, ...]:
    """A candidate for each tile choice, which has a ``label``; the first of equal ones.

    Args:
        choices: the choices, the kernel's own first.
        family: as of `Candidate`.
        plan: the plan of a choice.
        demand: the demand of a choice.
    """
    return tuple(
        Candidate(tiles.label, family, plan=partial(plan, tiles), demand=partial(demand, tiles))
        for tiles in dict.fromkeys(choices)
    )


def chosen_first(candidates: tuple[Candidate, ...], label: str | None) -> tuple[Candidate, ...]:
    """The candidates with the one of that label in front and marked as tuned; as they are where there is none."""
    chosen = next((candidate for candidate in candidates if candidate.label == label), None)
    if chosen is None:
        return candidates
    return (replace(chosen, tuned=True), *(candidate for candidate in candidates if candidate is not chosen))
