"""Variants of ``fa2``: the same source with one thing done wrong, to see what that costs, or right in another way.

``plain``: tiles without swizzle or padding, so that the rows of a fragment share their banks. ``pad``: 8 unused
elements behind each row instead of the swizzle. ``write-p``: P goes to HBM as well, for a debugger. ``tile-256``: 256
keys at a time, whose tiles of K and V leave an SM room for one block of 4 warps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from attnprof.kernels.candidates import no_candidates
from attnprof.kernels.fa2_tiles import TileLayout, Tiles, tiles_for
from attnprof.kernels.ladder import fa2
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand, LedgerLine
from attnprof.model.devices import DeviceSpec
from attnprof.model.workload import Workload

(BASE,) = fa2.SPECS

# Enough to show what a variant costs.
HEAD_DIMS = (64, 128)

# 16 rows a warp: the scores of 32 rows and 256 keys would be 256 registers a thread. One stage: two would need 272 KiB.
OVERSIZED = Tiles(head_dim=128, block_q=64, block_kv=256, kv_stages=1, blocks_per_sm=1)


def _unsupported(workload: Workload) -> str | None:
    if workload.head_dim not in HEAD_DIMS:
        return f"variants of fa2 take head dim {' or '.join(map(str, HEAD_DIMS))}, not {workload.head_dim}"
    return fa2.unsupported(workload)


def _with_layout(layout: TileLayout, title: str, idea: str) -> KernelSpec:
    def tiles(workload: Workload, device: DeviceSpec) -> Tiles:
        return tiles_for(workload.head_dim, device, layout)

    def demand(workload: Workload, device: DeviceSpec) -> Demand:
        if _unsupported(workload) is not None:
            return fa2.demand(workload, device)
        return fa2.demand_with(workload, tiles(workload, device))

    def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        return fa2.plan_with(workload, tiles(workload, device))

    def plan_lse(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        return fa2.plan_with(workload, tiles(workload, device), lse=True)

    def builds(device: DeviceSpec) -> tuple[Build, ...]:
        return tuple(
            tiles_for(head_dim, device, layout).build(dtype, causal=causal)
            for head_dim, dtype, causal in product(HEAD_DIMS, fa2.DTYPES, (False, True))
        )

    return _variant(layout, title=title, idea=idea, demand=demand, plan=plan, plan_lse=plan_lse, builds=builds)


def _variant(name: str, **changes: object) -> KernelSpec:
    shared = {
        "name": f"{BASE.name}[{name}]",
        "unsupported": _unsupported,
        # A variant is one thing done otherwise, with the tiles of the kernel itself.
        "variants": lambda: (),
        "candidates": no_candidates,
        "bshd": None,
    }
    return replace(BASE, **(shared | changes))  # type: ignore[arg-type]


def _demand_with_p(workload: Workload, device: DeviceSpec) -> Demand:
    """That of ``fa2``, and P: the allowed pairs in the ledger, the whole rectangle in memory."""
    base = fa2.demand(workload, device)
    if _unsupported(workload) is not None:
        return base
    (stage,) = base.stages
    line = LedgerLine(stage.name, "P", "write", workload.pairs * workload.dtype.itemsize)
    p_bytes = _plan_with_p(workload, device).tensor("p").nbytes
    return replace(
        base,
        stages=(replace(stage, ledger=(*stage.ledger, line)),),
        footprint_bytes=base.footprint_bytes + p_bytes,
        intermediate_bytes=base.intermediate_bytes + p_bytes,
    )


def _plan_with_p(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    return fa2.plan_with(workload, tiles_for(workload.head_dim, device), p=True)


def _builds_with_p(device: DeviceSpec) -> tuple[Build, ...]:
    return tuple(
        tiles_for(head_dim, device).build(dtype, causal=causal, p=True)
        for head_dim, dtype, causal in product(HEAD_DIMS, fa2.DTYPES, (False, True))
    )


def _oversized_unsupported(workload: Workload) -> str | None:
    if workload.head_dim != OVERSIZED.head_dim:
        return f"fa2[tile-256] takes head dim {OVERSIZED.head_dim}, not {workload.head_dim}"
    return fa2.unsupported(workload)


def _oversized_demand(workload: Workload, device: DeviceSpec) -> Demand:
    if _oversized_unsupported(workload) is not None:
        return fa2.demand(workload, device)
    return fa2.demand_with(workload, OVERSIZED)


def _oversized_plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    del device  # the trap is to take this tile wherever it runs
    return fa2.plan_with(workload, OVERSIZED)


def _oversized_builds(device: DeviceSpec) -> tuple[Build, ...]:
    del device
    return tuple(OVERSIZED.build(dtype, causal=causal) for dtype, causal in product(fa2.DTYPES, (False, True)))


PLAIN = _with_layout(
    "plain",
    "fa2 without swizzle or padding: bank conflicts",
    "Rows lie one behind the other, a multiple of 128 bytes apart: the 8 rows that ldmatrix reads at once start in the "
    "same bank and take turns.",
)
PAD = _with_layout(
    "pad",
    "fa2 with padded rows instead of the swizzle",
    "8 unused elements behind each row shift the next one by 4 banks: as free of conflicts as the swizzle, for 1/16 "
    "more shared memory at head dim 128.",
)
WRITE_P = _variant(
    "write-p",
    title="fa2 that also writes P to HBM",
    idea="Keeping the attention map for a debugger brings back the traffic that fusing the kernels took away.",
    demand=_demand_with_p,
    plan=_plan_with_p,
    plan_lse=None,
    builds=_builds_with_p,
)
TILE_256 = _variant(
    "tile-256",
    title="fa2 with 256 keys a tile: one block an SM",
    idea="Tiles of K and V that take 128 KiB leave an SM one block of 4 warps, with nobody to compute while they wait.",
    unsupported=_oversized_unsupported,
    demand=_oversized_demand,
    plan=_oversized_plan,
    plan_lse=None,
    builds=_oversized_builds,
)

VARIANTS = (PLAIN, PAD, WRITE_P, TILE_256)
