"""How many thread blocks an SM holds at once, and what stops it from holding more.

Source: the CUDA Occupancy Calculator (``cuda_occupancy.h`` of the CUDA toolkit, and the calculator in Nsight Compute).
Registers are given out a warp at a time in units of 256, out of a file that is split evenly over four sub-partitions;
the check of a single block against the file rounds its warps up to four. From sm_80 on the system keeps 1 KiB of
shared memory for each block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnprof.model.architectures import Architecture
from attnprof.model.errors import UsageError

Limit = Literal["threads", "registers", "shared-memory", "blocks"]

_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks and warps of one SM.

    Attributes:
        blocks_per_sm: blocks an SM holds at once; 0 when even one does not fit.
        warps_per_sm: their warps.
        occupancy: ``warps_per_sm`` over the most an SM can hold.
        limited_by: what allows no further block; several when they tie.
        blocks_by: how many blocks each resource alone would allow.
    """

    blocks_per_sm: int
    warps_per_sm: int
    occupancy: float
    limited_by: tuple[Limit, ...]
    blocks_by: dict[Limit, int]


def occupancy(
    architecture: Architecture, *, threads: int, registers: int, smem_bytes: int, smem_per_sm_bytes: int | None = None
) -> Occupancy:
    """Occupancy of a kernel.

    Args:
        architecture: the SM, from `attnprof.model.architectures.architecture`.
        threads: threads a block.
        registers: registers a thread, as ptxas reports them.
        smem_bytes: static and dynamic shared memory a block together.
        smem_per_sm_bytes: shared memory of the SM where the device reports another figure than the table.

    Raises:
        UsageError: a count is negative, or there are no threads.
    """
    if threads < 1 or registers < 0 or smem_bytes < 0:
        raise UsageError(
            f"a block of {threads} threads, {registers} registers a thread and {smem_bytes} bytes cannot exist",
            "give at least one thread and no negative sizes",
        )
    warps = -(-threads // architecture.warp_size)
    blocks_by: dict[Limit, int] = {
        "threads": _blocks_by_threads(architecture, threads, warps),
        "registers": _blocks_by_registers(architecture, registers, warps),
        "shared-memory": _blocks_by_smem(architecture, smem_bytes, smem_per_sm_bytes),
        "blocks": architecture.max_blocks_per_sm,
    }
    blocks = min(blocks_by.values())
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        occupancy=blocks * warps / architecture.max_warps_per_sm,
        limited_by=tuple(limit for limit, allowed in blocks_by.items() if allowed == blocks),
        blocks_by=blocks_by,
    )


def _blocks_by_threads(architecture: Architecture, threads: int, warps: int) -> int:
    if threads > architecture.max_threads_per_block:
        return 0
    return architecture.max_warps_per_sm // warps


def _blocks_by_registers(architecture: Architecture, registers: int, warps: int) -> int:
    if registers > architecture.max_registers_per_thread:
        return 0
    if registers == 0:
        return architecture.max_blocks_per_sm
    warp_registers = _round_up(registers * architecture.warp_size, _REGISTER_UNIT)
    if warp_registers * _round_up(warps, _SUB_PARTITIONS) > architecture.registers_per_block:
        return 0
    warps_per_partition = architecture.registers_per_sm // _SUB_PARTITIONS // warp_registers
    return warps_per_partition * _SUB_PARTITIONS // warps


def _blocks_by_smem(architecture: Architecture, smem_bytes: int, smem_per_sm_bytes: int | None) -> int:
    if smem_bytes > architecture.smem_per_block_bytes:
        return 0
    share = _round_up(smem_bytes + architecture.smem_reserved_bytes, architecture.smem_granularity_bytes)
    if share == 0:
        return architecture.max_blocks_per_sm
    return (smem_per_sm_bytes or architecture.smem_per_sm_bytes) // share


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
