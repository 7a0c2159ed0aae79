"""The ``fa2-decode`` rung: split-KV attention for few queries over long caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from attnprof.kernels.attention import (
    LENGTH_MAX,
    RESERVED_SMEM_BYTES,
    ceil_div,
    element_build,
    forward_tensors,
    scale_log2,
)
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.split_kv import choose_splits, split_kv_demand
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Pass, Workload

FILE = kernels_dir() / "fa2_decode.cu"
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
# Rings deeper than this only cost shared memory.
STAGES_MAX = 6


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile choice for one head dim and number of rows: everything that a launch needs follows from it.

    Attributes:
        head_dim: 64, 128 or 256.
        m_tiles: 16-row products that a warp stacks.
        row_warps: warps of a team; each has ``16 · m_tiles`` rows, all have the same keys.
        key_warps: teams; they have the same rows and different keys.
        step_keys: keys that a team works on at a time.
        stages: tiles of K and of V in a team's ring.
        q_in_registers: whether the fragments of Q stay in registers or are read from shared memory at each step.
        blocks_per_sm: blocks that an SM must hold; the compiler gets 65,536 / (blocks · threads) registers a thread.
    """

    head_dim: int
    m_tiles: int
    row_warps: int
    key_warps: int
    step_keys: int = 16
    stages: int = 2
    q_in_registers: bool = True
    blocks_per_sm: int = 1

    def build(self, dtype: Dtype) -> Build:
        """The compilation for one element type; it serves every mask and any number of splits."""
        macros = {
            "HEAD_DIM": self.head_dim,
            "M_TILES": self.m_tiles,
            "ROW_WARPS": self.row_warps,
            "KEY_WARPS": self.key_warps,
            "STEP_KEYS": self.step_keys,
            "STAGES": self.stages,
            "Q_IN_REGISTERS": int(self.q_in_registers),
            "MIN_BLOCKS": self.blocks_per_sm,
        }
        return element_build(FILE, dtype, **macros)

    @property
    def rows(self) -> int:
        """Rows a block: queries times query heads of a KV head."""
        return 16 * self.m_tiles * self.row_warps

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.row_warps * self.key_warps

    @property
    def q_bytes(self) -> int:
        """The tile of Q."""
        return self.rows * self.head_dim * 2

    @property
    def stage_bytes(self) -> int:
        """K and V of one step, all teams together."""
        return 2 * self.key_warps * self.step_keys * self.head_dim * 2

    @property
    def smem_bytes(self) -> int:
        """Q and the rings; in the end the teams' parts of O, in padded rows, and statistics lie there."""
        parts = self.key_warps * self.rows * (self.head_dim + 8) * 4
        return max(self.q_bytes + self.stages * self.stage_bytes, parts + self.key_warps * self.rows * 8)


# For 16, 32 and 64 rows; more rows take more blocks. Eight warps an SM, or four with 16 rows at head dim 256, where a
# warp's tiles are twice as large.
SHAPES: Mapping[int, tuple[Tiles, ...]] = {
    64: (
        Tiles(64, m_tiles=1, row_warps=1, key_warps=8, step_keys=32),
        Tiles(64, m_tiles=2, row_warps=1, key_warps=8, step_keys=32),
        Tiles(64, m_tiles=2, row_warps=2, key_warps=4, step_keys=32),
    ),
    128: (
        Tiles(128, m_tiles=1, row_warps=1, key_warps=8),
        Tiles(128, m_tiles=2, row_warps=1, key_warps=8),
        # At 64 rows products take half the time, and two blocks overlap them: 9 % faster on an H200 than one of eight
        # warps. Q would take the registers that sm_100 needs.
        Tiles(128, m_tiles=2, row_warps=2, key_warps=2, q_in_registers=False, blocks_per_sm=2),
    ),
    256: (
        Tiles(256, m_tiles=1, row_warps=1, key_warps=4),
        Tiles(256, m_tiles=1, row_warps=2, key_warps=4),
        Tiles(256, m_tiles=1, row_warps=4, key_warps=2),
    ),
}


def fitted(shape: Tiles, device: DeviceSpec) -> Tiles:
    """A shape with the deepest rings that fit a device: first with one block an SM, then with fewer teams if need be.

    What counts is how many bytes are on their way: bandwidth times latency, some 30 KiB an SM on an H200.
    """
    tiles = shape
    while True:
        share = device.smem_per_sm_bytes // tiles.blocks_per_sm - RESERVED_SMEM_BYTES
        room = min(device.smem_per_block_bytes, share)
        stages = min(STAGES_MAX, (room - tiles.q_bytes) // tiles.stage_bytes)
        tiles = replace(tiles, stages=max(2, stages))
        # Two stages of one team take less than 99 KiB, which every GPU from sm_80 on has for a block.
        if tiles.smem_bytes <= room or tiles.key_warps == tiles.blocks_per_sm == 1:
            return tiles
        if tiles.blocks_per_sm > 1:
            tiles = replace(tiles, blocks_per_sm=1)
        else:
            tiles = replace(tiles, key_warps=tiles.key_warps // 2)


def tiles_for(workload: Workload, device: DeviceSpec) -> Tiles:
    """The tile choice for a workload that is supported: as few rows as hold the queries of a KV head."""
    *smaller, largest = SHAPES[workload.head_dim]
    rows = rows_per_kv_head(workload)
    return fitted(next((shape for shape in smaller if rows <= shape.rows), largest), device)


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
        return f"fa2-decode takes head dim {', '.join(map(str, SHAPES))}, not {workload.head_dim}"
    if workload.seq_q > QUERIES_MAX:
        return f"fa2-decode takes up to {QUERIES_MAX} queries, not {workload.seq_q}: fa2 is for more"
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
    tiles = tiles_for(workload, device)
    splits = splits_for(workload, tiles, device)
    return split_kv_demand(workload, splits, _schedules(workload, tiles, splits))


def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """Tensors and launches, with the tuned tiles and splits."""
    tiles = tiles_for(workload, device)
    return plan_with(workload, tiles, splits_for(workload, tiles, device))


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
        arches=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
        demand=demand,
        unsupported=unsupported,
        plan=plan,
        builds=builds,
        rounds=("p", "o"),
        niche=True,
    ),
)
