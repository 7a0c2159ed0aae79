"""The ``fa2`` rung: FlashAttention-2, forward, on the tensor cores of sm_80 and later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from attnprof.kernels.attention import (
    LENGTH_MAX,
    ceil_div,
    element_build,
    grid_over_heads,
    longest_first,
    roomiest,
    scale_log2,
)
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.traffic import fused_demand, kv_blocks_visited
from attnprof.model.workload import Pass, Workload

FILE = kernels_dir() / "fa2.cu"
DTYPES = (Dtype.FP16, Dtype.BF16)
Axes = Literal["bhsd", "bshd"]

# What a row of a tensor consists of: copies to and from shared memory take 16 bytes.
HEAD_DIM_STEP = 8
# Positions inside a head are 32-bit, and so is the number of a row of Q or K over all heads: at 128 bytes a row or
# more, no GPU holds that many.
ROWS_MAX = 2**31
# How tiles lie in shared memory; the last two are traps, and a second cure, of `attnprof.kernels.fa2_variants`.
Layout = Literal["swizzle", "plain", "pad"]
PAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile choice for one width of tiles: everything that a launch needs follows from it.

    Attributes:
        head_dim: the width, a multiple of 32: the head dim, or more, and then the tiles are filled up with zeros.
        block_q: queries a thread block owns.
        block_kv: keys it works on at a time.
        warps: warps a block, each with ``block_q / warps`` rows: a multiple of 16, best 32.
        kv_stages: tiles of K and of V in shared memory at once, 1 or 2. With 2 the next tiles load during a whole step
            and warps meet at one barrier a step instead of two.
        q_in_registers: whether the fragments of Q stay in registers (head_dim / 4 of them a 32-row warp) or are read
            from shared memory in every step.
        blocks_per_sm: blocks that an SM's registers must hold; the compiler gets 65,536 / (blocks · threads) a thread.
        rescale_log2: how far, in powers of two, a row maximum may grow before O is rescaled; below 0: always rescale.
        layout: how a tile's rows lie in shared memory; ``pad`` has 8 unused elements behind each.
    """

    head_dim: int
    block_q: int = 128
    block_kv: int = 64
    warps: int = 4
    kv_stages: int = 2
    q_in_registers: bool = False
    blocks_per_sm: int = 2
    rescale_log2: float = 8.0
    layout: Layout = "swizzle"

    def build(self, dtype: Dtype, *, causal: bool, strided: bool = False, p: bool = False) -> Build:
        """The compilation for one element type and mask.

        Args:
            dtype: the element type.
            causal: whether it masks.
            strided: whether the head dim and all strides are arguments.
            p: whether it writes P.
        """
        macros: dict[str, int | str] = {
            "HEAD_DIM": self.head_dim,
            "CAUSAL": int(causal),
            "STRIDED": int(strided),
            "BLOCK_Q": self.block_q,
            "BLOCK_KV": self.block_kv,
            "WARPS": self.warps,
            "KV_STAGES": self.kv_stages,
            "Q_IN_REGISTERS": int(self.q_in_registers),
            "MIN_BLOCKS": self.blocks_per_sm,
            "RESCALE_LOG2": f"{float(self.rescale_log2)}f",
        }
        if self.layout != "swizzle":
            macros["LAYOUT"] = f"LAYOUT_{self.layout.upper()}"
        if p:
            macros["WRITE_P"] = 1
        return element_build(FILE, dtype, **macros)

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    @property
    def smem_bytes(self) -> int:
        """The Q tile, through which O also leaves, and the stages of K and V, two bytes an element."""
        row_bytes = self.head_dim * 2 + (PAD_BYTES if self.layout == "pad" else 0)
        return (self.block_q + 2 * self.kv_stages * self.block_kv) * row_bytes


# For each width the first choice that the device's shared memory has room for, blocks_per_sm times. H100, H200 and B200
# take the first, which is what measured fastest on an H200; A100 (164 KiB an SM) often the next, and sm_86, sm_89 and
# sm_120 (100 KiB) the last. Two blocks should share an SM, so that one's softmax overlaps the other's products; from
# 192 on O fills so many registers that a warp has 16 rows, and one block of 8 warps an SM was faster than two of 4.
CHOICES: Mapping[int, tuple[Tiles, ...]] = {
    32: (Tiles(32),),
    64: (Tiles(64),),
    96: (Tiles(96), Tiles(96, block_kv=32)),
    128: (Tiles(128), Tiles(128, block_kv=32), Tiles(128, block_kv=32, kv_stages=1)),
    192: (
        Tiles(192, warps=8, q_in_registers=True, blocks_per_sm=1),
        Tiles(192, warps=8, block_kv=32, q_in_registers=True, blocks_per_sm=1),
    ),
    256: (
        Tiles(256, warps=8, blocks_per_sm=1),
        Tiles(256, warps=8, block_kv=48, q_in_registers=True, blocks_per_sm=1),
        Tiles(256, warps=8, block_kv=32, kv_stages=1, blocks_per_sm=1),
    ),
}
# On sm_90 ptxas fits 128 keys a step into the registers, of the contiguous variant only: on an H200 5 to 8 % faster
# than 64.
SM_90_D256 = Tiles(256, warps=8, block_kv=128, kv_stages=1, blocks_per_sm=1)
# Widths that have a variant of their own for contiguous tensors of that head dim; the others run the strided one.
EXACT = (64, 128, 256)


def tiles_for(head_dim: int, device: DeviceSpec, layout: Layout = "swizzle") -> Tiles:
    """The tile choice for a head dim up to the largest of `CHOICES`, on a device."""
    if head_dim == SM_90_D256.head_dim and device.compute_capability == (9, 0) and layout == "swizzle":
        return SM_90_D256
    choices = CHOICES[next(width for width in CHOICES if width >= head_dim)]
    return roomiest([replace(tiles, layout=layout) for tiles in choices], device)


def unsupported(workload: Workload) -> str | None:
    """Why ``fa2`` cannot run this workload, or None."""
    if workload.direction is not Pass.FWD:
        return "fa2 computes the forward pass only"
    if workload.dtype not in DTYPES:
        return f"fa2 takes {' or '.join(DTYPES)}, not {workload.dtype}"
    if workload.head_dim % HEAD_DIM_STEP or workload.head_dim > max(CHOICES):
        allowed = f"multiples of {HEAD_DIM_STEP} up to {max(CHOICES)}"
        return f"fa2 takes head dims that are {allowed}, not {workload.head_dim}"
    if max(workload.seq_q, workload.seq_kv) > LENGTH_MAX:
        return f"fa2 takes lengths up to {LENGTH_MAX}"
    if max(workload.rows, workload.batch * workload.kv_heads * workload.seq_kv) > ROWS_MAX:
        return f"fa2 takes up to {ROWS_MAX} rows of Q or K over all heads"
    return None


def demand(workload: Workload, device: DeviceSpec) -> Demand:
    """The ledger and the work of each unit: Q, K, V read once, O written once.

    The log-sum-exp is not in it, because `plan` does not write it; with `plan_lse` 4 bytes a row come on top. The work
    counts allowed pairs and the head dim itself only; on the diagonal, at ragged edges and where the head dim is less
    than the tiles are wide, the kernel multiplies whole tiles. It evaluates one exponential more a row whenever it
    rescales.
    """
    if unsupported(workload) is not None:
        return fused_demand(workload)
    return demand_with(workload, tiles_for(workload.head_dim, device))


def demand_with(workload: Workload, tiles: Tiles) -> Demand:
    """As `demand`, of a supported workload with other tiles."""
    return fused_demand(workload, {"attention": _schedule(workload, tiles)})


def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """Tensors and launches, with the tuned tiles and without the log-sum-exp, as inference runs it."""
    return plan_with(workload, tiles_for(workload.head_dim, device))


def plan_lse(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """As `plan`, and the log-sum-exp is written too, as a forward that a backward follows."""
    return plan_with(workload, tiles_for(workload.head_dim, device), lse=True)


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every variant for a device: widths, element types, with and without a mask, exact and strided."""
    return tuple(
        # A head dim that does not fill the tiles is strided.
        tiles_for(width - HEAD_DIM_STEP if strided else width, device).build(dtype, causal=causal, strided=strided)
        for width, dtype, causal, strided in product(CHOICES, DTYPES, (False, True), (False, True))
        if strided or width in EXACT
    )


def plan_with(
    workload: Workload,
    tiles: Tiles,
    *,
    lse: bool = False,
    p: bool = False,
    axes: Axes = "bhsd",
    strided: bool = False,
) -> LaunchPlan:
    """Tensors and launches with other tiles: for tuning, for variants and for tests.

    Args:
        workload: what to compute.
        tiles: tiles of the workload's head dim or wider.
        lse: whether the log-sum-exp is written too.
        p: whether P is written as it meets V, a tensor ``p`` of (batch, heads, seq_q, seq_kv rounded up to a multiple
            of ``block_kv``): exp(scale · s - m) with m the row's running maximum at that key block, so blocks of keys
            are comparable within themselves only. Blocks that the mask hides stay as they were.
        axes: the order of the axes of Q, K, V and O: ``bhsd``, or ``bshd`` with the heads inside.
        strided: whether the strided variant runs even where the contiguous one could.
    """
    w = workload
    strided |= w.head_dim != tiles.head_dim or tiles.head_dim not in EXACT or axes != "bhsd"
    query_shape = _shape(w, w.heads, w.seq_q, axes)
    key_shape = _shape(w, w.kv_heads, w.seq_kv, axes)
    tensors = [
        TensorSpec("q", query_shape, w.dtype, "in"),
        TensorSpec("k", key_shape, w.dtype, "in"),
        TensorSpec("v", key_shape, w.dtype, "in"),
        TensorSpec("o", query_shape, w.dtype, "out"),
    ]
    if lse:
        tensors.append(TensorSpec("lse", (w.batch, w.heads, w.seq_q), Dtype.FP32, "out"))
    if p:
        # Scratch: no result of attention, and too large to fetch at every check.
        pitch = ceil_div(w.seq_kv, tiles.block_kv) * tiles.block_kv
        tensors.append(TensorSpec("p", (w.batch, w.heads, w.seq_q, pitch), w.dtype, "scratch"))
    return LaunchPlan(
        tensors=tuple(tensors),
        launches=(
            Launch(
                stage="attention",
                build=tiles.build(w.dtype, causal=w.causal, strided=strided, p=p),
                entry="fa2_forward",
                grid=grid_over_heads(w, tiles.block_q),
                block=(tiles.threads, 1, 1),
                smem_bytes=tiles.smem_bytes,
                args=(
                    *(Pointer(name) for name in ("q", "k", "v", "o")),
                    Pointer("lse") if lse else Scalar("i64", 0),  # a null pointer: no log-sum-exp
                    *((Pointer("p"), Scalar("i32", tensors[-1].shape[-1])) if p else ()),
                    Scalar("i32", w.seq_q),
                    Scalar("i32", w.seq_kv),
                    Scalar("i32", w.batch * w.heads),
                    Scalar("i32", w.heads // w.kv_heads),
                    *(_strides(w, axes) if strided else ()),
                    scale_log2(w),
                ),
            ),
        ),
    )


def _shape(workload: Workload, heads: int, length: int, axes: Axes) -> tuple[int, int, int, int]:
    inner = (heads, length) if axes == "bhsd" else (length, heads)
    return (workload.batch, *inner, workload.head_dim)


def _strides(workload: Workload, axes: Axes) -> Iterator[Scalar]:
    """What the strided variant takes besides: heads, head dim, and the strides of Q, K, V and O in elements."""
    w = workload
    yield Scalar("i32", w.heads)
    yield Scalar("i32", w.head_dim)
    for heads, length in ((w.heads, w.seq_q), (w.kv_heads, w.seq_kv), (w.kv_heads, w.seq_kv), (w.heads, w.seq_q)):
        row = w.head_dim if axes == "bhsd" else heads * w.head_dim
        head = length * w.head_dim if axes == "bhsd" else w.head_dim
        for stride in (heads * length * w.head_dim, head, row):
            yield Scalar("i64", stride)


def _schedule(workload: Workload, tiles: Tiles) -> Schedule:
    heads = workload.batch * workload.heads
    x, y, z = grid_over_heads(workload, tiles.block_q)
    return longest_first(
        kv_blocks_visited(workload, tiles.block_q, tiles.block_kv),
        heads=heads,
        idle_blocks=x * (y * z - heads),
        blocks_per_sm=tiles.blocks_per_sm,
    )


def variants() -> tuple[KernelSpec, ...]:
    """The same kernel with one thing done wrong, or right in another way: what ``--variant`` names."""
    from attnprof.kernels import fa2_variants  # which builds on this module

    return fa2_variants.VARIANTS


SPECS = (
    KernelSpec(
        name="fa2",
        rung=50,
        title="FlashAttention-2: Q outside, K and V inside, O in registers",
        idea="Keep a block of queries on chip and stream the keys past it: S and P never leave the chip, O is divided "
        "and written once. What bounds it are the tensor cores, no longer HBM.",
        file=FILE,
        direction=Pass.FWD,
        arches=("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"),
        demand=demand,
        unsupported=unsupported,
        plan=plan,
        builds=builds,
        rounds=("p", "o"),
        plan_lse=plan_lse,
        variants=variants,
    ),
)
