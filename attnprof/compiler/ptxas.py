"""What ``ptxas -v`` says of each entry point, out of NVRTC's program log."""

from __future__ import annotations

import re

from attnprof.kernels.executor import EntryResources

# The lines as NVRTC 12.8, 13.0 and 13.5 print them ("ptxas info    : " or "ptxas         .     " in front):
#   Compiling entry function 'fa2' for 'sm_90a'
#   Function properties for fa2
#   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
#   Used 168 registers, used 1 barriers, 32 bytes cumulative stack size, 49152 bytes smem, 400 bytes cmem[0]
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_CUMULATIVE_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SMEM = re.compile(r"(\d+)(?:\+(\d+))? bytes smem")


def parse_resources(log: str) -> dict[str, EntryResources]:
    """Registers, spills, stack and static shared memory of each entry point.

    ptxas lists functions that were not inlined apart from the entries that call them, without saying who calls
    them: their spills are charged to every entry.
    """
    frames: dict[str, tuple[int, int, int]] = {}
    used: dict[str, tuple[int, int | None, int]] = {}
    entry = function = None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = function = match[1]
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif (match := _FRAME.search(line)) and function is not None:
            frames[function] = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _USED.search(line)) and entry is not None:
            stack = _CUMULATIVE_STACK.search(line)
            smem = _SMEM.search(line)
            smem_bytes = sum(int(part) for part in smem.groups() if part) if smem else 0
            used[entry] = (int(match[1]), int(stack[1]) if stack else None, smem_bytes)
            entry = None
    shared = [frame for name, frame in frames.items() if name not in used]
    called_stores = sum(frame[1] for frame in shared)
    called_loads = sum(frame[2] for frame in shared)
    resources = {}
    for name, (registers, stack_bytes, smem_bytes) in used.items():
        frame = frames.get(name, (0, 0, 0))
        resources[name] = EntryResources(
            entry=name,
            registers=registers,
            spill_store_bytes=frame[1] + called_stores,
            spill_load_bytes=frame[2] + called_loads,
            stack_bytes=frame[0] if stack_bytes is None else stack_bytes,
            static_smem_bytes=smem_bytes,
        )
    return resources
