"""Blocks per SM, and what limits them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.architectures import Architecture, architecture, known_architectures
from attnprof.model.errors import UsageError
from attnprof.model.occupancy import occupancy


def sm(major: int, minor: int) -> Architecture:
    found = architecture((major, minor))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "smem_bytes", "blocks", "limited_by"),
    [
        # 227 KiB and the reserved 1 KiB fill the SM.
        ((9, 0), 128, 32, 227 * 1024, 1, ("shared-memory",)),
        # (163 + 1) KiB fill an A100; (81 + 1) KiB fit twice, 82 KiB do not.
        ((8, 0), 128, 32, 81 * 1024, 2, ("shared-memory",)),
        ((8, 0), 128, 32, 82 * 1024, 1, ("shared-memory",)),
        # No reservation before sm_80: 32 KiB fit twice in 64.
        ((7, 5), 128, 32, 32 * 1024, 2, ("shared-memory",)),
        # 168 registers x 32 = 5376 a warp; 16384 // 5376 = 3 warps a sub-partition, 12 an SM, 3 blocks of 4.
        ((8, 0), 128, 168, 0, 3, ("registers",)),
        # 6 warps do not divide the 12 evenly over sub-partitions: 12 // 6.
        ((8, 0), 192, 168, 0, 2, ("registers",)),
        # 33 registers take the space of 40: 33 x 32 = 1056, rounded up to 1280 a warp; 12 warps a sub-partition.
        ((8, 0), 256, 33, 0, 6, ("registers",)),
        ((8, 0), 1024, 32, 0, 2, ("threads", "registers")),
        ((8, 6), 1024, 32, 0, 1, ("threads",)),
        ((8, 6), 32, 16, 0, 16, ("blocks",)),
        ((8, 9), 64, 16, 0, 24, ("threads", "blocks")),
        ((9, 0), 64, 32, 0, 32, ("threads", "registers", "blocks")),
    ],
)
def test_known_occupancies(
    arch: tuple[int, int], threads: int, registers: int, smem_bytes: int, blocks: int, limited_by: tuple[str, ...]
) -> None:
    found = occupancy(sm(*arch), threads=threads, registers=registers, smem_bytes=smem_bytes)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, limited_by)


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "limited_by"),
    [
        (512, 162, 0, ("registers",)),  # 162 registers take 168: 16 warps x 5376 > 65536
        (128, 256, 0, ("registers",)),
        (1025, 32, 0, ("threads",)),
        (128, 32, 227 * 1024 + 1, ("shared-memory",)),
    ],
)
def test_a_block_that_does_not_fit(threads: int, registers: int, smem_bytes: int, limited_by: tuple[str, ...]) -> None:
    found = occupancy(sm(9, 0), threads=threads, registers=registers, smem_bytes=smem_bytes)
    assert (found.blocks_per_sm, found.occupancy, found.limited_by) == (0, 0.0, limited_by)


@given(
    arch=st.sampled_from(known_architectures()),
    threads=st.integers(1, 1100),
    registers=st.integers(0, 260),
    smem_bytes=st.integers(0, 240 * 1024),
)
def test_resident_blocks_fit_and_one_more_does_not(
    arch: Architecture, threads: int, registers: int, smem_bytes: int
) -> None:
    found = occupancy(arch, threads=threads, registers=registers, smem_bytes=smem_bytes)
    n, warps = found.blocks_per_sm, -(-threads // 32)
    assert 0 <= found.occupancy <= 1
    assert found.warps_per_sm == n * warps <= arch.max_warps_per_sm
    assert n * warps * registers * 32 <= arch.registers_per_sm
    assert n * (smem_bytes + arch.smem_reserved_bytes) <= arch.smem_per_sm_bytes or n == 0
    assert found.limited_by
    for limit, allowed in found.blocks_by.items():
        assert (allowed == n) == (limit in found.limited_by)


@given(threads=st.integers(1, 1024), registers=st.integers(16, 255), smem_bytes=st.integers(0, 99 * 1024))
def test_asking_for_more_never_raises_occupancy(threads: int, registers: int, smem_bytes: int) -> None:
    arch = sm(8, 9)
    now = occupancy(arch, threads=threads, registers=registers, smem_bytes=smem_bytes).blocks_per_sm
    assert occupancy(arch, threads=threads + 32, registers=registers, smem_bytes=smem_bytes).blocks_per_sm <= now
    assert occupancy(arch, threads=threads, registers=registers + 8, smem_bytes=smem_bytes).blocks_per_sm <= now
    assert occupancy(arch, threads=threads, registers=registers, smem_bytes=smem_bytes + 512).blocks_per_sm <= now


def test_the_device_may_report_another_sm() -> None:
    arch = sm(12, 1)
    found = occupancy(arch, threads=128, registers=32, smem_bytes=40 * 1024, smem_per_sm_bytes=128 * 1024)
    assert found.blocks_per_sm == 3


@pytest.mark.parametrize(("threads", "registers", "smem_bytes"), [(0, 1, 1), (32, -1, 0), (32, 1, -1)])
def test_impossible_blocks_are_the_users_error(threads: int, registers: int, smem_bytes: int) -> None:
    with pytest.raises(UsageError):
        occupancy(sm(9, 0), threads=threads, registers=registers, smem_bytes=smem_bytes)
