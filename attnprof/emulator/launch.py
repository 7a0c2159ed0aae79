"""One kernel launch: limits, waves of blocks, parameters."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnprof.emulator.link import Program
from attnprof.emulator.memory import PARAM_SLOT, Allocation, GlobalSpace, padded
from attnprof.emulator.scheduler import Scheduler
from attnprof.emulator.wave import Geometry, Wave
from attnprof.kernels.plan import Arg, Pointer, Scalar
from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.emulator.checks import Checks
    from attnprof.emulator.counts import Counts

# Lanes executed at once: enough that NumPy's overhead a call is small, few enough that registers stay in cache.
WAVE_LANES = 8192
WAVE_BYTES = 1 << 30
_FORMATS = {"i32": "<i", "i64": "<q", "f32": "<f"}


def pack_arguments(program: Program, args: tuple[Arg, ...], addresses: Mapping[str, int]) -> bytes:
    """The kernel's parameter block.

    Raises:
        UsageError: the arguments are not those that the kernel takes.
    """
    params = program.entry.params
    if len(args) != len(params):
        raise UsageError(f"{program.entry.name} takes {len(params)} arguments, the plan gives {len(args)}")
    block = bytearray(padded(program.param_offsets[""]))
    for position, (arg, param) in enumerate(zip(args, params, strict=True)):
        data = struct.pack("<Q", addresses[arg.tensor]) if isinstance(arg, Pointer) else _scalar(arg)
        if len(data) != param.size:
            raise UsageError(
                f"argument {position} of {program.entry.name} has {param.size} bytes, the plan gives {len(data)}"
            )
        at = program.param_offsets[param.name]
        block[at : at + len(data)] = data
    return bytes(block)


def _scalar(arg: Scalar) -> bytes:
    try:
        return struct.pack(_FORMATS[arg.kind], arg.value)
    except (struct.error, OverflowError) as error:
        raise UsageError(f"{arg.value!r} does not fit an {arg.kind} argument ({error})") from error


def blocks_at_once(program: Program, geometry: Geometry) -> int:
    """How many blocks a wave holds: limited by lanes and by the memory of their registers and shared memory."""
    lanes = padded(geometry.threads, 32)
    register_bytes = sum(r.type.nbytes for code in program.codes.values() for r in code.function.registers)
    local_bytes = sum(code.local_bytes for code in program.codes.values())
    per_block = lanes * (register_bytes + local_bytes + 64) + program.static_smem_bytes + geometry.dynamic_smem_bytes
    return max(1, min(WAVE_LANES // lanes, WAVE_BYTES // max(1, per_block), geometry.blocks))


def execute(
    program: Program,
    geometry: Geometry,
    memory: GlobalSpace,
    param_bytes: bytes,
    *,
    budget: int,
    counts: Counts | None = None,
    checks: Checks | None = None,
    printed: list[str] | None = None,
) -> int:
    """Run every block of the grid, wave after wave. Returns the steps taken.

    Raises:
        EmulatedFault: the kernel did something wrong.
    """
    params = Allocation("the kernel's parameters", "param", len(param_bytes), PARAM_SLOT, read_only=True)
    params.data[: len(param_bytes)] = memoryview(param_bytes)
    memory = GlobalSpace({**memory.slots, PARAM_SLOT: params})
    at_once = blocks_at_once(program, geometry)
    steps = 0
    for first in range(0, geometry.blocks, at_once):
        wave = Wave(
            program,
            geometry,
            first,
            min(at_once, geometry.blocks - first),
            memory,
            param_bytes,
            counts,
            checks,
            printed,
        )
        Scheduler(wave, budget).run()
        steps += wave.steps
    return steps
