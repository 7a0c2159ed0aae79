"""GPU architectures by the names that NVRTC takes, and which NVRTC knows which."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Compute capabilities with an architecture-specific ("a") target: wgmma, tcgen05, setmaxnreg and TMA variants exist
# only there. CUDA C++ Programming Guide, "Architecture-Specific Features".
_ARCH_SPECIFIC_FROM = (9, 0)

# First CUDA release whose NVRTC compiles for a compute capability (CUDA release notes).
_FIRST_CUDA: dict[int, str] = {
    80: "11.0",
    86: "11.1",
    87: "11.4",
    89: "11.8",
    90: "11.8",
    100: "12.8",
    103: "12.9",
    120: "12.8",
    121: "12.9",
    88: "13.0",
    110: "13.0",
}
# Last CUDA major version that still compiles for architectures before Turing (CUDA 13.0 release notes).
_DROPPED_BELOW_75 = "12"


def parse_arch(arch: str) -> tuple[int, str]:
    """``sm_90a`` or ``compute_90a`` → ``(90, "a")``.

    Raises:
        ValueError: not an architecture name.
    """
    match = re.fullmatch(r"(?:sm|compute)_(\d{2,3})([af]?)", arch)
    if match is None:
        raise ValueError(f"{arch!r} is no architecture name; it looks like sm_80 or sm_90a")
    return int(match[1]), match[2]


def exact_arch(compute_capability: tuple[int, int]) -> str:
    """The most specific architecture a device of this compute capability runs: ``(9, 0)`` → ``sm_90a``."""
    major, minor = compute_capability
    return f"sm_{major}{minor}{'a' if compute_capability >= _ARCH_SPECIFIC_FROM else ''}"


def newest_supported(compute_capability: tuple[int, int], supported: Sequence[int]) -> str | None:
    """The newest plain architecture NVRTC knows whose PTX this device runs, e.g. ``sm_90``; None if there is none."""
    device = compute_capability[0] * 10 + compute_capability[1]
    older = [arch for arch in supported if arch <= device]
    return f"sm_{max(older)}" if older else None


def needed_cuda(arch: str) -> str:
    """Which CUDA version's NVRTC compiles for ``arch``, in words."""
    number, _ = parse_arch(arch)
    if number < 75:
        return f"CUDA {_DROPPED_BELOW_75}"
    first = _FIRST_CUDA.get(number)
    return f"CUDA {first} or later" if first else "a later CUDA release"
