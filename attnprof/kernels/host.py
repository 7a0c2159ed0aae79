"""What this process may use of the machine that it runs on."""

from __future__ import annotations

import os
from pathlib import Path

# Where Linux says what is free.
_MEMINFO = Path("/proc/meminfo")
# Where it keeps a container's limit, what is used of it, and in memory.stat how much of that is files that it can drop:
# control groups of version 2, and of version 1 (kernel documentation, cgroup-v2.rst and cgroup-v1/memory.rst).
_CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def available_bytes() -> int | None:
    """Memory that can be had without swapping, within the container's limit; None where the system does not say."""
    said = [_number(_MEMINFO, "MemAvailable:"), *(_left_of(*group) for group in _CGROUPS)]
    known = [each for each in said if each is not None]
    return min(known) if known else None


def _left_of(folder: Path, limit: str, used: str, files: str) -> int | None:
    most, now = _number(folder / limit), _number(folder / used)
    if most is None or now is None:
        return None
    return max(most - now + (_number(folder / "memory.stat", files) or 0), 0)


def _number(file: Path, name: str | None = None) -> int | None:
    """The number that a file is, or that follows a name in it, in bytes; None where there is none, or no file."""
    try:
        lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
        words = next(words for words in lines if words and (name is None or words[0] == name))
        number = int(words[0 if name is None else 1])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return number * 1024 if words[-1] == "kB" else number
