"""The ``fa2-bwd`` rung: FlashAttention-2, backward, on the tensor cores of sm_80 and later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from attnprof.kernels.attention import LENGTH_MAX, ceil_div, element_build, grid_of, longest_first, roomiest, scale_log2
from attnprof.kernels.plan import Build, Dim3, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand, Direction, LedgerLine, Schedule, Stage
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Pass, Workload

FILE = kernels_dir() / "fa2_bwd.cu"
DTYPES = (Dtype.FP16, Dtype.BF16)

# Positions inside a head are 32-bit, and so is the number of a row of Q or K over all heads: at 128 bytes a row or
# more, no GPU holds that many.
ROWS_MAX = 2**31
# A row of Q or K is made of whole 16-byte chunks. Head dims that are not in `CHOICES` are padded to the next that is.
HEAD_DIM_STEP = 8
# Threads of a block of the two kernels that stream.
STREAM_THREADS = 256
# Elements that a thread of theirs takes at a time.
VECTOR = 8
# The most accumulators of a deterministic dQ: each takes twice the memory of Q.
ACCUMULATORS_MAX = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile choice for one head dim: everything that a launch needs follows from it.

    Attributes:
        head_dim: 64, 128 or 256.
        block_q: queries it works on at a time.
        block_kv: keys a thread block owns.
        warps_kv: warps that split the keys, each with ``block_kv / warps_kv`` rows of Sᵀ: best 32, so that a fragment
            of Q or dO feeds two products.
        warps_q: warps of the same keys; they split the queries of S and the columns of dK and dV, and exchange P and
            dS through shared memory. With 1 there is nothing to exchange.
        dq_warps_q: warps that split the queries of dQ; the others split its columns.
        q_stages: tiles of Q and of dO in shared memory at once, 1 or 2.
        ds_stages: tiles of dS, 1 or 2. With 2 the product dS K of a step is left to the next one, so that all warps
            meet at one barrier a step.
        blocks_per_sm: blocks that an SM's registers must hold; the compiler gets 65,536 / (blocks · threads) a thread.
    """

    head_dim: int
    block_q: int = 64
    block_kv: int = 128
    warps_kv: int = 4
    warps_q: int = 2
    dq_warps_q: int = 2
    q_stages: int = 2
    ds_stages: int = 2
    blocks_per_sm: int = 1

    def build(self, dtype: Dtype, *, causal: bool, padded: bool = False) -> Build:
        """The compilation for one element type and mask; ``padded``: rows in global memory are shorter."""
        macros = {
            "HEAD_DIM": self.head_dim,
            "PADDED": int(padded),
            "CAUSAL": int(causal),
            "BLOCK_Q": self.block_q,
            "BLOCK_KV": self.block_kv,
            "WARPS_KV": self.warps_kv,
            "WARPS_Q": self.warps_q,
            "DQ_WARPS_Q": self.dq_warps_q,
            "Q_STAGES": self.q_stages,
            "DS_STAGES": self.ds_stages,
            "MIN_BLOCKS": self.blocks_per_sm,
        }
        return element_build(FILE, dtype, **macros)

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps_kv * self.warps_q

    @property
    def smem_bytes(self) -> int:
        """K and V, the stages of Q and dO, P where it is exchanged, the stages of dS, and two fp32 a query a stage."""
        rows = 2 * self.block_kv + 2 * self.q_stages * self.block_q
        tiles_of_s = (1 if self.warps_q > 1 else 0) + self.ds_stages
        return (
            rows * self.head_dim * 2
            + tiles_of_s * self.block_q * self.block_kv * 2
            + self.q_stages * 2 * self.block_q * 4
        )


# The first choice that the device's shared memory has room for, as many times as `Tiles.blocks_per_sm` says.
CHOICES: Mapping[int, tuple[Tiles, ...]] = {
    64: (
        Tiles(head_dim=64, block_q=32, warps_q=1, blocks_per_sm=2),
        Tiles(head_dim=64, block_q=32, warps_q=1, q_stages=1, ds_stages=1, blocks_per_sm=2),
    ),
    128: (
        Tiles(head_dim=128),
        Tiles(head_dim=128, ds_stages=1),
        Tiles(head_dim=128, block_kv=64, warps_kv=2, q_stages=1, ds_stages=1),
    ),
    256: (
        Tiles(head_dim=256, block_kv=64, warps_kv=2, warps_q=4),
        Tiles(head_dim=256, block_kv=64, warps_kv=2, warps_q=4, q_stages=1, ds_stages=1),
        Tiles(head_dim=256, block_q=32, block_kv=32, warps_kv=2, q_stages=1, ds_stages=1),
    ),
}


def tiles_for(head_dim: int, device: DeviceSpec) -> Tiles:
    """The tile choice for a head dim, that of the next one of `CHOICES`, on a device."""
    return roomiest(CHOICES[min(compiled for compiled in CHOICES if compiled >= head_dim)], device)


def unsupported(workload: Workload) -> str | None:
    """Why ``fa2-bwd`` cannot run this workload, or None."""
    if workload.direction is not Pass.BWD:
        return "fa2-bwd computes the backward pass only"
    if workload.dtype not in DTYPES:
        return f"fa2-bwd takes {' or '.join(DTYPES)}, not {workload.dtype}"
    if workload.head_dim % HEAD_DIM_STEP or workload.head_dim > max(CHOICES):
        steps = f"{HEAD_DIM_STEP} to {max(CHOICES)} in steps of {HEAD_DIM_STEP}"
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
    block of queries, and read in the third, which writes dQ.
    """
    base = fused_demand(workload)
    if unsupported(workload) is not None:
        return base
    tiles = tiles_for(workload.head_dim, device)
    accumulators = accumulators_for(workload, tiles, device) if deterministic else None
    rowsum, gradients = base.stages
    nbytes = (accumulators or 1) * 4 * workload.batch * workload.heads * _padded_q(workload, tiles) * tiles.head_dim
    (dq,) = (line for line in gradients.ledger if line.tensor == "dQ")

    def sums(stage: str, direction: Direction) -> LedgerLine:
        return LedgerLine(stage, "dQ sums", direction, nbytes)

    stages = (
        replace(rowsum, ledger=(*rowsum.ledger, sums("rowsum", "write"))),
        replace(
            gradients,
            ledger=(
                *(line for line in gradients.ledger if line is not dq),
                sums("gradients", "read"),
                sums("gradients", "write"),
            ),
            schedule=_schedule(workload, tiles, accumulators),
        ),
        Stage(
            name="convert",
            ledger=(sums("convert", "read"), replace(dq, stage="convert")),
            fp32_flops=(accumulators or 1) * workload.q_elements,  # additions, the last of them a multiplication
        ),
    )
    return Demand(stages, base.footprint_bytes + nbytes, base.intermediate_bytes + nbytes)


def plan(workload: Workload, device: DeviceSpec, *, deterministic: bool = False) -> LaunchPlan:
    """Tensors and launches, with the tuned tiles."""
    tiles = tiles_for(workload.head_dim, device)
    return plan_with(workload, tiles, accumulators_for(workload, tiles, device) if deterministic else None)


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every variant for a device: head dims, element types, with and without a mask, whole and padded rows."""
    return tuple(
        tiles_for(head_dim, device).build(dtype, causal=causal, padded=padded)
        for head_dim, dtype, causal, padded in product(CHOICES, DTYPES, (False, True), (False, True))
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


def _schedule(workload: Workload, tiles: Tiles, accumulators: int | None) -> Schedule:
    heads = workload.batch * workload.kv_heads
    x, y, z = _grid(workload, tiles, accumulators)
    q_tiles = ceil_div(workload.seq_q, tiles.block_q)
    offset = workload.seq_kv - workload.seq_q if workload.causal else workload.seq_kv
    starts = range(0, workload.seq_kv, tiles.block_kv)
    steps = [q_tiles - max(0, start - offset) // tiles.block_q for start in starts]
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
    arches=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
    demand=demand,
    unsupported=unsupported,
    plan=plan,
    builds=builds,
    rounds=("p", "ds", "o"),
    varies="dQ takes its sums in the order in which blocks arrive; fa2-bwd-deterministic does not",
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
        varies=None,
    ),
)
