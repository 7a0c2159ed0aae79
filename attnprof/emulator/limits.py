"""The limits of a launch that the device's driver would enforce."""

from __future__ import annotations

from attnprof.emulator.link import Program
from attnprof.kernels.plan import Launch
from attnprof.model.devices import DeviceSpec
from attnprof.model.errors import LaunchLimitError

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": the same for all since 3.0.
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_THREADS = 1024


def check_launch(launch: Launch, program: Program, device: DeviceSpec) -> None:
    """Check one launch. Registers are not checked: PTX does not say how many ptxas will take.

    Raises:
        LaunchLimitError: a dimension, the threads or the shared memory of a block exceed what the device or the
            kernel's own launch bounds allow.
    """
    name = launch.entry
    for what, extents, most in (("grid", launch.grid, MAX_GRID), ("block", launch.block, MAX_BLOCK)):
        for axis, extent, limit in zip("xyz", extents, most, strict=True):
            if not 1 <= extent <= limit:
                raise LaunchLimitError(f"{name}: {what}.{axis} is {extent:,}; 1 to {limit:,} are allowed")
    if launch.threads > MAX_THREADS:
        raise LaunchLimitError(f"{name}: needs {launch.threads:,} threads a block, {MAX_THREADS:,} available")
    bounds = program.entry.max_threads
    if bounds is not None and launch.threads > bounds[0] * bounds[1] * bounds[2]:
        raise LaunchLimitError(
            f"{name}: launched with {launch.threads} threads a block, "
            f"its __launch_bounds__ allow {bounds[0] * bounds[1] * bounds[2]}"
        )
    required = program.entry.required_threads
    if required is not None and launch.block != required:
        raise LaunchLimitError(f"{name}: launched with a block of {launch.block}, it requires {required}")
    smem_bytes = program.static_smem_bytes + launch.smem_bytes
    if launch.smem_bytes < 0 or smem_bytes > device.smem_per_block_bytes:
        raise LaunchLimitError(
            f"{name}: needs {smem_bytes:,} B of shared memory a block ({launch.smem_bytes:,} dynamic + "
            f"{program.static_smem_bytes:,} static), {device.smem_per_block_bytes:,} B available",
            "choose smaller tiles or fewer stages",
        )
