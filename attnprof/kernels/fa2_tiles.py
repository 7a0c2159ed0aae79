"""Tile choices of ``fa2``: what a choice is, the built-in ones by architecture, and the candidates for tuning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnprof.kernels.attention import built_in, element_build, fitting, has_little_smem
from attnprof.kernels.plan import Build
from attnprof.kernels.sources import kernels_dir
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload

FILE = kernels_dir() / "fa2.cu"

# How tiles lie in shared memory; the last two are traps, and a second cure, of `attnprof.kernels.fa2_variants`.
TileLayout = Literal["swizzle", "plain", "pad"]
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
        q_in_registers: whether the fragments of Q stay in registers (head_dim / 4 of them a 16-row product) or are read
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
    layout: TileLayout = "swizzle"

    @classmethod
    def of(cls, head_dim: int, label: str) -> Tiles:
        """The choice of a `label` at a width.

        Raises:
            ValueError: no label of this kernel.
        """
        match = re.fullmatch(r"(\d+)x(\d+) (\d+)w (\d)st( qreg)? (\d+)b", label)
        if match is None:
            raise ValueError(f"{label!r} names no tiles of fa2")
        block_q, block_kv, warps, stages, blocks = (int(match[group]) for group in (1, 2, 3, 4, 6))
        return cls(head_dim, block_q, block_kv, warps, stages, match[5] is not None, blocks)

    @property
    def label(self) -> str:
        """``128x64 4w 2st 2b``: queries x keys, warps, stages, blocks an SM; ``qreg`` where Q stays in registers."""
        q = " qreg" if self.q_in_registers else ""
        return f"{self.block_q}x{self.block_kv} {self.warps}w {self.kv_stages}st{q} {self.blocks_per_sm}b"

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


def _tiles(width: int, *labels: str) -> tuple[Tiles, ...]:
    return tuple(Tiles.of(width, label) for label in labels)


# The built-in choice of each width, by the columns of `attnprof.kernels.attention.built_in`. Of the first those for 64
# and 128 were measured on an H200 (docs/ladder/fa2.md); the others are reasoned: the nearest choice that fits the
# shared memory of an SM as often as it asks and does not spill. Two blocks should share an SM, so that one's softmax
# overlaps the other's products; from 192 on O fills so many registers that a warp has 16 rows, and one block of 8 warps
# an SM was faster than two of 4. On sm_100 64 keys at 128 take every register, and it depends on the version of
# NVRTC what spills; 48 leave a dozen.
_Q128 = "128x64 4w 2st 2b"
DEFAULTS: Mapping[int, tuple[Tiles, ...]] = {
    # ---------- sm_90 ------------- sm_100 ------------------ sm_80 ------------------- sm_86, sm_89, sm_120 --------
    32: _tiles(32, _Q128, _Q128, _Q128, _Q128),
    64: _tiles(64, "128x128 4w 2st 2b", _Q128, _Q128, _Q128),
    96: _tiles(96, _Q128, _Q128, _Q128, "128x32 4w 2st 2b"),
    128: _tiles(128, _Q128, "128x48 4w 2st 2b", "128x32 4w 2st 2b", "128x32 4w 1st 2b"),
    192: _tiles(192, *3 * ("128x64 8w 2st qreg 1b",), "128x32 8w 2st qreg 1b"),
    256: _tiles(256, "128x64 8w 2st 1b", "128x64 8w 2st 1b", "128x48 8w 2st qreg 1b", "128x32 8w 1st 1b"),
}
# Widths that have a variant of their own for contiguous tensors of that head dim; the others run the strided one.
EXACT = (64, 128, 256)
# On sm_90 ptxas fits Q into the registers beside O without a spill, of the contiguous variant only: on an H200 4 to
# 11 % faster than the strided one's choice. Under a causal mask short heads have too few blocks of 128 rows to balance
# their lengths: at 1024 smaller ones were 6 % faster, at 4096 2 % slower.
SM_90_D256 = Tiles.of(256, "128x48 8w 2st qreg 1b")
SM_90_D256_SHORT_CAUSAL = Tiles.of(256, "64x32 4w 2st qreg 2b")
SHORT = 1024

# What tuning tries beside the built-in choice: other blocks of keys (a longer one saves barriers, a shorter one leaves
# registers and wastes less on the diagonal), one stage or two, smaller blocks of queries for short or masked rows,
# larger ones that share K and V.
CANDIDATES: Mapping[int, tuple[Tiles, ...]] = {
    32: _tiles(
        *(32, _Q128, "128x128 4w 2st 2b", "128x128 4w 1st 2b", "128x64 4w 2st 3b", "128x64 4w 2st qreg 3b"),
        *("64x64 4w 2st 4b", "64x128 4w 2st 3b", "256x64 8w 2st 1b"),
    ),
    64: _tiles(
        *(64, _Q128, "128x128 4w 2st 2b", "128x128 4w 1st 2b", "128x96 4w 2st 2b", "128x32 4w 2st 2b"),
        *("128x64 4w 1st 2b", "128x64 4w 2st qreg 2b", "128x64 8w 2st 2b", "64x64 4w 2st 4b", "64x64 4w 2st qreg 3b"),
        *("64x128 4w 2st 3b", "192x48 4w 2st 2b", "256x64 8w 2st 1b"),
    ),
    96: _tiles(
        *(96, _Q128, "128x96 4w 2st 2b", "128x96 4w 1st 2b", "128x64 4w 1st 2b", "128x32 4w 2st 2b"),
        *("128x64 8w 2st 1b", "64x64 4w 2st 3b", "64x96 4w 1st 3b", "64x32 4w 2st 3b", "256x64 8w 2st 1b"),
    ),
    128: _tiles(
        *(128, _Q128, "128x64 4w 1st 2b", "128x80 4w 2st 2b", "128x80 4w 1st 2b", "128x48 4w 2st 2b"),
        *("128x32 4w 2st 2b", "128x32 4w 1st 2b", "128x128 8w 2st 1b", "128x128 8w 1st 1b", "128x64 8w 2st qreg 1b"),
        *("64x64 4w 2st 2b", "64x64 4w 1st 3b", "64x128 4w 1st 2b", "64x32 4w 2st 3b", "256x64 8w 2st 1b"),
    ),
    192: _tiles(
        *(192, "128x64 8w 2st qreg 1b", "128x64 8w 2st 1b", "128x96 8w 1st 1b", "128x128 8w 1st 1b"),
        *("128x32 8w 2st qreg 1b", "128x64 8w 1st qreg 1b", "64x64 4w 1st 2b", "64x96 4w 1st 2b", "64x32 4w 2st 2b"),
    ),
    256: _tiles(
        *(256, "128x64 8w 2st 1b", "128x64 8w 1st 1b", "128x96 8w 1st 1b", "128x112 8w 1st 1b", "128x128 8w 1st 1b"),
        *("128x48 8w 2st qreg 1b", "128x32 8w 2st qreg 1b", "128x32 8w 1st 1b", "64x64 4w 1st 2b", "64x80 4w 1st 2b"),
        *("64x48 4w 1st 2b", "64x48 4w 1st qreg 2b", "64x32 4w 2st 2b", "64x32 4w 2st qreg 2b"),
    ),
}

# And where an SM has 100 KiB, for which most of the above are too large.
SMALL_CANDIDATES: Mapping[int, tuple[Tiles, ...]] = {
    32: (),
    64: _tiles(64, "64x64 4w 1st 3b", "64x32 4w 2st 4b"),
    96: _tiles(96, "64x32 4w 1st 4b", "64x64 4w 1st 2b"),
    128: _tiles(128, "128x16 4w 2st 2b", "64x64 4w 1st 2b", "64x32 4w 2st 2b", "64x32 4w 1st 3b", "128x64 8w 2st 1b"),
    192: _tiles(192, "64x32 4w 1st 2b", "64x64 4w 1st 1b", "128x32 8w 2st 1b"),
    256: _tiles(
        256, "128x16 8w 2st 1b", "64x64 4w 1st 1b", "64x32 4w 2st 1b", "64x48 4w 1st qreg 1b", "32x32 2w 1st 2b"
    ),
}


def width_of(head_dim: int) -> int:
    """The narrowest tiles that hold a head dim."""
    return next(width for width in DEFAULTS if width >= head_dim)


def tiles_for(
    head_dim: int,
    device: DeviceSpec,
    layout: TileLayout = "swizzle",
    *,
    strided: bool | None = None,
    short_causal: bool = False,
) -> Tiles:
    """The built-in choice for a head dim up to the largest of `DEFAULTS`, on a device.

    Args:
        head_dim: the head dim.
        device: the device.
        layout: how tiles lie in shared memory.
        strided: whether the strided variant runs; None where the head dim decides.
        short_causal: whether the mask is causal and there are no more queries and keys than `SHORT`.
    """
    strided = head_dim not in EXACT if strided is None else strided
    hopper = device.compute_capability == (9, 0) and layout == "swizzle"
    if head_dim == SM_90_D256.head_dim and hopper and not strided:
        return SM_90_D256_SHORT_CAUSAL if short_causal else SM_90_D256
    return built_in([replace(tiles, layout=layout) for tiles in DEFAULTS[width_of(head_dim)]], device)


def tiles_of(workload: Workload, device: DeviceSpec, *, strided: bool = False) -> Tiles:
    """The built-in choice for a workload that is supported; ``strided``: even for a head dim of `EXACT`."""
    return tiles_for(
        workload.head_dim,
        device,
        strided=strided or workload.head_dim not in EXACT,
        short_causal=workload.causal and max(workload.seq_q, workload.seq_kv) <= SHORT,
    )


def candidates_for(head_dim: int, device: DeviceSpec) -> Sequence[Tiles]:
    """What to try for a head dim on a device: the choices that fit its shared memory. Registers are the compiler's."""
    width = width_of(head_dim)
    return fitting(CANDIDATES[width] + (SMALL_CANDIDATES[width] if has_little_smem(device) else ()), device)
