"""The ``fa1`` rung: FlashAttention-1, keys in the outer loop, with O, m and l through HBM at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from attnprof.kernels.attention import (
    ceil_div,
    element_build,
    forward_refusal,
    forward_tensors,
    longest_first,
    roomiest,
    scale_log2,
)
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.ladder_traffic import first_row_that_sees, keys_outside_demand
from attnprof.model.workload import Pass, Workload

FILE = kernels_dir() / "fa1.cu"
DTYPES = (Dtype.FP16, Dtype.BF16)

# Rows that a warp works on at a time, and moves even where the mask leaves only some of them a key.
STRIP = 16
# Kernel launches of one run.
LAUNCHES_MAX = 65_536
# Every block has a row, and blocks are numbered along the grid's x.
ROWS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile choice for one head dim: everything that a launch needs follows from it.

    Attributes:
        head_dim: 64 or 128.
        block_kv: keys that a thread block keeps in shared memory: as many as fit, since each block of keys costs a
            trip of O through HBM.
        sub_kv: keys that a strip of rows works on at a time, out of those; divides ``block_kv``.
        warps: warps a block, each with 16 rows at a time.
        blocks_per_sm: blocks that an SM's registers must hold; the compiler gets 65,536 / (blocks · threads) a thread.
        blocks_at_once: blocks that the whole device holds at once.
        most_rounds: how many times ``round_rows`` rows a block may serve.
    """

    head_dim: int
    block_kv: int
    sub_kv: int = 64
    warps: int = 8
    blocks_per_sm: int = 1
    blocks_at_once: int = 132
    most_rounds: int = 32

    def build(self, dtype: Dtype, *, causal: bool) -> Build:
        """The compilation for one element type and mask."""
        return element_build(
            FILE,
            dtype,
            HEAD_DIM=self.head_dim,
            CAUSAL=int(causal),
            BLOCK_KV=self.block_kv,
            SUB_KV=self.sub_kv,
            WARPS=self.warps,
            MIN_BLOCKS=self.blocks_per_sm,
        )

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    @property
    def round_rows(self) -> int:
        """Rows that the warps of a block work on at a time."""
        return STRIP * self.warps

    @property
    def smem_bytes(self) -> int:
        """The tiles of K and V; Q passes by shared memory."""
        return 2 * self.block_kv * self.head_dim * 2


# All of an SM's shared memory for one block's keys, largest first: 224 KiB (H100, H200, B200), 160 KiB (A100), 96 KiB
# (sm_86, sm_89 and sm_120, which allow 99 KiB a block). The last runs everywhere. Parts of about 100 keys are as large
# as registers allow: fewer corrections of O (b1 h32 s4096 d128 on an H200: 1.04 ms; in parts of 64 keys 1.06).
CHOICES: Mapping[int, tuple[Tiles, ...]] = {
    64: (Tiles(64, block_kv=896, sub_kv=112), Tiles(64, block_kv=640, sub_kv=80), Tiles(64, block_kv=384, sub_kv=96)),
    128: (
        Tiles(128, block_kv=448, sub_kv=112),
        Tiles(128, block_kv=320, sub_kv=80),
        Tiles(128, block_kv=192, sub_kv=96),
    ),
}


def tiles_for(head_dim: int, device: DeviceSpec) -> Tiles:
    """The tiles for a head dim of `CHOICES` on a device: the largest block of keys that it has the memory for."""
    tiles = roomiest(CHOICES[head_dim], device)
    return replace(tiles, blocks_at_once=tiles.blocks_per_sm * device.sm_count)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the outer loop, as it is launched.

    Attributes:
        first_key: of the block of keys.
        first_row: the first row of each head that takes part.
        blocks_a_head: thread blocks that share a head's rows.
        rounds: how many times ``round_rows`` rows each of them works on.
    """

    first_key: int
    first_row: int
    blocks_a_head: int
    rounds: int


def steps(workload: Workload, tiles: Tiles) -> tuple[Step, ...]:
    """Every turn of the outer loop. The first takes all rows, for those without any key must become 0."""
    heads = workload.batch * workload.heads
    found = []
    for first_key in range(0, workload.seq_kv, tiles.block_kv):
        first_row = first_row_that_sees(workload, first_key, strip=STRIP) if first_key else 0
        in_a_head = ceil_div(workload.seq_q - first_row, tiles.round_rows)
        rounds = _rounds(in_a_head, heads, tiles.blocks_at_once, tiles.most_rounds)
        found.append(Step(first_key, first_row, ceil_div(in_a_head, rounds), rounds))
    return tuple(found)


@lru_cache(maxsize=4096)
def _rounds(in_a_head: int, heads: int, blocks_at_once: int, most: int) -> int:
    """How many of a head's ``in_a_head`` rounds a block takes on: the shortest launch, in rounds one after another.

    Loading K and V into shared memory counts as one: 224 KiB out of L2, where a round moves 160 KiB to and from HBM
    (eight warps, d 128).
    """

    def length(rounds: int) -> int:
        return ceil_div(heads * ceil_div(in_a_head, rounds), blocks_at_once) * (rounds + 1)

    best = min(range(1, min(most, in_a_head) + 1), key=length)
    return ceil_div(in_a_head, ceil_div(in_a_head, best))  # as many blocks, evenly filled


def unsupported(workload: Workload) -> str | None:
    """Why ``fa1`` cannot run this workload, or None."""
    refusal = forward_refusal("fa1", workload, dtypes=DTYPES, head_dims=CHOICES)
    if refusal is not None:
        return refusal
    tiles = CHOICES[workload.head_dim][-1]
    if workload.seq_kv > LAUNCHES_MAX * tiles.block_kv:
        return (
            f"fa1 launches a kernel for every {tiles.block_kv} keys and takes up to {LAUNCHES_MAX * tiles.block_kv}, "
            f"not {workload.seq_kv}"
        )
    if workload.rows > ROWS_MAX:
        return f"fa1 takes up to {ROWS_MAX} rows of Q over all heads"
    return None


def demand(workload: Workload, device: DeviceSpec) -> Demand:
    """The ledger and the work of each unit: Q, O, m and l cross HBM once a block of keys.

    The work counts allowed pairs only; on the diagonal and at ragged edges the kernel multiplies whole tiles.
    """
    # Any head dim has a ledger; the tiles of one that is not compiled stand for those it would have.
    tiles = tiles_for(workload.head_dim if workload.head_dim in CHOICES else 128, device)
    schedules = {"attention": _schedule(workload, tiles)} if unsupported(workload) is None else {}
    return keys_outside_demand(workload, tiles.block_kv, schedules, strip=STRIP)


def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """Tensors and launches, with the tuned tiles."""
    return plan_with(workload, tiles_for(workload.head_dim, device))


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every variant for a device: head dims and element types, with and without a mask."""
    return tuple(
        tiles_for(head_dim, device).build(dtype, causal=causal)
        for head_dim, dtype, causal in product(CHOICES, DTYPES, (False, True))
    )


def plan_with(workload: Workload, tiles: Tiles) -> LaunchPlan:
    """Tensors and launches with other tiles: for tuning and for tests."""
    w = workload
    rows = (w.batch, w.heads, w.seq_q)
    tensors = (
        *forward_tensors(w),
        TensorSpec("o_fp32", (*rows, w.head_dim), Dtype.FP32, "scratch"),
        TensorSpec("m", rows, Dtype.FP32, "scratch"),
        TensorSpec("l", rows, Dtype.FP32, "scratch"),
    )
    build = tiles.build(w.dtype, causal=w.causal)
    return LaunchPlan(
        tensors=tensors,
        launches=tuple(
            Launch(
                stage="attention",
                build=build,
                entry="fa1_step",
                grid=(w.batch * w.heads * step.blocks_a_head, 1, 1),
                block=(tiles.threads, 1, 1),
                smem_bytes=tiles.smem_bytes,
                args=(
                    *(Pointer(tensor.name) for tensor in tensors),
                    Scalar("i32", w.seq_q),
                    Scalar("i32", w.seq_kv),
                    Scalar("i32", w.heads // w.kv_heads),
                    Scalar("i32", step.first_key),
                    Scalar("i32", step.first_row),
                    Scalar("i32", step.blocks_a_head),
                    Scalar("i32", step.rounds),
                    scale_log2(w),
                ),
            )
            for step in steps(w, tiles)
        ),
    )


def _schedule(workload: Workload, tiles: Tiles) -> Schedule:
    """The first step's, which is the largest; without a mask all are alike."""
    first = steps(workload, tiles)[0]
    in_a_head = ceil_div(workload.seq_q, tiles.round_rows)
    starts = range(0, first.blocks_a_head * first.rounds, first.rounds)
    return longest_first(
        (max(0, min(first.rounds, in_a_head - start)) for start in starts),
        heads=workload.batch * workload.heads,
        blocks_per_sm=tiles.blocks_per_sm,
    )


SPECS = (
    KernelSpec(
        name="fa1",
        rung=40,
        title="FlashAttention-1: K and V outside, Q inside, O through HBM every step",
        idea="The online softmax lets a block of keys be used and forgotten, so S is computed once. But with the keys "
        "in the outer loop every block of them sends all of Q and O through HBM.",
        file=FILE,
        direction=Pass.FWD,
        arches=AMPERE_AND_LATER,
        demand=demand,
        unsupported=unsupported,
        plan=plan,
        builds=builds,
        # O waits in fp32 between the steps, and is rounded once.
        rounds=("p", "o"),
    ),
)
