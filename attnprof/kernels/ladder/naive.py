"""The ``naive`` rung: textbook attention in three kernels, with S and P going through HBM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnprof.kernels.attention import GRID_X_MAX, ceil_div, forward_refusal
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec
from attnprof.model.demand import Demand, Schedule, Stage
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.traffic import kv_blocks_visited, three_kernel_demand
from attnprof.model.workload import Pass, Workload

FILE = kernels_dir() / "naive.cu"

# Elements of S and P that one 16-byte access moves: rows are padded to a multiple of it.
VECTOR = 8
# A warp's share of a tile is this many columns wide (kernels_cu/common/tile.cuh).
WARP_COLUMNS = 64
# The most threads of a softmax block.
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile choice for one head dim: everything that a launch needs follows from it.

    Attributes:
        head_dim: 64 or 128.
        scores_m, scores_n: queries by keys of a score tile.
        scores_warp_m: rows of a score tile that one warp computes, 64 columns wide.
        scores_blocks: blocks of the score kernel that an SM's registers must hold.
        output_m, output_k: queries by keys of a tile of P.
        output_stages: tiles of P and V in shared memory at once.
        output_warp_m: rows of O that one warp computes, 64 columns wide.
        output_blocks: blocks of the output kernel that an SM's registers must hold.
        row_vectors: 16-byte vectors of a row that one softmax thread holds.
    """

    head_dim: int
    scores_m: int = 256
    scores_n: int = 64
    scores_warp_m: int = 64
    scores_blocks: int = 2
    output_m: int = 128
    output_k: int = 64
    output_stages: int = 3
    output_warp_m: int = 64
    output_blocks: int = 2
    row_vectors: int = 8

    def defines(self, dtype: Dtype) -> tuple[tuple[str, str], ...]:
        """The macros of the build."""
        sizes = {
            "HEAD_DIM": self.head_dim,
            "SCORES_M": self.scores_m,
            "SCORES_N": self.scores_n,
            "SCORES_WARP_M": self.scores_warp_m,
            "SCORES_BLOCKS": self.scores_blocks,
            "OUTPUT_M": self.output_m,
            "OUTPUT_K": self.output_k,
            "OUTPUT_STAGES": self.output_stages,
            "OUTPUT_WARP_M": self.output_warp_m,
            "OUTPUT_BLOCKS": self.output_blocks,
            "ROW_VECTORS": self.row_vectors,
        }
        return (("ELEMENT", f"ELEMENT_{dtype.name}"), *((macro, str(size)) for macro, size in sizes.items()))

    def build(self, dtype: Dtype) -> Build:
        """The compilation for one element type."""
        return Build(FILE, self.defines(dtype))

    @property
    def scores_threads(self) -> int:
        """Threads of a score block."""
        return 32 * (self.scores_m // self.scores_warp_m) * (self.scores_n // WARP_COLUMNS)

    @property
    def scores_smem_bytes(self) -> int:
        """The Q tile and two K tiles, one of which becomes the stage for the scores once it is used up."""
        return (self.scores_m + 2 * self.scores_n) * self.head_dim * 2

    @property
    def output_threads(self) -> int:
        """Threads of an output block."""
        return 32 * (self.output_m // self.output_warp_m) * (self.head_dim // WARP_COLUMNS)

    @property
    def output_smem_bytes(self) -> int:
        """The stages, each a tile of P and one of V."""
        return self.output_stages * self.output_k * (self.output_m + self.head_dim) * 2

    @property
    def row_max(self) -> int:
        """The longest row that softmax holds on chip; longer ones take ``naive_softmax_long`` and read S twice."""
        return MOST_THREADS * self.row_vectors * VECTOR

    def softmax_threads(self, workload: Workload) -> int:
        """Just enough whole warps to hold the longest row."""
        threads = ceil_div(ceil_div(workload.seq_kv, VECTOR), self.row_vectors)
        return min(MOST_THREADS, ceil_div(threads, 32) * 32)


# Both kernels keep within 99 KiB, so that one build serves every architecture, and two blocks share an SM with 227 KiB.
TILES: Mapping[int, Tiles] = {
    64: Tiles(head_dim=64, output_m=256, output_stages=2),
    128: Tiles(head_dim=128),
}


def leading_dimension(workload: Workload) -> int:
    """Elements from one row of S to the next: seq_kv, padded so that every row starts on a 16-byte boundary."""
    return ceil_div(workload.seq_kv, VECTOR) * VECTOR


def key_tiles_per_block(workload: Workload, tiles: Tiles) -> int:
    """Tiles of keys that one score block walks along.

    More of them read the Q tile less often; fewer make more blocks. 512 blocks fill the largest GPUs (two blocks on
    each of 132 to 148 SMs) once or twice; past 64 tiles the Q tile costs next to nothing.
    """
    in_a_row = ceil_div(workload.seq_kv, tiles.scores_n)
    in_all = workload.batch * workload.heads * ceil_div(workload.seq_q, tiles.scores_m) * in_a_row
    most = max(1, min(64, in_all // 512))
    return ceil_div(in_a_row, ceil_div(in_a_row, most))  # as many blocks, evenly filled


def unsupported(workload: Workload) -> str | None:
    """Why ``naive`` cannot run this workload, or None."""
    refusal = forward_refusal("naive", workload, dtypes=(Dtype.FP16, Dtype.BF16), head_dims=TILES)
    if refusal is not None:
        return refusal
    grids = [_scores_blocks(workload, TILES[workload.head_dim]), workload.rows]
    if max(grids) > GRID_X_MAX:
        return f"naive launches a block a row and takes up to {GRID_X_MAX} rows over all heads, not {workload.rows}"
    return None


def demand(workload: Workload, device: DeviceSpec) -> Demand:
    """The ledger and the work of each unit; the schedules where the kernels can run it.

    Beyond the model's least, softmax evaluates every exponential twice, so that a row fits on chip as it came; rows
    of more than `Tiles.row_max` elements don't, and read S twice.
    """
    # Any head dim has a ledger; the tiles of one that is not compiled stand for those it would have.
    tiles = TILES.get(workload.head_dim, TILES[128])
    asked = three_kernel_demand(workload, _schedules(workload, tiles) if unsupported(workload) is None else {})
    if workload.direction is not Pass.FWD:
        return asked
    return replace(asked, stages=tuple(_as_executed(stage, workload, tiles) for stage in asked.stages))


def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """Tensors and launches, with the tuned tiles."""
    return plan_with(workload, TILES[workload.head_dim])


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every variant: one build serves all architectures and masks."""
    return tuple(tiles.build(dtype) for tiles in TILES.values() for dtype in (Dtype.FP16, Dtype.BF16))


def plan_with(workload: Workload, tiles: Tiles) -> LaunchPlan:
    """Tensors and launches with other tiles: for tuning and for tests.

    S is (batch, heads, seq_q, ld), with ld = `leading_dimension`; P overwrites it.
    """
    w = workload
    ld = leading_dimension(w)
    query_shape = (w.batch, w.heads, w.seq_q, w.head_dim)
    key_shape = (w.batch, w.kv_heads, w.seq_kv, w.head_dim)
    build = tiles.build(w.dtype)
    lengths = (Scalar("i32", w.seq_q), Scalar("i32", w.seq_kv), Scalar("i32", ld))
    group = Scalar("i32", w.heads // w.kv_heads)
    causal = Scalar("i32", int(w.causal))
    key_tiles = Scalar("i32", key_tiles_per_block(w, tiles))
    return LaunchPlan(
        tensors=(
            TensorSpec("q", query_shape, w.dtype, "in"),
            TensorSpec("k", key_shape, w.dtype, "in"),
            TensorSpec("v", key_shape, w.dtype, "in"),
            TensorSpec("s", (w.batch, w.heads, w.seq_q, ld), w.dtype, "scratch"),
            TensorSpec("o", query_shape, w.dtype, "out"),
        ),
        launches=(
            Launch(
                stage="scores",
                build=build,
                entry="naive_scores",
                grid=(_scores_blocks(w, tiles), 1, 1),
                block=(tiles.scores_threads, 1, 1),
                smem_bytes=tiles.scores_smem_bytes,
                args=(
                    *(Pointer("q"), Pointer("k"), Pointer("s")),
                    *(*lengths, group, causal, key_tiles, Scalar("f32", w.scale)),
                ),
            ),
            Launch(
                stage="softmax",
                build=build,
                entry="naive_softmax" if w.seq_kv <= tiles.row_max else "naive_softmax_long",
                grid=(w.rows, 1, 1),
                block=(tiles.softmax_threads(w), 1, 1),
                smem_bytes=0,
                args=(Pointer("s"), *lengths, causal),
            ),
            Launch(
                stage="output",
                build=build,
                entry="naive_output",
                grid=(_output_blocks(w, tiles), 1, 1),
                block=(tiles.output_threads, 1, 1),
                smem_bytes=tiles.output_smem_bytes,
                args=(Pointer("s"), Pointer("v"), Pointer("o"), *lengths, group, causal),
            ),
        ),
    )


def _scores_blocks(workload: Workload, tiles: Tiles) -> int:
    segments = ceil_div(ceil_div(workload.seq_kv, tiles.scores_n), key_tiles_per_block(workload, tiles))
    return workload.batch * workload.heads * ceil_div(workload.seq_q, tiles.scores_m) * segments


def _output_blocks(workload: Workload, tiles: Tiles) -> int:
    return workload.batch * workload.heads * ceil_div(workload.seq_q, tiles.output_m)


def _as_executed(stage: Stage, workload: Workload, tiles: Tiles) -> Stage:
    if stage.name != "softmax":
        return stage
    ledger = stage.ledger
    if workload.seq_kv > tiles.row_max:
        ledger = (*(line for line in ledger if line.direction == "read"), *ledger)
    return replace(
        stage,
        ledger=ledger,
        # The second exponential and the multiply-add before it.
        exponentials=stage.exponentials + workload.pairs,
        fp32_flops=stage.fp32_flops + workload.pairs,
    )


def _schedules(workload: Workload, tiles: Tiles) -> dict[str, Schedule]:
    heads = workload.batch * workload.heads
    each = key_tiles_per_block(workload, tiles)
    segments = range(0, ceil_div(workload.seq_kv, tiles.scores_n), each)
    reach = Counter(kv_blocks_visited(workload, tiles.scores_m, tiles.scores_n))
    scores: Counter[int] = Counter()
    for key_tiles, blocks in reach.items():
        for first in segments:
            scores[max(0, min(each, key_tiles - first))] += blocks
    output = Counter(kv_blocks_visited(workload, tiles.output_m, tiles.output_k))
    return {
        "scores": _schedule(scores, heads, tiles.scores_blocks),
        # A block a row: so many, and so short, that how unequal they are does not show.
        "softmax": Schedule(workload.rows, max(1, min(32, MOST_THREADS // tiles.softmax_threads(workload)))),
        "output": _schedule(output, heads, tiles.output_blocks),
    }


def _schedule(work: Counter[int], heads: int, blocks_per_sm: int) -> Schedule:
    # Heads run one after another, each with its long blocks first. Listing all blocks longest first says the same of
    # the end, where the imbalance is, in as many runs as one head has.
    runs = tuple((count * heads, size) for size, count in sorted(work.items(), reverse=True))
    return Schedule(sum(count for count, _ in runs), blocks_per_sm, runs)


SPECS = (
    KernelSpec(
        name="naive",
        rung=20,
        title="three kernels, S and P through HBM",
        idea="Textbook attention: write S, normalise it row by row into P, read P back. Four trips of N² elements "
        "through HBM bound it, however fast the products are.",
        file=FILE,
        direction=Pass.FWD,
        arches=AMPERE_AND_LATER,
        demand=demand,
        unsupported=unsupported,
        plan=plan,
        builds=builds,
        rounds=("s", "p", "o"),
    ),
)
