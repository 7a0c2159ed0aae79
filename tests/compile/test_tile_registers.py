"""The estimate of a tile's registers, against what the compiler takes when it may have all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnprof.compiler import Compiler
from attnprof.kernels.ladder.fa2 import Tiles
from attnprof.model.dtypes import Dtype
from attnprof.model.tiles import TileChoice, registers

TILES = (
    Tiles(64, 128, 64, 4, 2),
    Tiles(64, 64, 32, 4, 1),
    Tiles(64, 64, 128, 4, 2),
    Tiles(128, 64, 64, 4, 2),
    Tiles(128, 128, 64, 4, 2),
    Tiles(128, 128, 128, 8, 2),
)


@pytest.mark.parametrize("tiles", TILES, ids=lambda t: f"{t.head_dim}-{t.block_q}x{t.block_kv}-{t.warps}w")
def test_the_estimate_is_what_a_tile_needs(tiles: Tiles, compiler: Compiler) -> None:
    build = replace(tiles, blocks_per_sm=1).build(Dtype.FP16, causal=False)
    found = compiler.compile(build, "sm_80").resources["fa2_forward"]
    estimate = registers(TileChoice(tiles.head_dim, tiles.block_q, tiles.block_kv, tiles.kv_stages, tiles.warps))
    assert estimate <= 255
    assert estimate <= found.registers <= estimate + 40
    # At the very limit a few registers make the difference, one way or the other.
    assert found.spill_store_bytes <= (32 if estimate > 240 else 0)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("cache"))
