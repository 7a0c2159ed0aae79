"""The ``fa2`` rung: FlashAttention-2, forward, on the tensor cores of sm_80 and later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from attnprof.kernels.attention import LENGTH_MAX, ceil_div, grid_over_heads, longest_first, scale_log2
from attnprof.kernels.candidates import Candidate, of_tiles
from attnprof.kernels.fa2_tiles import (
    DEFAULTS,
    EXACT,
    FILE,
    Tiles,
    candidates_for,
    tiles_for,
    tiles_of,
    width_of,
)
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec, Layout
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.traffic import fused_demand, kv_blocks_visited
from attnprof.model.workload import Pass, Workload

DTYPES = (Dtype.FP16, Dtype.BF16)

# What a row of a tensor consists of: copies to and from shared memory take 16 bytes.
HEAD_DIM_STEP = 8
# Positions inside a head are 32-bit, and so is the number of a row of Q or K over all heads: at 128 bytes a row or
# more, no GPU holds that many.
ROWS_MAX = 2**31


def unsupported(workload: Workload) -> str | None:
    """Why ``fa2`` cannot run this workload, or None."""
    if workload.direction is not Pass.FWD:
        return "fa2 computes the forward pass only"
    if workload.dtype not in DTYPES:
        return f"fa2 takes {' or '.join(DTYPES)}, not {workload.dtype}"
    if workload.head_dim % HEAD_DIM_STEP or workload.head_dim > max(DEFAULTS):
        allowed = f"multiples of {HEAD_DIM_STEP} up to {max(DEFAULTS)}"
        return f"fa2 takes head dims that are {allowed}, not {workload.head_dim}"
    if max(workload.seq_q, workload.seq_kv) > LENGTH_MAX:
        return f"fa2 takes lengths up to {LENGTH_MAX}"
    if max(workload.rows, workload.batch * workload.kv_heads * workload.seq_kv) > ROWS_MAX:
        return f"fa2 takes up to {ROWS_MAX} rows of Q or K over all heads"
    return None


def demand(workload: Workload, device: DeviceSpec, *, axes: Layout = "bhsd") -> Demand:
    """The ledger and the work of each unit: Q, K, V read once, O written once.

    The log-sum-exp is not in it, because `plan` does not write it; with `plan_lse` 4 bytes a row come on top. The work
    counts allowed pairs and the head dim itself only; on the diagonal, at ragged edges and where the head dim is less
    than the tiles are wide, the kernel multiplies whole tiles. It evaluates one exponential more a row whenever it
    rescales.
    """
    if unsupported(workload) is not None:
        return fused_demand(workload)
    return demand_with(workload, tiles_of(workload, device, strided=axes != "bhsd"))


def demand_with(workload: Workload, tiles: Tiles) -> Demand:
    """As `demand`, of a supported workload with other tiles."""
    return fused_demand(workload, {"attention": _schedule(workload, tiles)})


def plan(workload: Workload, device: DeviceSpec, *, axes: Layout = "bhsd") -> LaunchPlan:
    """Tensors and launches, with the built-in tiles and without the log-sum-exp, as inference runs it."""
    return plan_with(workload, tiles_of(workload, device, strided=axes != "bhsd"), axes=axes)


def plan_lse(workload: Workload, device: DeviceSpec, *, axes: Layout = "bhsd") -> LaunchPlan:
    """As `plan`, and the log-sum-exp is written too, as a forward that a backward follows."""
    return plan_with(workload, tiles_of(workload, device, strided=axes != "bhsd"), axes=axes, lse=True)


def candidates(workload: Workload, device: DeviceSpec, *, axes: Layout = "bhsd") -> tuple[Candidate, ...]:
    """The built-in tiles, and what else fits the device."""
    if unsupported(workload) is not None:
        return ()
    strided = axes != "bhsd" or workload.head_dim not in EXACT
    return of_tiles(
        (tiles_of(workload, device, strided=strided), *candidates_for(workload.head_dim, device)),
        f"d{width_of(workload.head_dim)}{' strided' if strided else ''}",
        partial(plan_with, workload, axes=axes),
        partial(demand_with, workload),
    )


def builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every built-in variant for a device: widths, element types, with and without a mask, exact and strided."""
    return tuple(
        dict.fromkeys(
            tiles_for(width, device, strided=strided, short_causal=causal and short).build(
                dtype, causal=causal, strided=strided
            )
            for width, dtype, causal, strided, short in product(DEFAULTS, DTYPES, *3 * ((False, True),))
            if strided or width in EXACT
        )
    )


def plan_with(
    workload: Workload,
    tiles: Tiles,
    *,
    lse: bool = False,
    p: bool = False,
    axes: Layout = "bhsd",
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


def _shape(workload: Workload, heads: int, length: int, axes: Layout) -> tuple[int, int, int, int]:
    inner = (heads, length) if axes == "bhsd" else (length, heads)
    return (workload.batch, *inner, workload.head_dim)


def _strides(workload: Workload, axes: Layout) -> Iterator[Scalar]:
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


_CONTIGUOUS = KernelSpec(
    name="fa2",
    rung=50,
    title="FlashAttention-2: Q outside, K and V inside, O in registers",
    idea="Keep a block of queries on chip and stream the keys past it: S and P never leave the chip, O is divided "
    "and written once. What bounds it are the tensor cores, no longer HBM.",
    file=FILE,
    direction=Pass.FWD,
    arches=AMPERE_AND_LATER,
    demand=demand,
    unsupported=unsupported,
    plan=plan,
    builds=builds,
    rounds=("p", "o"),
    plan_lse=plan_lse,
    variants=variants,
    candidates=candidates,
    bshd=lambda: _STRIDED,
)

# Heads inside the sequence, as the projections before an attention leave them: no copy, the strides are arguments.
_STRIDED: KernelSpec = replace(
    _CONTIGUOUS,
    layout="bshd",
    demand=partial(demand, axes="bshd"),
    plan=partial(plan, axes="bshd"),
    plan_lse=partial(plan_lse, axes="bshd"),
    candidates=partial(candidates, axes="bshd"),
    variants=lambda: (),
    bshd=None,
)

SPECS = (_CONTIGUOUS,)
