"""Ranking tile choices by what bounds a block's work on one SM.

For one step over ``block_kv`` keys, the tensor cores need 4 · block_q · block_kv · d FLOPs at the SM's rate, and shared
memory, at 128 bytes a clock, must deliver the fragments: each warp reads all of K and all of V, and its own rows of Q
again; and the next K and V are written. Conflicts multiply a read's bytes by their degree. The order is:

1. at least two warps for each of an SM's four schedulers, so that one's softmax overlaps another's products;
2. the share of the tensor rate that shared memory allows, at most 1, in steps of 10 %;
3. at least two stages, so that the next K and V arrive during a step;
4. at least two blocks an SM: warps of one block meet at its barriers, those of another do not wait there;
5. more work between two barriers, block_q · block_kv; 6. less shared memory.

It is a rule to choose what to measure first, not a prediction of time. It leaves out what the tile hardly changes
(exponentials, HBM traffic) and how a grid ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from attnprof.model.architectures import Architecture
from attnprof.model.banks import WAVEFRONT_BYTES
from attnprof.model.dtypes import Dtype
from attnprof.model.layouts import Layout
from attnprof.model.occupancy import Occupancy
from attnprof.model.patterns import pattern
from attnprof.model.tiles import MAX_WARPS, MMA_ROWS, TileChoice, registers, smem_bytes, tile_occupancy

BLOCKS_Q = (16, 32, 64, 96, 128, 192, 256)
BLOCKS_KV = (16, 32, 48, 64, 80, 96, 128, 176, 192, 256)
STAGES = (1, 2, 3, 4)
WARPS = (1, 2, 3, 4, 6, 8, 12, 16)
# Warps that four schedulers need so that each has one to run while another waits.
WARPS_TO_OVERLAP = 8


@dataclass(frozen=True, slots=True)
class RankedTile:
    """A tile that fits, and what it is ranked by.

    Attributes:
        choice: the tile.
        smem_bytes: its shared memory.
        registers: estimated registers a thread.
        occupancy: what an SM holds of it.
        flops_per_smem_byte: matrix FLOPs a byte that shared memory must move, conflicts counted.
        tensor_share: the share of the tensor rate that shared memory allows, 0 … 1; None where the rate is unknown.
        overlaps: whether an SM holds at least eight warps of it.
    """

    choice: TileChoice
    smem_bytes: int
    registers: int
    occupancy: Occupancy
    flops_per_smem_byte: float
    tensor_share: float | None
    overlaps: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """All tiles that fit, best first, and how many were tried."""

    tried: int
    ranked: tuple[RankedTile, ...]


def sharing_warps(block_q: int) -> tuple[int, ...]:
    """Every number of warps that can share a block of queries; `WARPS` alone would leave out the 5 of 80 queries."""
    return tuple(warps for warps in range(1, MAX_WARPS + 1) if block_q % (MMA_ROWS * warps) == 0)


def flops_per_smem_byte(choice: TileChoice) -> float:
    """Matrix FLOPs a byte of shared-memory traffic, where conflicts count as the bytes that could have moved."""
    flops = 4 * choice.block_q * choice.block_kv * choice.head_dim
    row = choice.head_dim * choice.dtype.itemsize
    kv = choice.block_kv * row
    traffic = (
        choice.block_q * row * _degree(choice, "q_load")
        + choice.warps * kv * (_degree(choice, "k_load") + _degree(choice, "v_load"))
        + 2 * kv * _degree(choice, "tile_store")
    )
    if choice.p_in_smem:
        p = choice.block_q * choice.block_kv * choice.dtype.itemsize
        traffic += p * (_degree(choice, "p_store") + _degree(choice, "p_load"))
    return flops / traffic


def sweep(
    architecture: Architecture,
    *,
    head_dim: int,
    dtype: Dtype,
    layout: Layout,
    pad: int,
    p_in_smem: bool = False,
    blocks_q: Sequence[int] = BLOCKS_Q,
    blocks_kv: Sequence[int] = BLOCKS_KV,
    stages: Sequence[int] = STAGES,
    warps: Sequence[int] = WARPS,
    half_tensor_rate: bool | None = False,
    smem_per_sm_bytes: int | None = None,
) -> Sweep:
    """Every tile of a grid that an SM holds without spilling, best first.

    Raises:
        UsageError: a value of the grid that no tile can have.
    """
    rate = architecture.tensor_rate(dtype, half=half_tensor_rate)
    tried = 0
    ranked: list[RankedTile] = []
    for block_q, block_kv, stage, warp in product(blocks_q, blocks_kv, stages, warps):
        if block_q % (MMA_ROWS * warp):
            continue
        tried += 1
        choice = TileChoice(head_dim, block_q, block_kv, stage, warp, dtype, layout, pad, p_in_smem)
        if choice.misfit() or registers(choice) > architecture.max_registers_per_thread:
            continue
        found = tile_occupancy(choice, architecture, smem_per_sm_bytes=smem_per_sm_bytes)
        if not found.blocks_per_sm:
            continue
        intensity = flops_per_smem_byte(choice)
        share = None if rate is None else min(1.0, intensity * WAVEFRONT_BYTES / rate)
        overlaps = found.warps_per_sm >= WARPS_TO_OVERLAP
        ranked.append(RankedTile(choice, smem_bytes(choice), registers(choice), found, intensity, share, overlaps))
    return Sweep(tried, tuple(sorted(ranked, key=_rank)))


def _rank(tile: RankedTile) -> tuple[float, ...]:
    # Without a tensor rate the intensity itself: only the order matters.
    share = tile.flops_per_smem_byte if tile.tensor_share is None else tile.tensor_share
    return (
        -tile.overlaps,
        -round(share * 10),
        -min(tile.choice.stages, 2),
        -min(tile.occupancy.blocks_per_sm, 2),
        -tile.choice.block_q * tile.choice.block_kv,
        tile.smem_bytes,
        tile.choice.warps,
        tile.choice.block_q,
    )


def _degree(choice: TileChoice, name: str) -> float:
    each = pattern(name)
    found = each.conflicts(choice.tile(each.row))
    return 1.0 if found is None else found.degree
