"""The ``fa2-bwd`` rung: FlashAttention-2, backward, on the tensor cores of sm_80 and later."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

from attnprof.kernels.attention import LENGTH_MAX, ceil_div, grid_of, longest_first, scale_log2
from attnprof.kernels.candidates import Candidate, of_tiles
from attnprof.kernels.fa2_bwd_tiles import DEFAULTS, FILE, Tiles, candidates_for, tiles_for, width_of
from attnprof.kernels.plan import Build, Dim3, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec
from attnprof.model.demand import Demand, Direction, LedgerLine, Schedule, Stage
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Pass, Workload

DTYPES = (Dtype.FP16, Dtype.BF16)

# Positions inside a head are 32-bit, and so is the number of a row of Q or K over all heads: at 128 bytes a row or
# more, no GPU holds that many.
ROWS_MAX = 2**31
# A row of Q or K is made of whole 16-byte chunks. Head dims that are not in `DEFAULTS` are padded to the next that is.
HEAD_DIM_STEP = 8
# Threads of a block of the two kernels that stream.
STREAM_THREADS = 256
# Elements that a thread of theirs takes at a time.
VECTOR = 8
# The most accumulators of a deterministic dQ: each takes twice the memory of Q.
ACCUMULATORS_MAX = 16


def unsupported(workload: Workload) -> str | None:
    """Why ``fa2-bwd`` cannot run this workload, or None."""
    if workload.direction is not Pass.BWD:
        return "fa2-bwd computes the backward pass only (--pass bwd)"
    if workload.dtype not in DTYPES:
        return f"fa2-bwd takes {' or '.join(DTYPES)}, not {workload.dtype}"
    if workload.head_dim % HEAD_DIM_STEP or workload.head_dim > max(DEFAULTS):
        steps = f"{HEAD_DIM_STEP} to {max(DEFAULTS)} in steps of {HEAD_DIM_STEP}"
        return f"fa2-bwd takes head dim {steps}, not {workload.head_dim}"
    if max(workload.seq_q, workload.seq_kv) > LENGTH_MAX:
        return f"fa2-bwd takes lengths up to {LENGTH_MAX}"
    if max(workload.rows, workload.batch * workload.kv_heads * workload.seq_kv) > ROWS_MAX:
        return f"fa2-bwd takes up to {ROWS_MAX} rows of Q or K over all heads"
    return None


def accumulators_for(workload: Workload, tiles: Tiles, device: DeviceSpec) -> int:
    """How many blocks a KV head, each with its own dQ, finish soonest; the fewest where that is a tie.

    The GPU runs them in waves, and each works through its share of the tiles of keys one after another.
    """
    heads = workload.batch * workload.kv_heads
    kv_tiles = ceil_div(workload.seq_kv, tiles.block_kv)
    at_once = device.sm_count * tiles.blocks_per_sm
    return min(
        range(1, min(kv_tiles, ACCUMULATORS_MAX) + 1),
        key=lambda count: (ceil_div(heads * count, at_once) * ceil_div(kv_tiles, count), count),
    )


def demand(workload: Workload, device: DeviceSpec, *, deterministic: bool = False) -> Demand:
    """The ledger and the work of each unit: `fused_demand`, and what the fp32 accumulators of dQ cost on top.

    They are zeroed in the first stage, read and written once in the second, as if L2 caught all additions but one a
    block of queries, and read in the third, which writes dQ. The second leaves out the blocks of queries that the mask
    hides from an accumulator's keys, the third what pads the heads.
    """
    if unsupported(workload) is not None:
        return fused_demand(workload)
    tiles = tiles_for(workload.head_dim, device)
    return demand_with(workload, tiles, accumulators_for(workload, tiles, device) if deterministic else None)


def demand_with(workload: Workload, tiles: Tiles, accumulators: int | None = None) -> Demand:
    """As `demand`, of a supported workload with other tiles; the arguments are those of `plan_with`."""
    base = fused_demand(workload)
    rowsum, gradients = base.stages
    elements = workload.batch * workload.heads * tiles.head_dim
    nbytes = (accumulators or 1) * 4 * elements * _padded_q(workload, tiles)
    added = 4 * elements * tiles.block_q * sum(_steps(workload, tiles)[: accumulators or 1])
    (dq,) = (line for line in gradients.ledger if line.tensor == "dQ")

    def sums(stage: str, direction: Direction, size: int) -> LedgerLine:
        return LedgerLine(stage, "dQ accumulator", direction, size)

    stages = (
        replace(rowsum, ledger=(*rowsum.ledger, sums("rowsum", "write", nbytes))),
        replace(
            gradients,
            ledger=(
                *(line for line in gradients.ledger if line is not dq),
                sums("gradients", "read", added),
                sums("gradients", "write", added),
            ),
            schedule=_schedule(workload, tiles, accumulators),
        ),
        Stage(
            name="convert",
            ledger=(
                sums("convert", "read", nbytes // tiles.head_dim * workload.head_dim),
                replace(dq, stage="convert"),
            ),
            fp32_flops=(accumulators or 1) * workload.q_elements,  # additions, the last of them a multiplication
        ),
    )
    return Demand(stages, base.footprint_bytes + nbytes, base.intermediate_bytes + nbytes)


def plan(workload: Workload, device: DeviceSpec, *, deterministic: bool = False) -> LaunchPlan:
    """Tensors and launches, with the built-in tiles."""
    tiles = tiles_for(workload.head_dim, device)
    return plan_with(workload, tiles, accumulators_for(workload, tiles, device) if deterministic else None)


def candidates(workload: Workload, device: DeviceSpec, *, deterministic: bool = False) -> tuple[Candidate, ...]:
    """The built-in tiles, and what else fits the device."""
    if unsupported(workload) is not None:
        return ()

    def accumulators(tiles: Tiles) -> int | None:
        return accumulators_for(workload, tiles, device) if deterministic else None

    width = width_of(workload.head_dim)
    return of_tiles(
        (tiles_for(workload.head_dim, device), *candidates_for(workload.head_dim, device)),
        f"d{width}{' padded' if workload.head_dim != width else ''}",
        lambda tiles: plan_with(workload, tiles, accumulators(tiles)),
        lambda tiles: demand_with(workload, tiles, accumulators(tiles)),
    )


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every variant for a device: head dims, element types, with and without a mask, whole and padded rows."""
    return tuple(
        tiles_for(head_dim, device).build(dtype, causal=causal, padded=padded)
        for head_dim, dtype, causal, padded in product(DEFAULTS, DTYPES, (False, True), (False, True))
    )


def plan_with(workload: Workload, tiles: Tiles, accumulators: int | None = None) -> LaunchPlan:
    """Tensors and launches with other tiles: for tuning and for tests.

    Args:
        workload: a backward workload.
        tiles: the tile choice.
        accumulators: None: a block for every tile of keys, and one accumulator of dQ that takes their sums as they
            come. A number: that many blocks a KV head, each with its own accumulator, so that runs are bitwise equal.
    """
    w = workload
    query_shape = (w.batch, w.heads, w.seq_q, w.head_dim)
    key_shape = (w.batch, w.kv_heads, w.seq_kv, w.head_dim)
    statistic_shape = (w.batch, w.heads, w.seq_q)
    heads = w.batch * w.heads
    padded_q = _padded_q(w, tiles)
    padded_elements = heads * padded_q * tiles.head_dim
    build = tiles.build(w.dtype, causal=w.causal, padded=w.head_dim != tiles.head_dim)
    stream = (STREAM_THREADS, 1, 1)
    sizes = tuple(Scalar("i32", size) for size in (w.head_dim, w.seq_q, padded_q, heads, accumulators or 1))
    return LaunchPlan(
        tensors=(
            TensorSpec("q", query_shape, w.dtype, "in"),
            TensorSpec("k", key_shape, w.dtype, "in"),
            TensorSpec("v", key_shape, w.dtype, "in"),
            TensorSpec("o", query_shape, w.dtype, "in"),
            TensorSpec("dout", query_shape, w.dtype, "in"),
            TensorSpec("lse", statistic_shape, Dtype.FP32, "in"),
            TensorSpec("d", statistic_shape, Dtype.FP32, "scratch"),
            TensorSpec("dq_accumulator", (accumulators or 1, heads, padded_q, tiles.head_dim), Dtype.FP32, "scratch"),
            TensorSpec("dq", query_shape, w.dtype, "out"),
            TensorSpec("dk", key_shape, w.dtype, "out"),
            TensorSpec("dv", key_shape, w.dtype, "out"),
        ),
        launches=(
            Launch(
                stage="rowsum",
                build=build,
                entry="fa2_backward_rowsum",
                grid=(ceil_div(padded_elements, VECTOR * STREAM_THREADS), 1, 1),
                block=stream,
                smem_bytes=0,
                args=(*map(Pointer, ("o", "dout", "d", "dq_accumulator")), *sizes),
            ),
            Launch(
                stage="gradients",
                build=build,
                entry="fa2_backward_gradients",
                grid=_grid(w, tiles, accumulators),
                block=(tiles.threads, 1, 1),
                smem_bytes=tiles.smem_bytes,
                args=(
                    *map(Pointer, ("q", "k", "v", "dout", "lse", "d", "dq_accumulator", "dk", "dv")),
                    Scalar("i32", w.head_dim),
                    Scalar("i32", w.seq_q),
                    Scalar("i32", w.seq_kv),
                    Scalar("i32", w.batch * w.kv_heads),
                    Scalar("i32", w.heads // w.kv_heads),
                    Scalar("i32", heads * padded_q // tiles.block_q if accumulators else 0),
                    Scalar("f32", w.scale),
                    scale_log2(w),
                ),
            ),
            Launch(
                stage="convert",
                build=build,
                entry="fa2_backward_convert",
                grid=(ceil_div(padded_elements, 2 * VECTOR * STREAM_THREADS), 1, 1),
                block=stream,
                smem_bytes=0,
                args=(Pointer("dq_accumulator"), Pointer("dq"), *sizes, Scalar("f32", w.scale)),
            ),
        ),
    )


def _padded_q(workload: Workload, tiles: Tiles) -> int:
    return ceil_div(workload.seq_q, tiles.block_q) * tiles.block_q


def _grid(workload: Workload, tiles: Tiles, accumulators: int | None) -> Dim3:
    """Key blocks, then KV heads of all batches."""
    return grid_of(accumulators or ceil_div(workload.seq_kv, tiles.block_kv), workload.batch * workload.kv_heads)


def _steps(workload: Workload, tiles: Tiles) -> list[int]:
    """Of each tile of keys, the blocks of queries that it meets, the last ones; the first tile meets the most."""
    q_tiles = ceil_div(workload.seq_q, tiles.block_q)
    offset = workload.seq_kv - workload.seq_q if workload.causal else workload.seq_kv
    return [q_tiles - max(0, start - offset) // tiles.block_q for start in range(0, workload.seq_kv, tiles.block_kv)]


def _schedule(workload: Workload, tiles: Tiles, accumulators: int | None) -> Schedule:
    heads = workload.batch * workload.kv_heads
    x, y, z = _grid(workload, tiles, accumulators)
    steps = _steps(workload, tiles)
    return longest_first(
        (sum(steps[block::x]) for block in range(x)),
        heads=heads,
        idle_blocks=x * (y * z - heads),
        blocks_per_sm=tiles.blocks_per_sm,
    )


_FAST = KernelSpec(
    name="fa2-bwd",
    rung=51,
    title="FlashAttention-2 backward: P again from Q, K and the log-sum-exp",
    idea="A fifth product computes P again, which spares seven trips of N² elements through HBM. A block keeps dK and "
    "dV of its keys in registers and walks over the queries; dQ adds up in fp32 in L2.",
    file=FILE,
    direction=Pass.BWD,
    arches=AMPERE_AND_LATER,
    demand=demand,
    unsupported=unsupported,
    plan=plan,
    builds=builds,
    rounds=("p", "ds", "o"),
    varies="dQ takes its sums in the order in which blocks arrive; fa2-bwd-deterministic does not",
    candidates=candidates,
)

SPECS = (
    _FAST,
    replace(
        _FAST,
        name="fa2-bwd-deterministic",
        title="fa2-bwd with bitwise equal runs",
        idea="A few blocks a KV head, each with its own dQ, take the tiles of keys in turn, and their dQs are added in "
        "order: the same five products, for a larger tail and a few times the memory of dQ.",
        demand=partial(demand, deterministic=True),
        plan=partial(plan, deterministic=True),
        candidates=partial(candidates, deterministic=True),
        varies=None,
    ),
)
