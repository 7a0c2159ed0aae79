"""Every limit of a launch, checked before launching: a refusal here names what is needed and what there is."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.kernels.executor import EntryResources
from attnprof.kernels.plan import Dim3, Launch
from attnprof.model.errors import LaunchLimitError

# Registers are handed out per warp in units of 256, and warps to the four schedulers of an SM in fours: CUDA occupancy
# calculator, the same from compute capability 3.0 on.
_REGISTER_UNIT = 256
_WARP_UNIT = 4
_WARP = 32


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a device allows one launch; ``smem_per_block_bytes`` is after opting in to more than 48 KB."""

    max_threads_per_block: int
    max_block: Dim3
    max_grid: Dim3
    smem_per_block_bytes: int
    registers_per_block: int


def check_launch(launch: Launch, resources: EntryResources, limits: DeviceLimits) -> None:
    """Check one launch.

    Raises:
        LaunchLimitError: a dimension is zero or too large, or the block needs more threads, shared memory or
            registers than the device has.
    """
    name = launch.entry
    for what, extents, most in (("grid", launch.grid, limits.max_grid), ("block", launch.block, limits.max_block)):
        for axis, extent, limit in zip("xyz", extents, most, strict=True):
            if not 1 <= extent <= limit:
                raise LaunchLimitError(f"{name}: {what}.{axis} is {extent:,}; this GPU allows 1 to {limit:,}")
    if launch.threads > limits.max_threads_per_block:
        raise LaunchLimitError(
            f"{name}: needs {launch.threads:,} threads a block, {limits.max_threads_per_block:,} available"
        )
    smem_bytes = launch.smem_bytes + resources.static_smem_bytes
    if launch.smem_bytes < 0 or smem_bytes > limits.smem_per_block_bytes:
        raise LaunchLimitError(
            f"{name}: needs {smem_bytes:,} B of shared memory a block ({launch.smem_bytes:,} dynamic + "
            f"{resources.static_smem_bytes:,} static), {limits.smem_per_block_bytes:,} B available",
            "choose smaller tiles or fewer stages",
        )
    registers = block_registers(resources.registers, launch.threads)
    if registers > limits.registers_per_block:
        raise LaunchLimitError(
            f"{name}: needs {registers:,} registers a block ({resources.registers} a thread × {launch.threads} threads,"
            f" in units of {_REGISTER_UNIT} a warp), {limits.registers_per_block:,} available",
            "add __launch_bounds__ with the number of threads, or use fewer threads",
        )


def block_registers(registers_per_thread: int, threads: int) -> int:
    """Registers that a block of ``threads`` threads takes, as the hardware hands them out."""
    warps = _round_up(-(-threads // _WARP), _WARP_UNIT)
    return warps * _round_up(registers_per_thread * _WARP, _REGISTER_UNIT)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
