"""What a tile choice of an attention kernel takes: shared memory, registers, bank conflicts, occupancy.

The kernel that the model has in mind is that of FlashAttention-2 (arXiv:2307.08691): a block owns ``block_q`` queries,
its warps share them, and it walks over the keys ``block_kv`` at a time. Q and ``stages`` tiles of K and of V lie in
shared memory; scores and output stay in registers, as accumulators of ``mma.m16n8k16``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnprof.model.architectures import Architecture
from attnprof.model.banks import Conflicts
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UsageError
from attnprof.model.layouts import Layout, Tile
from attnprof.model.occupancy import Occupancy, occupancy
from attnprof.model.patterns import PATTERNS, Pattern, Row

MMA_ROWS = 16
DEFAULT_PAD = 8
DEFAULT_WARPS = 4
# A block's warps, at most.
MAX_WARPS = Architecture.max_threads_per_block // Architecture.warp_size
# Addresses, loop counters and constants. Fitted to fa2 as NVRTC 13 compiles it for sm_80 and sm_90a, so that no variant
# that runs well in 255 registers is put above them.
_REGISTERS_BESIDES = 32


@dataclass(frozen=True, slots=True)
class TileChoice:
    """One choice; checked when it is made.

    Attributes:
        head_dim: d, a multiple of 16.
        block_q: queries a block owns; every warp has a multiple of 16 of them.
        block_kv: keys at a time, a multiple of 16.
        stages: tiles of K and of V in shared memory at once.
        warps: warps a block.
        dtype: element type, 2 bytes.
        layout: how rows lie in shared memory.
        pad: elements that ``pad`` adds to a row.
        p_in_smem: whether P goes through a shared-memory tile instead of staying in registers.
    """

    head_dim: int
    block_q: int
    block_kv: int
    stages: int = 1
    warps: int = DEFAULT_WARPS
    dtype: Dtype = Dtype.FP16
    layout: Layout = Layout.SWIZZLE
    pad: int = DEFAULT_PAD
    p_in_smem: bool = False

    def __post_init__(self) -> None:
        for name, value in (("head-dim", self.head_dim), ("block-q", self.block_q), ("block-kv", self.block_kv)):
            if value < 1 or value % MMA_ROWS:
                nearest = max(1, round(value / MMA_ROWS)) * MMA_ROWS
                raise UsageError(
                    f"--{name} {value} is not a multiple of {MMA_ROWS}, the side of a matrix product",
                    f"for example: --{name} {nearest}",
                )
        if self.warps < 1 or self.block_q % (MMA_ROWS * self.warps):
            raise UsageError(
                f"--warps {self.warps} cannot share --block-q {self.block_q}: each needs a multiple of {MMA_ROWS} rows",
                f"for example: --warps {default_warps(self.block_q)}",
            )
        if self.stages < 1:
            raise UsageError(f"--stages {self.stages}: at least one tile of K and V is needed", "--stages 1")
        if self.pad < 1:
            raise UsageError(f"--pad {self.pad} pads nothing", "--layout plain is without padding")
        if self.dtype.itemsize != 2:
            raise UsageError(f"tiles of {self.dtype} are not what mma.m16n8k16 takes", "choose --dtype fp16 or bf16")

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps

    @property
    def m_tiles(self) -> int:
        """16-row products that a warp stacks."""
        return self.block_q // (MMA_ROWS * self.warps)

    def tile(self, row: Row = "head-dim") -> Tile:
        """The layout of a tile whose rows are a head dim (Q, K, V, O) or a block of keys (P) long."""
        elements = self.head_dim if row == "head-dim" else self.block_kv
        itemsize = self.dtype.itemsize
        return Tile(elements * itemsize, self.layout, self.pad * itemsize)

    def misfit(self) -> str | None:
        """Why the layout can't be had for these tiles, or None when it can."""
        return self.tile().misfit() or (self.tile("block-kv").misfit() if self.p_in_smem else None)


def default_warps(block_q: int) -> int:
    """Four warps if they share the rows evenly; else what is near, without rows that a thread has no registers for.

    Fewer than four only if that leaves none more than 32 rows, whose accumulators 255 registers just hold at head dim
    128; else the fewest above four, and one if no number that a block can have shares them.
    """
    slices = max(1, block_q // MMA_ROWS)
    fewer = (warps for warps in range(DEFAULT_WARPS, 0, -1) if warps == DEFAULT_WARPS or slices <= 2 * warps)
    return next((warps for warps in (*fewer, *range(DEFAULT_WARPS + 1, MAX_WARPS + 1)) if slices % warps == 0), 1)


def smem_parts(choice: TileChoice) -> dict[str, int]:
    """Bytes of each tensor's tiles; their sum is the dynamic shared memory of a block.

    (64 queries + 2 x 64 keys) x 128 x 2 bytes = 49,152 at one stage.
    """
    tile = choice.tile()
    parts = {
        "q": tile.nbytes(choice.block_q),
        "k": choice.stages * tile.nbytes(choice.block_kv),
        "v": choice.stages * tile.nbytes(choice.block_kv),
    }
    if choice.p_in_smem:
        parts["p"] = choice.tile("block-kv").nbytes(choice.block_q)
    return parts


def register_parts(choice: TileChoice) -> dict[str, int]:
    """An estimate of the registers a thread needs, by what they hold.

    A 16 x 8 accumulator in fp32 is 4 registers a lane, a 16 x 16 fragment of 2-byte elements 4, one of 16 x 8 2. For m
    stacked products of 16 rows:

    * ``o``: m · d / 8 · 4, the unnormalised output;
    * ``s``: m · block_kv / 8 · 4, the scores of a block;
    * ``fragments``: 4m of Q, 4m of P and 4 of K or V, one step of 16 at a time;
    * ``statistics``: running maximum and sum of 2m rows;
    * ``other``: 32 for addresses and counters.

    It is what the tile needs. A compiler that has more takes more: fa2's variants, as NVRTC 13 compiles them with every
    register allowed, take 3 to 40 more. One that is put just below 255 may spill a few bytes.
    """
    m = choice.m_tiles
    return {
        "o": m * choice.head_dim // 2,
        "s": m * choice.block_kv // 2,
        "fragments": 8 * m + 4,
        "statistics": 4 * m,
        "other": _REGISTERS_BESIDES,
    }


def smem_bytes(choice: TileChoice) -> int:
    """Shared memory of a block, in bytes."""
    return sum(smem_parts(choice).values())


def registers(choice: TileChoice) -> int:
    """The estimated registers a thread; above the 255 that a thread can have, it would spill."""
    return sum(register_parts(choice).values())


def tile_occupancy(
    choice: TileChoice,
    architecture: Architecture,
    *,
    registers_per_thread: int | None = None,
    smem_per_sm_bytes: int | None = None,
) -> Occupancy:
    """Blocks and warps that an SM holds.

    Args:
        choice: the tile.
        architecture: the SM.
        registers_per_thread: what the compiler reports; without it the estimate, cut at what a thread can have, since
            a compiler would spill the rest.
        smem_per_sm_bytes: shared memory of the SM where the device reports another figure than the table.
    """
    if registers_per_thread is None:
        registers_per_thread = min(registers(choice), architecture.max_registers_per_thread)
    return occupancy(
        architecture,
        threads=choice.threads,
        registers=registers_per_thread,
        smem_bytes=smem_bytes(choice),
        smem_per_sm_bytes=smem_per_sm_bytes,
    )


def bank_conflicts(choice: TileChoice) -> Mapping[Pattern, Conflicts | None]:
    """Every access pattern's conflicts; None where the layout or the access is impossible."""
    return {pattern: pattern.conflicts(choice.tile(pattern.row)) for pattern in PATTERNS}
