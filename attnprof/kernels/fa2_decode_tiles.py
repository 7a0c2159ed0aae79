"""Tile choices of ``fa2-decode``: what a choice is, its shapes, how they fit a device, and what tuning tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnprof.kernels.attention import RESERVED_SMEM_BYTES, element_build
from attnprof.kernels.plan import Build
from attnprof.kernels.sources import kernels_dir
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype

FILE = kernels_dir() / "fa2_decode.cu"

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
    def label(self) -> str:
        """``16r 1x8w 32k 3st qreg 1b``: rows, row and key warps, keys a step, stages, Q in registers, blocks an SM."""
        q = " qreg" if self.q_in_registers else ""
        warps = f"{self.row_warps}x{self.key_warps}w"
        return f"{self.rows}r {warps} {self.step_keys}k {self.stages}st{q} {self.blocks_per_sm}b"

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


def alternatives(shape: Tiles) -> tuple[Tiles, ...]:
    """What tuning tries beside a shape: half or twice the keys a step, half the teams on twice the blocks, and Q kept
    elsewhere. The rows stay, for they are those of the workload.
    """
    others = [replace(shape, q_in_registers=not shape.q_in_registers)]
    if shape.step_keys > 16:
        others.append(replace(shape, step_keys=shape.step_keys // 2))
    others.append(replace(shape, step_keys=2 * shape.step_keys))
    if shape.key_warps > 1:
        halved = replace(shape, key_warps=shape.key_warps // 2, blocks_per_sm=2 * shape.blocks_per_sm)
        others += [halved, replace(halved, step_keys=2 * shape.step_keys)]
    if shape.blocks_per_sm > 1:
        others.append(replace(shape, key_warps=2 * shape.key_warps, blocks_per_sm=shape.blocks_per_sm // 2))
    return tuple(others)


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
