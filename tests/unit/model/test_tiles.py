"""Layouts, access patterns, and what a tile takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.kernels.fa2_tiles import CANDIDATES, Tiles, tiles_for
from attnprof.model.architectures import architecture
from attnprof.model.devices import find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UsageError
from attnprof.model.layouts import Layout, Tile
from attnprof.model.patterns import PATTERNS, pattern
from attnprof.model.tile_sweep import flops_per_smem_byte, sharing_warps, sweep
from attnprof.model.tiles import (
    TileChoice,
    default_warps,
    register_parts,
    registers,
    smem_bytes,
    smem_parts,
    tile_occupancy,
)


@given(
    row_bytes=st.sampled_from([16, 32, 64, 128, 256, 512]),
    layout=st.sampled_from(list(Layout)),
    rows=st.integers(1, 40),
)
def test_every_byte_of_a_tile_has_a_place_of_its_own(row_bytes: int, layout: Layout, rows: int) -> None:
    tile = Tile(row_bytes, layout)
    places = {tile.address(row, byte) for row in range(rows) for byte in range(0, row_bytes, 2)}
    assert len(places) == rows * row_bytes // 2
    # The last line of a swizzle is whole only if rows fill it.
    whole = -(-rows * row_bytes // 128) * 128 if layout is Layout.SWIZZLE else tile.nbytes(rows)
    assert max(places) < whole


@given(row=st.integers(0, 63), chunk=st.integers(0, 15), chunks=st.sampled_from([4, 8, 16]))
def test_the_swizzle_is_that_of_the_kernels(row: int, chunk: int, chunks: int) -> None:
    """kernels_cu/common/tile.cuh: (row * chunks + (chunk ^ (row / rows_per_line % columns))) * 16."""
    chunk %= chunks
    rows_per_line, columns = (8 // chunks, chunks) if chunks < 8 else (1, 8)
    expected = (row * chunks + (chunk ^ (row // rows_per_line % columns))) * 16
    assert Tile(chunks * 16, Layout.SWIZZLE).address(row, chunk * 16) == expected


@pytest.mark.parametrize("row_bytes", [16, 32, 64, 128, 256])
def test_the_swizzle_frees_whatever_goes_through_ldmatrix(row_bytes: int) -> None:
    for each in PATTERNS:
        if "ldmatrix" in each.instruction:
            found = each.conflicts(Tile(row_bytes, Layout.SWIZZLE))
            # Rows of 16 bytes have no second chunk: what a pattern calls so lies in the next row.
            assert found is not None
            assert found.degree == 1 or row_bytes == 16


def test_rows_that_no_swizzle_fits() -> None:
    assert "not 160" in (Tile(160, Layout.SWIZZLE).misfit() or "")
    assert Tile(160, Layout.PAD).misfit() is None
    assert pattern("k_load").conflicts(Tile(160, Layout.SWIZZLE)) is None


def test_padding_that_breaks_alignment_rules_an_access_out() -> None:
    tile = Tile(128, Layout.PAD, 4)
    assert "16 bytes" in (pattern("k_load").alignment(tile) or "")
    assert pattern("k_load").conflicts(tile) is None
    assert pattern("column_read").alignment(tile) is None


def test_the_cure_of_the_article_and_where_it_holds() -> None:
    cures = {each.name: each.conflict_free_pad(128) for each in PATTERNS}
    assert cures["k_load"] == cures["v_load"] == cures["column_chunks"] == cures["o_store"] == 8
    assert (cures["column_read"], cures["v_fragment"], cures["tile_store"]) == (2, 4, 0)
    plain, padded = Tile(128, Layout.PLAIN), Tile(128, Layout.PAD, 16)
    wavefronts = {
        name: [found.wavefronts for tile in (plain, padded) if (found := pattern(name).conflicts(tile)) is not None]
        for name in ("column_chunks", "column_read", "v_fragment")
    }
    assert wavefronts == {"column_chunks": [32, 4], "column_read": [32, 4], "v_fragment": [4, 1]}


def test_the_example_of_the_design() -> None:
    choice = TileChoice(128, 64, 64)
    assert smem_bytes(choice) == 49_152
    assert smem_parts(TileChoice(128, 64, 64, p_in_smem=True))["p"] == 8_192
    assert smem_bytes(TileChoice(128, 64, 64, layout=Layout.PAD)) == 3 * 64 * 136 * 2


@pytest.mark.parametrize("choice", [tiles for choices in CANDIDATES.values() for tiles in choices])
def test_the_shared_memory_of_fa2(choice: Tiles) -> None:
    same = TileChoice(choice.head_dim, choice.block_q, choice.block_kv, choice.kv_stages, choice.warps)
    assert smem_bytes(same) == choice.smem_bytes
    assert same.threads == choice.threads


def test_registers_add_up() -> None:
    # A warp of 32 rows holds 32 x 128 and 32 x 64 in fp32: 192 a lane.
    parts = register_parts(TileChoice(128, 128, 64, warps=4))
    assert parts == {"o": 128, "s": 64, "fragments": 20, "statistics": 8, "other": 32}
    assert registers(TileChoice(128, 128, 64, warps=4)) == sum(parts.values()) == 252


def test_registers_beyond_a_thread_are_cut_for_occupancy() -> None:
    facts = architecture((9, 0))
    assert facts is not None
    choice = TileChoice(128, 256, 128, warps=4)
    assert registers(choice) > 255
    # 255 registers take 256: two warps a sub-partition, eight an SM.
    assert tile_occupancy(choice, facts).blocks_by["registers"] == 2
    assert tile_occupancy(choice, facts, registers_per_thread=128).blocks_by["registers"] == 4


@pytest.mark.parametrize(
    ("block_q", "warps"),
    [
        (16, 1), (32, 2), (48, 3), (64, 4), (80, 5), (96, 3), (112, 7), (128, 4), (144, 9), (160, 5), (192, 4),
        # 37 slices of 16 rows: a block has no 37 warps.
        (224, 7), (592, 1),
    ],
)  # fmt: skip
def test_default_warps_share_evenly(block_q: int, warps: int) -> None:
    assert default_warps(block_q) == warps
    TileChoice(64, block_q, 64, warps=warps)


@pytest.mark.parametrize("block_q", range(16, 192, 16))
def test_default_warps_do_not_spill(block_q: int) -> None:
    assert registers(TileChoice(128, block_q, 64, warps=default_warps(block_q))) <= 255


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 63}, {"head_dim": 0}, {"block_q": 40}, {"block_kv": -16}, {"warps": 0}, {"warps": 3},
        {"stages": 0}, {"pad": 0}, {"dtype": Dtype.FP32},
    ],
)  # fmt: skip
def test_tiles_that_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TileChoice(**{"head_dim": 64, "block_q": 64, "block_kv": 64, **changes})  # type: ignore[arg-type]


def test_the_sweep_ranks_the_tuned_tile_of_fa2_first_on_an_h200() -> None:
    """Not fitted to it: fa2's tile for d 128 was found by measuring."""
    device = find("H200")
    best = sweep(device.architecture, head_dim=128, dtype=Dtype.FP16, layout=Layout.SWIZZLE, pad=8).ranked[0].choice
    tuned = tiles_for(128, device)
    assert (best.block_q, best.block_kv, best.stages, best.warps) == (
        tuned.block_q, tuned.block_kv, tuned.kv_stages, tuned.warps,
    )  # fmt: skip


@pytest.mark.parametrize("name", [device.name for device in table()])
def test_what_the_sweep_ranks_fits(name: str) -> None:
    device = find(name)
    facts = device.architecture
    assert facts is not None
    found = sweep(facts, head_dim=64, dtype=Dtype.FP16, layout=Layout.SWIZZLE, pad=8)
    assert 0 < len(found.ranked) < found.tried
    for each in found.ranked:
        assert each.occupancy.blocks_per_sm >= 1
        assert each.registers <= 255
        assert each.smem_bytes <= facts.smem_per_block_bytes
        assert each.tensor_share is None or 0 < each.tensor_share <= 1
    assert found.ranked[0].overlaps


def test_the_grid_has_warps_for_each_of_its_blocks() -> None:
    """96 and 192 queries at 3 and 6 warps of 32 rows, which 2, 4 or 12 warps cannot replace."""
    device = find("H200")
    assert device.architecture is not None
    ranked = sweep(device.architecture, head_dim=128, dtype=Dtype.FP16, layout=Layout.SWIZZLE, pad=8).ranked
    found = {(each.choice.block_q, each.choice.warps) for each in ranked}
    assert {(96, 3), (96, 6), (192, 6)} <= found


def test_warps_that_can_share_a_block() -> None:
    assert sharing_warps(16) == (1,)
    assert sharing_warps(80) == (1, 5)
    assert sharing_warps(192) == (1, 2, 3, 4, 6, 12)
    # A block has at most 32 warps.
    assert sharing_warps(1024) == (1, 2, 4, 8, 16, 32)


def test_conflicts_lower_the_intensity() -> None:
    plain, swizzled = (TileChoice(128, 128, 64, layout=layout) for layout in (Layout.PLAIN, Layout.SWIZZLE))
    assert flops_per_smem_byte(plain) < flops_per_smem_byte(swizzled) / 4
    # By hand: 4 · 128 · 64 · 128 FLOPs over Q 32 KiB + 4 warps · (K 16 + V 16 KiB) + the next K and V, 32 KiB.
    assert flops_per_smem_byte(swizzled) == 4 * 128 * 64 * 128 / (192 * 1024)
    through = TileChoice(128, 128, 64, p_in_smem=True)
    assert flops_per_smem_byte(through) < flops_per_smem_byte(swizzled)
