"""What the specs of attention kernels share: builds, tensors, arguments, refusals, the grid over heads, schedules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from attnprof.kernels.plan import Build, Dim3, Scalar, TensorSpec
from attnprof.model.demand import Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Pass, Workload

# Row and key indices inside a head are 32-bit.
LENGTH_MAX = 2**30
# Grid limits of every CUDA device: x, then y and z.
GRID_X_MAX = 2**31 - 1
GRID_YZ_MAX = 65_535
# Shared memory that the system takes beside each block's share, from sm_80 on (CUDA C++ Programming Guide, 20.7.3).
RESERVED_SMEM_BYTES = 1024


class _Tiles(Protocol):
    @property
    def blocks_per_sm(self) -> int: ...

    @property
    def smem_bytes(self) -> int: ...


TilesThatFit = TypeVar("TilesThatFit", bound=_Tiles)


def ceil_div(a: int, b: int) -> int:
    """⌈a / b⌉."""
    return -(-a // b)


def element_build(file: Path, dtype: Dtype, **macros: int | str) -> Build:
    """The compilation of a kernel for one element type (kernels_cu/common/element.cuh) and these macros."""
    return Build(
        file, (("ELEMENT", f"ELEMENT_{dtype.name}"), *((macro, str(value)) for macro, value in macros.items()))
    )


def scale_log2(workload: Workload) -> Scalar:
    """The argument scale · log2(e): exp(scale · s) is 2^(scale · log2(e) · s), so a kernel needs this product only."""
    return Scalar("f32", workload.scale * math.log2(math.e))


def forward_refusal(
    name: str, workload: Workload, *, dtypes: Collection[Dtype], head_dims: Collection[int]
) -> str | None:
    """Why a forward kernel with these types and head dims cannot run a workload of whatever size, or None."""
    if workload.direction is not Pass.FWD:
        return f"{name} computes the forward pass only"
    if workload.dtype not in dtypes:
        return f"{name} takes {' or '.join(dtypes)}, not {workload.dtype}"
    if workload.head_dim not in head_dims:
        return f"{name} takes head dim {' or '.join(map(str, head_dims))}, not {workload.head_dim}"
    if max(workload.seq_q, workload.seq_kv) > LENGTH_MAX:
        return f"{name} takes lengths up to {LENGTH_MAX}"
    return None


def forward_tensors(workload: Workload) -> tuple[TensorSpec, ...]:
    """Q, K, V and O of a forward pass."""
    w = workload
    query_shape = (w.batch, w.heads, w.seq_q, w.head_dim)
    key_shape = (w.batch, w.kv_heads, w.seq_kv, w.head_dim)
    return (
        TensorSpec("q", query_shape, w.dtype, "in"),
        TensorSpec("k", key_shape, w.dtype, "in"),
        TensorSpec("v", key_shape, w.dtype, "in"),
        TensorSpec("o", query_shape, w.dtype, "out"),
    )


def roomiest(choices: Sequence[TilesThatFit], device: DeviceSpec) -> TilesThatFit:
    """The first choice that an SM has the shared memory for, as many times as it asks to be there; else the last."""
    return next((t for t in choices if fit_together(t.blocks_per_sm, t.smem_bytes, device)), choices[-1])


# Architectures with as much shared memory an SM share a column of a table of tiles: sm_90; sm_100 and sm_103 (both 228
# KiB an SM); sm_80 and sm_87 (164 KiB); sm_86, sm_89 and sm_120 (100 KiB).
_COLUMNS = {
    **{(9, 0): 0, (10, 0): 1, (10, 3): 1, (8, 0): 2, (8, 7): 2},
    **{(8, 6): 3, (8, 9): 3, (12, 0): 3, (12, 1): 3},
}
# An architecture that is in no column has been measured as little as those of the second.
_UNKNOWN_COLUMN = 1


def built_in(row: Sequence[TilesThatFit], device: DeviceSpec) -> TilesThatFit:
    """A kernel's own choice on a device, from its table's row of four columns.

    That of the device's architecture, or the next one to the right where the device reports less shared memory.
    """
    return roomiest(row[_COLUMNS.get(device.compute_capability, _UNKNOWN_COLUMN) :], device)


def fitting(choices: Iterable[TilesThatFit], device: DeviceSpec) -> tuple[TilesThatFit, ...]:
    """The choices that a device has the shared memory for: in a block, and in an SM as often as they ask for."""
    return tuple(
        tiles
        for tiles in choices
        if tiles.smem_bytes <= device.smem_per_block_bytes
        and fit_together(tiles.blocks_per_sm, tiles.smem_bytes, device)
    )


def has_little_smem(device: DeviceSpec) -> bool:
    """Whether an SM has 100 KiB, as from sm_86, sm_89 and sm_120, rather than 164 or more."""
    return device.smem_per_sm_bytes < 128 * 1024


def fit_together(blocks: int, smem_bytes: int, device: DeviceSpec) -> bool:
    """Whether an SM has the shared memory for so many blocks at once."""
    return blocks * (smem_bytes + RESERVED_SMEM_BYTES) <= device.smem_per_sm_bytes


def grid_over_heads(workload: Workload, block_q: int) -> Dim3:
    """Query blocks, then heads of all batches; see `grid_of`."""
    return grid_of(ceil_div(workload.seq_q, block_q), workload.batch * workload.heads)


def grid_of(blocks: int, heads: int) -> Dim3:
    """So many blocks a head, then the heads over y and z, as evenly as it goes: the kernel skips the surplus."""
    layers = ceil_div(heads, GRID_YZ_MAX)
    return (blocks, ceil_div(heads, layers), layers)


def longest_first(steps: Iterable[int], *, heads: int, idle_blocks: int = 0, blocks_per_sm: int) -> Schedule:
    """The schedule of blocks that take so many steps each, the same in every head.

    Heads run one after another, each with its long blocks first. Listing all blocks longest first says the same of the
    end, where the imbalance is, in as many runs as one head has.
    """
    runs = Counter({size: count * heads for size, count in Counter(steps).items()}) + Counter({0: idle_blocks})
    work = tuple((count, size) for size, count in sorted(runs.items(), reverse=True))
    return Schedule(sum(count for count, _ in work), blocks_per_sm, work)
