"""What memory requests cost: 32-byte sectors of global memory, wavefronts of shared memory.

Global memory moves in 32-byte sectors: a warp's request touches as many as its active lanes' addresses fall in (CUDA
C++ Best Practices Guide, "Coalesced Access to Global Memory"). Shared memory has 32 banks of 4 bytes; a wavefront
serves one word of each bank to any number of lanes, and a request of 8 or 16 bytes a lane is handled by half or
quarter warps (CUDA C++ Programming Guide, "Shared Memory"; Nsight Compute's wavefronts).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
WARP = 32

Ints = NDArray[np.int64]


def coalesce(lanes: Ints, offsets: Ints, nbytes: int) -> tuple[int, int, int]:
    """(requests, sectors, distinct bytes) of one access by any number of warps.

    Args:
        lanes: the active lanes, in order; lane / 32 is the warp.
        offsets: their byte offsets from a base that is a multiple of 32.
        nbytes: bytes a lane, a power of two up to 32; offsets are multiples of it.
    """
    warps = lanes >> 5
    order_breaks = np.flatnonzero(warps[1:] != warps[:-1])
    requests = int(order_breaks.size) + 1
    # One sort for all: a warp's number above, its offsets below.
    keys = (warps << 42) + offsets
    if not (keys[1:] >= keys[:-1]).all():
        keys = np.sort(keys)
    distinct = 1 + int(np.count_nonzero(keys[1:] != keys[:-1]))
    sectors = keys >> 5
    return requests, 1 + int(np.count_nonzero(sectors[1:] != sectors[:-1])), distinct * nbytes


def wavefronts(addresses: NDArray[Any], nbytes: int, *, load: bool = True, serialise: bool = False) -> tuple[int, int]:
    """(wavefronts, the fewest possible) of one shared-memory access.

    A load of 8 or 16 bytes returns a register a cycle, so it takes 2 or 4 wavefronts at least; half of that when lanes
    ask in pairs, t and t xor 1, or t and t xor 2, all with equal addresses (NVIDIA developer forum, "Unexpected shared
    memory bank conflict", for compute capability 7.x).

    Args:
        addresses: byte addresses, (warps, 32); −1 for lanes that do not take part. Multiples of ``nbytes``.
        nbytes: bytes a lane.
        load: whether data is returned.
        serialise: lanes that meet in one word go one after another (atomics) instead of sharing it.
    """
    lanes_at_once = min(WARP, WARP * BANK_BYTES // max(nbytes, BANK_BYTES))
    if not load or lanes_at_once == WARP:
        return _phases(addresses, nbytes, lanes_at_once, serialise)
    lane = np.arange(WARP)
    paired = np.zeros(addresses.shape[0], np.bool_)
    for distance in (1, 2):
        other = addresses[:, lane ^ distance]
        paired |= ((addresses == other) | (addresses < 0) | (other < 0)).all(axis=1)
    plain = _phases(addresses[~paired], nbytes, lanes_at_once, serialise)
    pairs = _phases(addresses[paired], nbytes, 2 * lanes_at_once, serialise)
    return plain[0] + pairs[0], plain[1] + pairs[1]


def _phases(addresses: NDArray[Any], nbytes: int, lanes_at_once: int, serialise: bool) -> tuple[int, int]:
    """Each group of ``lanes_at_once`` lanes takes as many wavefronts as its busiest bank has words."""
    words_per_lane = max(1, nbytes // BANK_BYTES)
    phases = addresses.reshape(-1, lanes_at_once)
    phases = phases[(phases >= 0).any(axis=1)]
    if not phases.size:
        return 0, 0
    words = (phases // BANK_BYTES)[:, :, None] + np.arange(words_per_lane)
    words = np.where((phases >= 0)[:, :, None], words, -1).reshape(phases.shape[0], -1)
    if not serialise:
        words = np.sort(words, axis=1)
        repeated = np.zeros(words.shape, np.bool_)
        np.equal(words[:, 1:], words[:, :-1], out=repeated[:, 1:])
        words = np.where(repeated, -1, words)
    phase = np.broadcast_to(np.arange(words.shape[0])[:, None], words.shape)
    taken = words >= 0
    load = np.bincount(phase[taken] * BANKS + (words[taken] % BANKS), minlength=words.shape[0] * BANKS)
    return int(load.reshape(-1, BANKS).max(axis=1).sum()), int(words.shape[0])
