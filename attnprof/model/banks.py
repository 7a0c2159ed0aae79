"""Bank conflicts of shared memory, from the addresses that the lanes of a warp access.

Shared memory has 32 banks of 4 bytes; consecutive words lie in consecutive banks. A wavefront serves one word of each
bank, to any number of lanes: lanes that read the same word share it, and so do bytes and halves of one word. Lanes that
need different words of one bank take turns, a wavefront each.

A wavefront carries at most 32 x 4 = 128 bytes, so wide accesses are split before banks are looked at: 8 bytes a lane go
as two halves of the warp, 16 bytes as four quarters. ``ldmatrix`` reads 8 rows of 16 bytes a matrix, which is such a
quarter, its row addresses supplied by 8 lanes. A wide load takes half the wavefronts if lanes ask in pairs.

Sources: CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later (banks, broadcast); Nsight
Compute, "Shared Memory" and its wavefronts; PTX ISA, "ldmatrix"; NVIDIA developer forum, "Clarification: bank_conflicts
metric vs wavefronts for shared memory LDS.128" (16 bytes a lane: 4 wavefronts without conflicts, 32 at worst) and
"Unexpected shared memory bank conflict" (lanes in pairs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.model.errors import UsageError

BANKS = 32
BANK_BYTES = 4
WARP = 32
WAVEFRONT_BYTES = BANKS * BANK_BYTES
WIDTHS_BYTES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Conflicts:
    """What one request of a warp costs.

    Attributes:
        wavefronts: passes that it takes.
        ideal: passes that it would take without conflicts: one a group of lanes that go together.
    """

    wavefronts: int
    ideal: int

    @property
    def degree(self) -> float:
        """Wavefronts over the fewest possible: 1 is conflict-free, 8 is eight times slower."""
        return self.wavefronts / self.ideal if self.ideal else 1.0


def conflicts(addresses: Sequence[int | None], nbytes: int, *, load: bool = True) -> Conflicts:
    """The conflicts of one load or store.

    Args:
        addresses: the byte address of each lane, in lane order, at most 32; None for a lane that takes no part.
        nbytes: bytes a lane: 1, 2, 4, 8 or 16.
        load: whether data is returned. A load of 8 or 16 bytes whose lanes t and t xor 1, or t and t xor 2, all have
            equal addresses serves twice as many lanes together.

    Raises:
        UsageError: more lanes than a warp has, another width, or an address that is not a multiple of it.
    """
    if nbytes not in WIDTHS_BYTES:
        raise UsageError(f"an access of {nbytes} bytes does not exist", "a lane accesses 1, 2, 4, 8 or 16 bytes")
    if len(addresses) > WARP:
        raise UsageError(f"{len(addresses)} lanes are more than the {WARP} of a warp")
    if misaligned := next((a for a in addresses if a is not None and (a < 0 or a % nbytes)), None):
        raise UsageError(f"address {misaligned} is not a multiple of the {nbytes} bytes that are accessed there")
    together = min(WARP, WAVEFRONT_BYTES // nbytes)
    if load and together < WARP and (_in_pairs(addresses, 1) or _in_pairs(addresses, 2)):
        together *= 2
    groups = [addresses[first : first + together] for first in range(0, len(addresses), together)]
    passes = [_passes(group, nbytes) for group in groups]
    return Conflicts(sum(passes), sum(taken > 0 for taken in passes))


def ldmatrix_conflicts(rows: Sequence[int]) -> Conflicts:
    """The conflicts of an ``ldmatrix``, transposed or not: that changes which lane gets what, not what is read.

    Args:
        rows: the byte address of each 16-byte row; 8, 16 or 32 for .x1, .x2 and .x4.
    """
    if len(rows) not in (8, 16, 32):
        raise UsageError(f"ldmatrix reads 8, 16 or 32 rows, not {len(rows)}")
    return conflicts(rows, 16, load=False)  # rows of different matrices never pair


def _in_pairs(addresses: Sequence[int | None], distance: int) -> bool:
    """Whether each lane and the one ``distance`` away by XOR have the same address, or one of them has none."""
    lanes = [*addresses, *[None] * (WARP - len(addresses))]
    pairs = ((address, lanes[lane ^ distance]) for lane, address in enumerate(lanes))
    return all(a is None or b is None or a == b for a, b in pairs)


def _passes(group: Sequence[int | None], nbytes: int) -> int:
    """The most words that a bank must deliver to lanes that go together."""
    words = {
        word
        for address in group
        if address is not None
        for word in range(address // BANK_BYTES, (address + nbytes - 1) // BANK_BYTES + 1)
    }
    return max(Counter(word % BANKS for word in words).values(), default=0)
