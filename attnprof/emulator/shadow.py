"""Who touched each granule of a memory last: the evidence for data races.

A granule is as wide as the narrowest access that a kernel makes. Of each, the last write and the last two reads by
different threads are kept, as rows (thread, clock, program counter, sequence number). The clock is the warp's: it
advances at every barrier, so that "before the last barrier between these two warps" is one comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.memory import Storage
from attnprof.emulator.program import Immediate, Instruction
from attnprof.emulator.types import TYPES

if TYPE_CHECKING:
    from attnprof.emulator.link import Program

THREAD, CLOCK, PC, SEQUENCE = range(4)
NOBODY = -1
# A granule's three records of four numbers, and two flags.
SHADOW_BYTES = 3 * 16 + 2
Records = NDArray[np.int32]


class Shadow:
    """The records of one storage."""

    def __init__(self, storage: Storage, granule: int) -> None:
        size = -(-storage.data.size // granule)
        self.storage = storage
        self.granule = granule
        self.write = _empty(size)
        self.read = _empty(size)
        self.other_read = _empty(size)
        self.atomic: NDArray[np.bool_] = np.zeros(size, np.bool_)
        # Granules that an asynchronous copy is about to write.
        self.pending: NDArray[np.bool_] = np.zeros(size, np.bool_)

    def granules(self, offsets: NDArray[np.int64], nbytes: int) -> tuple[NDArray[np.int64], int]:
        """The granules of accesses of ``nbytes`` at ``offsets``, flat, and how many there are to an access."""
        count = max(1, nbytes // self.granule)
        first = offsets // self.granule
        if count == 1:
            return first, 1
        return (first[:, None] + np.arange(count)).reshape(-1), count

    def record_read(self, at: NDArray[np.int64], rows: Records) -> None:
        """Remember reads; of many threads that read a granule at once the last and the first are kept."""
        before = self.read[at]
        changed = (before[:, THREAD] != rows[:, THREAD]) & (before[:, THREAD] != NOBODY)
        self.other_read[at[changed]] = before[changed]
        self.read[at] = rows
        shared = self.read[at, THREAD] != rows[:, THREAD]
        if shared.any():
            self.other_read[at[shared][::-1]] = rows[shared][::-1]

    def record_write(self, at: NDArray[np.int64], rows: Records, *, atomic: bool) -> None:
        """Remember writes; earlier reads no longer matter to anyone who is ordered after the write."""
        self.write[at] = rows
        self.read[at, THREAD] = NOBODY
        self.other_read[at, THREAD] = NOBODY
        self.atomic[at] = atomic


def _empty(size: int) -> Records:
    return np.full((size, 4), NOBODY, np.int32)


def granules_of(program: Program) -> dict[str, int]:
    """The narrowest access of a kernel to shared and to global memory, in bytes, 16 at most."""
    narrowest = {"shared": 16, "global": 16}
    for i in program.instructions:
        nbytes = _access_bytes(i)
        if nbytes is None:
            continue
        spaces = [
            m.partition("::")[0]
            for m in i.mods
            if m.partition("::")[0] in ("shared", "global", "local", "param", "const")
        ]
        for space in spaces or ("shared", "global"):
            if space in narrowest:
                narrowest[space] = min(narrowest[space], nbytes)
    return narrowest


def _access_bytes(i: Instruction) -> int | None:
    if i.op in ("ld", "ldu", "st", "atom", "red"):
        kinds = [TYPES[m] for m in i.mods if m in TYPES]
        count = next((int(m[1:]) for m in i.mods if m in ("v2", "v4", "v8")), 1)
        return kinds[-1].nbytes * count if kinds else None
    if i.op == "cp" and len(i.operands) > 2 and isinstance(i.operands[2], Immediate):
        return int(i.operands[2].value)
    return 16 if i.op in ("ldmatrix", "stmatrix") else None
