"""Variants of the softmax kernels: the same source with one thing done wrong, to see what that costs, or otherwise.

Each has a macro more than its kernel in every build. ``scalar``: a lane's 16 bytes element by element. ``narrow``: an
element a lane, neighbours side by side. ``tree`` and ``interleaved``: the block's reductions through shared memory,
without and with bank conflicts. ``per-element``: the running sum rescaled for each element. ``streaming``,
``no-hint`` and ``evict-last``: what loads say of L2. ``no-max``: no maximum is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from attnprof.kernels.ladder import softmax
from attnprof.kernels.ladder.softmax import LARGEST_NAIVE_LOGIT
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.kernels.softmax_placement import REGISTER_BYTES
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand
from attnprof.model.devices import DeviceSpec
from attnprof.model.softmax_traffic import ONLINE_PER_ELEMENT, Rung
from attnprof.model.workload import Workload

_NAIVE, SAFE, ONLINE, FUSED = softmax.SPECS


@dataclass(frozen=True, slots=True)
class Change:
    """What a variant does otherwise: its macros, and the words for a table. ``title`` goes behind the kernel's name."""

    name: str
    macros: Mapping[str, str]
    title: str
    idea: str


def _variant(base: KernelSpec, change: Change, **fields: object) -> KernelSpec:
    """``base`` with other macros in every build."""

    def changed(build: Build) -> Build:
        return replace(build, defines=tuple({**dict(build.defines), **change.macros}.items()))

    def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        intact = base.plan(workload, device)
        launches = tuple(replace(launch, build=changed(launch.build)) for launch in intact.launches)
        return replace(intact, launches=launches)

    def builds(device: DeviceSpec) -> tuple[Build, ...]:
        return tuple(changed(build) for build in base.builds(device))

    shared = {
        "name": f"{base.name}[{change.name}]",
        "title": f"{base.name} {change.title}",
        "idea": change.idea,
        "plan": plan,
        "builds": builds,
        "variants": lambda: (),
    }
    return replace(base, **(shared | fields))  # type: ignore[arg-type]


def _in_registers(change: Change, **fields: object) -> KernelSpec:
    """A variant of softmax-fused for the rows that registers hold: enough to show what it costs."""
    variant = _variant(FUSED, change)

    def unsupported(workload: Workload) -> str | None:
        if workload.seq_kv * workload.dtype.itemsize > REGISTER_BYTES:
            most = REGISTER_BYTES // workload.dtype.itemsize
            return f"{variant.name} takes rows of at most {most} {workload.dtype} columns"
        return FUSED.unsupported(workload)

    def builds(device: DeviceSpec) -> tuple[Build, ...]:
        return tuple(build for build in variant.builds(device) if ("PLACE", "PLACE_SHARED") not in build.defines)

    return replace(variant, unsupported=unsupported, builds=builds, **fields)  # type: ignore[arg-type]


def _demand_of(base: KernelSpec, rung: Rung) -> Callable[[Workload, DeviceSpec], Demand]:
    """The demand of ``base`` with the arithmetic of another rung."""

    def demand(workload: Workload, device: DeviceSpec) -> Demand:
        asked = base.demand(workload, device)
        (stage,) = asked.stages
        elements = workload.rows * workload.seq_kv
        more = replace(
            stage,
            fp32_flops=rung.fp32_flops_per_element * elements,
            exponentials=rung.exponentials_per_element * elements,
        )
        return replace(asked, stages=(more,))

    return demand


SCALAR = Change(
    "scalar",
    {"ACCESS": "ACCESS_ELEMENT"},
    "with a lane's 16 bytes element by element",
    "Neighbouring lanes are 16 bytes apart, so that a request for 2 bytes a lane touches the sectors that one for 16 "
    "would: eight times as many in all, for the caches to serve.",
)
# Two blocks an SM would have to spill: 16-bit loads take a register each until they are packed.
SCALAR_FUSED = replace(SCALAR, macros={**SCALAR.macros, "BLOCKS_PER_SM": "1"})
NARROW = Change(
    "narrow",
    {"ALL_EDGE": "1"},
    "with an element a lane",
    "Neighbouring lanes take neighbouring elements, as most people's first kernel does: no sector is wasted, but a "
    "request moves 64 bytes and not 512, so that there are eight times as many.",
)
TREE = Change(
    "tree",
    {"REDUCTION": "REDUCTION_TREE"},
    "reducing a block in shared memory",
    "A tree over all threads, with a barrier after each level, where shuffles need one for the whole block.",
)
INTERLEAVED = Change(
    "interleaved",
    {"REDUCTION": "REDUCTION_INTERLEAVED"},
    "reducing neighbours first",
    "The tree that starts with neighbours: at each level the active lanes lie twice as far apart, until all of a "
    "warp's share a bank.",
)
PER_ELEMENT = Change(
    "per-element",
    {"RESCALE": "RESCALE_ELEMENT"},
    "as the recurrence is written",
    "The running sum is carried over to the new maximum for each element, not once for the 64 of a batch: half as many "
    "exponentials again, and each waits for the one before.",
)
STREAMING = Change(
    "streaming",
    {"ACCESS": "ACCESS_STREAMING"},
    "with evict-first hints",
    "Loads and stores are marked as used once, which they are. On an H200 that costs 5 % all the same.",
)
NO_HINT = Change(
    "no-hint",
    {"ACCESS": "ACCESS_CHUNK"},
    "with loads that say nothing about caches",
    "softmax-fused marks its loads as the last to be evicted from L2, although it reads nothing twice that stays on "
    "the chip: on an H200 that was 1.7 % faster at 1024 columns than leaving it to the cache, and 3.7 % at 65,536.",
)
EVICT_LAST = Change(
    "evict-last",
    {"ACCESS": "ACCESS_EVICT_LAST"},
    "with evict-last hints",
    "Loads are marked as the last to be evicted from L2, as softmax-fused does it. Here every row is read again.",
)
NO_MAX = Change(
    "no-max",
    {"NO_MAX": "1"},
    "without the maximum",
    "Between the first two rungs the maximum costs a pass. In registers it costs no traffic, and leaving it out buys "
    "nothing for the overflow.",
)

VARIANTS = {
    SAFE.name: tuple(_variant(SAFE, change) for change in (SCALAR, NARROW, EVICT_LAST, TREE, INTERLEAVED)),
    ONLINE.name: (
        _variant(ONLINE, SCALAR),
        _variant(ONLINE, EVICT_LAST),
        _variant(ONLINE, TREE),
        _variant(ONLINE, PER_ELEMENT, demand=_demand_of(ONLINE, ONLINE_PER_ELEMENT)),
    ),
    FUSED.name: (
        _in_registers(SCALAR_FUSED),
        _in_registers(STREAMING),
        _variant(FUSED, NO_HINT),
        _in_registers(NO_MAX, largest_logit=LARGEST_NAIVE_LOGIT),
    ),
}
