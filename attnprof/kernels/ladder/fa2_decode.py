"""The ``fa2-decode`` rung: split-KV attention for few queries over long caches."""

from __future__ import annotations

from functools import partial
from itertools import product

from attnprof.kernels.attention import LENGTH_MAX, ceil_div, fitting, forward_tensors, scale_log2
from attnprof.kernels.candidates import Candidate, of_tiles
from attnprof.kernels.fa2_decode_tiles import FILE, SHAPES, Tiles, alternatives, fitted
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.split_kv import choose_splits, split_kv_demand
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Pass, Workload

DTYPES = (Dtype.FP16, Dtype.BF16)

# With more queries a tile of `fa2` is no longer mostly idle, nor are the parts of O small beside K and V.
QUERIES_MAX = 16
# Positions inside a head are 32-bit, and so is the number of a row of Q or K over all heads.
ROWS_MAX = 2**31 - 1
# Splits to consider: as many as there are blocks on the largest GPU, for a single KV head.
SPLITS_MAX = 512
# Turns that a block takes at least; with less to do it would be done before it has started.
TURNS_MIN = 2
# Threads of a block that combines, and a bound on how many of them an SM holds.
COMBINE_THREADS = 128
COMBINE_BLOCKS_PER_SM = 8


def shape_for(workload: Workload) -> Tiles:
    """The shape for a workload that is supported: as few rows as hold the queries of a KV head."""
    *smaller, largest = SHAPES[workload.head_dim]
    rows = rows_per_kv_head(workload)
    return next((shape for shape in smaller if rows <= shape.rows), largest)


def tiles_for(workload: Workload, device: DeviceSpec) -> Tiles:
    """The built-in choice for a workload that is supported."""
    return fitted(shape_for(workload), device)


def rows_per_kv_head(workload: Workload) -> int:
    """Queries times query heads that share a KV head."""
    return workload.seq_q * (workload.heads // workload.kv_heads)


def splits_for(workload: Workload, tiles: Tiles, device: DeviceSpec) -> int:
    """How many blocks share the keys of a KV head, by wave efficiency. No team gets less than two steps."""
    steps = ceil_div(workload.seq_kv, tiles.step_keys)
    return choose_splits(
        blocks=_row_blocks(workload, tiles) * workload.batch * workload.kv_heads,
        steps=steps,
        slots=device.sm_count * tiles.blocks_per_sm,
        most=min(SPLITS_MAX, steps // (tiles.key_warps * TURNS_MIN)),
    )


def unsupported(workload: Workload) -> str | None:
    """Why ``fa2-decode`` cannot run this workload, or None."""
    if workload.direction is not Pass.FWD:
        return "fa2-decode computes the forward pass only"
    if workload.dtype not in DTYPES:
        return f"fa2-decode takes {' or '.join(DTYPES)}, not {workload.dtype}"
    if workload.head_dim not in SHAPES:
        *most, last = SHAPES
        return f"fa2-decode takes head dim {', '.join(map(str, most))} or {last}, not {workload.head_dim}"
    if workload.seq_q > QUERIES_MAX:
        return f"fa2-decode takes up to {QUERIES_MAX} queries: fa2 is for more"
    if workload.seq_kv > LENGTH_MAX:
        return f"fa2-decode takes up to {LENGTH_MAX} keys"
    if max(workload.rows, workload.batch * workload.kv_heads * workload.seq_kv) > ROWS_MAX:
        return f"fa2-decode takes up to {ROWS_MAX} rows of Q or K over all heads"
    return None


def demand(workload: Workload, device: DeviceSpec) -> Demand:
    """The ledger and the work of each unit: K and V once, and the parts of O that the splits leave.

    The work counts allowed pairs only; the tensor cores multiply whole tiles of 16 rows, most of them idle when there
    is one query.
    """
    if unsupported(workload) is not None:
        return fused_demand(workload)
    return _demand_of(workload, device, tiles_for(workload, device))


def _demand_of(workload: Workload, device: DeviceSpec, tiles: Tiles) -> Demand:
    splits = splits_for(workload, tiles, device)
    return split_kv_demand(workload, splits, _schedules(workload, tiles, splits))


def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """Tensors and launches, with the built-in tiles and splits."""
    return _plan_of(workload, device, tiles_for(workload, device))


def _plan_of(workload: Workload, device: DeviceSpec, tiles: Tiles) -> LaunchPlan:
    return plan_with(workload, tiles, splits_for(workload, tiles, device))


def candidates(workload: Workload, device: DeviceSpec) -> tuple[Candidate, ...]:
    """The built-in tiles, and what else fits the device; each with the splits that suit it."""
    if unsupported(workload) is not None:
        return ()
    shape = shape_for(workload)
    others = fitting((fitted(other, device) for other in alternatives(shape)), device)
    return of_tiles(
        (fitted(shape, device), *others),
        f"d{shape.head_dim} {shape.rows} rows",
        partial(_plan_of, workload, device),
        partial(_demand_of, workload, device),
    )


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every variant for a device: head dims, rows and element types."""
    return tuple(
        fitted(shape, device).build(dtype) for shapes, dtype in product(SHAPES.values(), DTYPES) for shape in shapes
    )


def plan_with(workload: Workload, tiles: Tiles, splits: int) -> LaunchPlan:
    """Tensors and launches with other tiles, or another number of splits: for tuning and for tests.

    Args:
        workload: what to compute.
        tiles: the tile choice.
        splits: blocks that share the keys of a KV head, at most one a step.
    """
    w = workload
    *_, o = inputs_and_output = forward_tensors(w)
    tensors = (*inputs_and_output, TensorSpec("lse", o.shape[:-1], Dtype.FP32, "out"))
    parts = (
        TensorSpec("o_parts", (splits, *o.shape), Dtype.FP32, "scratch"),
        TensorSpec("statistics", (splits, *o.shape[:-1], 2), Dtype.FP32, "scratch"),
    )
    split = splits > 1
    build = tiles.build(w.dtype)
    attention = Launch(
        stage="attention",
        build=build,
        entry="fa2_decode_attention",
        grid=(_blocks(w, tiles, splits), 1, 1),
        block=(tiles.threads, 1, 1),
        smem_bytes=tiles.smem_bytes,
        args=(
            *(Pointer("q"), Pointer("k"), Pointer("v")),
            *((Pointer("o_parts"), Pointer("statistics")) if split else (Pointer("o"), Pointer("lse"))),
            Scalar("i32", w.seq_q),
            Scalar("i32", w.seq_kv),
            Scalar("i32", rows_per_kv_head(w)),
            Scalar("i32", w.rows),
            Scalar("i32", _row_blocks(w, tiles)),
            Scalar("i32", splits),
            Scalar("i32", int(w.causal)),
            scale_log2(w),
        ),
    )
    combine = Launch(
        stage="combine",
        build=build,
        entry="fa2_decode_combine",
        grid=(w.rows, 1, 1),
        block=(COMBINE_THREADS, 1, 1),
        smem_bytes=0,
        args=(
            *(Pointer("o_parts"), Pointer("statistics"), Pointer("o"), Pointer("lse")),
            Scalar("i32", w.rows),
            Scalar("i32", splits),
        ),
    )
    return LaunchPlan(
        tensors=tensors + parts if split else tensors,
        launches=(attention, combine) if split else (attention,),
    )


def _row_blocks(workload: Workload, tiles: Tiles) -> int:
    return ceil_div(rows_per_kv_head(workload), tiles.rows)


def _blocks(workload: Workload, tiles: Tiles, splits: int) -> int:
    return _row_blocks(workload, tiles) * splits * workload.batch * workload.kv_heads


def _schedules(workload: Workload, tiles: Tiles, splits: int) -> dict[str, Schedule]:
    # The first splits of each KV head may have one step more; so alike that counting them as equal changes nothing.
    attention = Schedule(_blocks(workload, tiles, splits), tiles.blocks_per_sm)
    return {"attention": attention, "combine": Schedule(workload.rows, COMBINE_BLOCKS_PER_SM)}


SPECS = (
    KernelSpec(
        name="fa2-decode",
        rung=52,
        title="split-KV: few queries, the keys over all SMs, then a combination",
        idea="With one query a head there are too few blocks to fill a GPU: split the keys over blocks and combine "
        "their parts. The query heads of a group share one read of K and V, and HBM is what bounds it.",
        file=FILE,
        direction=Pass.FWD,
        arches=AMPERE_AND_LATER,
        demand=demand,
        unsupported=unsupported,
        plan=plan,
        builds=builds,
        rounds=("p", "o"),
        niche=True,
        candidates=candidates,
    ),
)
