"""What this process may use of the machine that it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Where Linux says what is free, and which control groups this process is in.
_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Groups:
    """Where a version of control groups keeps a limit of memory, and what is used of it.

    ``files`` is the line of memory.stat that says how much of that is files that the system can drop (kernel
    documentation, cgroup-v2.rst and cgroup-v1/memory.rst).
    """

    folder: Path
    controller: str  # as in /proc/self/cgroup
    limit: str
    used: str
    files: str


_GROUPS = (
    _Groups(Path("/sys/fs/cgroup"), "", "memory.max", "memory.current", "inactive_file"),
    _Groups(
        Path("/sys/fs/cgroup/memory"),
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def available_bytes() -> int | None:
    """Memory that can be had without swapping, within this process's limits; None where the system does not say."""
    said = [_number(_MEMINFO, "MemAvailable:")]
    said += [_left_of(groups, folder) for groups in _GROUPS for folder in _own_folders(groups)]
    known = [each for each in said if each is not None]
    return min(known) if known else None


def _own_folders(groups: _Groups) -> Iterator[Path]:
    """Those of this process's group and of each that it lies in: every limit holds."""
    yield groups.folder
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:  # 0::/user.slice/job, or 4:memory:/job
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if groups.controller in controllers.split(","):
            folder = groups.folder
            for name in PurePosixPath(path).parts[1:]:
                folder /= name
                yield folder


def _left_of(groups: _Groups, folder: Path) -> int | None:
    most, now = _number(folder / groups.limit), _number(folder / groups.used)
    if most is None or now is None:
        return None
    return max(most - now + (_number(folder / "memory.stat", groups.files) or 0), 0)


def _number(file: Path, name: str | None = None) -> int | None:
    """The number that a file is, or that follows a name in it, in bytes; None where there is none, or no file."""
    try:
        lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
        words = next(words for words in lines if words and (name is None or words[0] == name))
        number = int(words[0 if name is None else 1])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return number * 1024 if words[-1] == "kB" else number
