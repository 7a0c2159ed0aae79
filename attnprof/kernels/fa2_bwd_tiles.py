"""Tile choices of ``fa2-bwd``: what a choice is, the built-in ones by architecture, and the candidates for tuning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnprof.kernels.attention import built_in, element_build, fitting, has_little_smem
from attnprof.kernels.plan import Build
from attnprof.kernels.sources import kernels_dir
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype

FILE = kernels_dir() / "fa2_bwd.cu"


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

    @classmethod
    def of(cls, head_dim: int, label: str) -> Tiles:
        """The choice of a `label` at a head dim.

        Raises:
            ValueError: no label of this kernel.
        """
        match = re.fullmatch(r"(\d+)x(\d+) (\d+)x(\d+)w (\d+)dq (\d)st (\d)ds (\d+)b", label)
        if match is None:
            raise ValueError(f"{label!r} names no tiles of fa2-bwd")
        return cls(head_dim, *map(int, match.groups()))

    @property
    def label(self) -> str:
        """``64x128 4x2w 2dq 2st 2ds 1b``: the attributes in their order."""
        tile, warps = f"{self.block_q}x{self.block_kv}", f"{self.warps_kv}x{self.warps_q}w {self.dq_warps_q}dq"
        return f"{tile} {warps} {self.q_stages}st {self.ds_stages}ds {self.blocks_per_sm}b"

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


def _tiles(head_dim: int, *labels: str) -> tuple[Tiles, ...]:
    return tuple(Tiles.of(head_dim, label) for label in labels)


# The built-in choice of each head dim, by the columns of `attnprof.kernels.attention.built_in`: sm_90, sm_100, sm_80,
# and sm_86, sm_89 and sm_120. The first was measured, on an H200; the others are reasoned: the nearest choice that fits
# the shared memory of an SM as often as it asks, and that has registers to spare, so that no version of NVRTC spills.
# That decides on sm_80 at head dim 128, where `2st 1ds` spills under NVRTC 13.0, and on sm_100 at 256, where the choice
# of sm_90 spills under NVRTC 12.9 and 13.1 to 13.4: with 32 queries a warp's dQ takes 32 registers less.
DEFAULTS: Mapping[int, tuple[Tiles, ...]] = {
    64: _tiles(64, *3 * ("32x128 4x1w 2dq 2st 2ds 2b",), "32x128 4x1w 2dq 1st 1ds 2b"),
    128: _tiles(
        *(128, "64x128 4x2w 2dq 2st 2ds 1b", "64x128 4x2w 2dq 2st 2ds 1b"),
        *("64x128 4x2w 2dq 1st 2ds 1b", "64x64 2x2w 2dq 1st 1ds 1b"),
    ),
    256: _tiles(
        *(256, "64x64 2x4w 2dq 2st 2ds 1b", "32x64 4x2w 2dq 2st 2ds 1b"),
        *("64x64 2x4w 2dq 1st 1ds 1b", "32x32 2x2w 2dq 1st 1ds 1b"),
    ),
}

# What tuning tries beside the built-in choice: more or fewer keys a block, warps that share keys or do not, dQ split by
# rows or columns, one stage or two, two blocks an SM or one.
CANDIDATES: Mapping[int, tuple[Tiles, ...]] = {
    64: _tiles(
        *(64, "32x128 4x1w 2dq 2st 2ds 2b", "32x128 4x1w 2dq 2st 1ds 2b", "32x128 4x1w 2dq 1st 1ds 2b"),
        *("32x128 4x1w 1dq 2st 2ds 2b", "64x128 4x2w 2dq 2st 2ds 1b"),
        *("64x64 4x1w 2dq 2st 2ds 2b", "64x64 2x2w 2dq 2st 2ds 2b", "64x128 8x1w 4dq 2st 2ds 1b"),
    ),
    128: _tiles(
        *(128, "64x128 4x2w 2dq 2st 2ds 1b", "64x128 4x2w 2dq 2st 1ds 1b", "64x128 4x2w 2dq 1st 2ds 1b"),
        *("64x128 4x2w 4dq 2st 2ds 1b", "64x128 8x1w 2dq 2st 2ds 1b", "32x128 4x2w 2dq 2st 2ds 1b"),
        *("64x64 2x2w 2dq 1st 1ds 2b", "64x64 2x2w 2dq 1st 1ds 1b", "32x64 2x2w 2dq 2st 2ds 2b"),
    ),
    256: _tiles(
        *(256, "64x64 2x4w 2dq 2st 2ds 1b", "64x64 2x4w 2dq 2st 1ds 1b", "64x64 2x4w 2dq 1st 1ds 1b"),
        *("64x64 2x4w 4dq 2st 2ds 1b", "64x64 4x2w 2dq 2st 2ds 1b", "32x64 4x2w 2dq 2st 2ds 1b"),
        *("32x64 4x2w 1dq 1st 1ds 1b", "32x32 2x2w 2dq 1st 1ds 1b", "32x32 2x2w 2dq 1st 1ds 2b"),
    ),
}

# And where an SM has 100 KiB, for which most of the above are too large.
SMALL_CANDIDATES: Mapping[int, tuple[Tiles, ...]] = {
    64: _tiles(64, "32x64 2x1w 2dq 2st 2ds 2b", "64x64 4x1w 2dq 1st 1ds 2b", "64x128 4x2w 2dq 1st 1ds 1b"),
    128: _tiles(
        *(128, "32x64 2x2w 2dq 2st 2ds 1b", "64x64 4x1w 2dq 1st 1ds 1b", "64x64 4x1w 2dq 1st 2ds 1b"),
        *("32x64 4x1w 2dq 2st 2ds 1b", "32x32 2x1w 2dq 1st 1ds 2b"),
    ),
    256: _tiles(256, "32x32 2x2w 2dq 1st 2ds 1b", "32x32 2x2w 1dq 1st 1ds 1b", "32x32 2x2w 2dq 1st 1ds 1b"),
}


def width_of(head_dim: int) -> int:
    """The head dim of the tiles that hold one."""
    return min(compiled for compiled in DEFAULTS if compiled >= head_dim)


def tiles_for(head_dim: int, device: DeviceSpec) -> Tiles:
    """The built-in choice for a head dim, that of the next one of `DEFAULTS`, on a device."""
    return built_in(DEFAULTS[width_of(head_dim)], device)


def candidates_for(head_dim: int, device: DeviceSpec) -> Sequence[Tiles]:
    """What to try for a head dim on a device: the choices that fit its shared memory. Registers are the compiler's."""
    width = width_of(head_dim)
    return fitting(CANDIDATES[width] + (SMALL_CANDIDATES[width] if has_little_smem(device) else ()), device)
