"""The ``tiled`` rung: textbook softmax in one kernel, which multiplies QKᵀ twice rather than keep S."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from attnprof.kernels.attention import (
    GRID_YZ_MAX,
    ceil_div,
    element_build,
    forward_refusal,
    forward_tensors,
    grid_over_heads,
    longest_first,
    roomiest,
    scale_log2,
)
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.ladder_traffic import exact_statistics_demand
from attnprof.model.traffic import kv_blocks_visited
from attnprof.model.workload import Pass, Workload

FILE = kernels_dir() / "tiled.cu"
DTYPES = (Dtype.FP16, Dtype.BF16)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile choice for one head dim: everything that a launch needs follows from it.

    Attributes:
        head_dim: 64 or 128.
        block_q: queries a thread block owns.
        block_kv: keys it works on at a time in the second walk, which yields O.
        statistics_kv: the same in the first walk, which yields maxima and sums; at most twice ``block_kv``.
        warps: warps a block, each with ``block_q / warps`` rows: a multiple of 16, best 32.
        blocks_per_sm: blocks that an SM's registers must hold; the compiler gets 65,536 / (blocks · threads) a thread.
    """

    head_dim: int
    block_q: int = 128
    block_kv: int = 64
    statistics_kv: int = 64
    warps: int = 4
    blocks_per_sm: int = 2

    def build(self, dtype: Dtype, *, causal: bool) -> Build:
        """The compilation for one element type and mask."""
        return element_build(
            FILE,
            dtype,
            HEAD_DIM=self.head_dim,
            CAUSAL=int(causal),
            BLOCK_Q=self.block_q,
            BLOCK_KV=self.block_kv,
            STATISTICS_KV=self.statistics_kv,
            WARPS=self.warps,
            MIN_BLOCKS=self.blocks_per_sm,
        )

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    @property
    def smem_bytes(self) -> int:
        """The Q tile, through which O also leaves, and two stages of K and V."""
        return (self.block_q + 4 * self.block_kv) * self.head_dim * 2


# Two blocks must share an SM, so that one's exponentials overlap the other's products: the first choice that the
# device's shared memory has room for twice. At d 128 H100, H200 and B200 take the first (96 KiB), A100 (164 KiB an SM)
# the second (64 KiB), and sm_86, sm_89 and sm_120 (100 KiB) the last (48 KiB).
CHOICES: Mapping[int, tuple[Tiles, ...]] = {
    64: (Tiles(head_dim=64),),
    128: (
        Tiles(head_dim=128, statistics_kv=80),
        Tiles(head_dim=128, block_kv=32),
        Tiles(head_dim=128, block_q=64, block_kv=32, warps=2),
    ),
}


def tiles_for(head_dim: int, device: DeviceSpec) -> Tiles:
    """The tile choice for a head dim of `CHOICES` on a device."""
    return roomiest(CHOICES[head_dim], device)


def unsupported(workload: Workload) -> str | None:
    """Why ``tiled`` cannot run this workload, or None."""
    refusal = forward_refusal("tiled", workload, dtypes=DTYPES, head_dims=CHOICES)
    if refusal is None and workload.batch * workload.heads > GRID_YZ_MAX**2:
        return f"tiled takes up to {GRID_YZ_MAX**2} heads over all batches"
    return refusal


def demand(workload: Workload, device: DeviceSpec) -> Demand:
    """The ledger and the work of each unit: Q, K, V read once, O written once, three products.

    K is read twice where the K of all heads that run at once does not fit the device's L2. The work counts allowed
    pairs only; on the diagonal and at ragged edges the kernel multiplies whole tiles, and its running maxima cost one
    exponential more a lane, row and step.
    """
    if unsupported(workload) is not None:
        return exact_statistics_demand(workload)
    tiles = tiles_for(workload.head_dim, device)
    return exact_statistics_demand(
        workload, {"attention": _schedule(workload, tiles)}, k_from_l2=_k_fits_l2(workload, tiles, device)
    )


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
    tensors = forward_tensors(w)
    return LaunchPlan(
        tensors=tensors,
        launches=(
            Launch(
                stage="attention",
                build=tiles.build(w.dtype, causal=w.causal),
                entry="tiled_forward",
                grid=grid_over_heads(w, tiles.block_q),
                block=(tiles.threads, 1, 1),
                smem_bytes=tiles.smem_bytes,
                args=(
                    *(Pointer(tensor.name) for tensor in tensors),
                    Scalar("i32", w.seq_q),
                    Scalar("i32", w.seq_kv),
                    Scalar("i32", w.batch * w.heads),
                    Scalar("i32", w.heads // w.kv_heads),
                    scale_log2(w),
                ),
            ),
        ),
    )


def _schedule(workload: Workload, tiles: Tiles) -> Schedule:
    heads = workload.batch * workload.heads
    x, y, z = grid_over_heads(workload, tiles.block_q)
    return longest_first(
        kv_blocks_visited(workload, tiles.block_q, tiles.block_kv),
        heads=heads,
        idle_blocks=x * (y * z - heads),
        blocks_per_sm=tiles.blocks_per_sm,
    )


def _k_fits_l2(workload: Workload, tiles: Tiles, device: DeviceSpec) -> bool:
    """Whether L2 holds K of all heads that run at once until the second walk; taken for granted where it is unknown."""
    if device.l2_bytes is None:
        return True
    at_once = ceil_div(device.sm_count * tiles.blocks_per_sm, ceil_div(workload.seq_q, tiles.block_q))
    kv_heads = min(ceil_div(at_once * workload.kv_heads, workload.heads), workload.batch * workload.kv_heads)
    return kv_heads * workload.seq_kv * workload.head_dim * workload.dtype.itemsize <= device.l2_bytes


SPECS = (
    KernelSpec(
        name="tiled",
        rung=30,
        title="one kernel, exact statistics first: S computed twice, never stored",
        idea="Stream K once for each row's exact maximum and sum, and again, with V, for the output. A third product "
        "buys back the four trips of N² elements through HBM.",
        file=FILE,
        direction=Pass.FWD,
        arches=AMPERE_AND_LATER,
        demand=demand,
        unsupported=unsupported,
        plan=plan,
        builds=builds,
        # P is a probability, but kept times 2^15 in fp16, so that it rounds as an exponential of a fused kernel does.
        rounds=("p", "o"),
    ),
)
