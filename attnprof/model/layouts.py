"""How the rows of a tile lie in shared memory: one after another, padded, or swizzled.

Rows of 64 halves are 128 bytes, which is all 32 banks: the same column of every row is in the same bank. Two cures:

* ``pad`` makes each row longer by a few elements that nobody uses, so that the next one starts in other banks.
* ``swizzle`` stores the 16-byte chunks of a row in another order in every row: chunk c of row r goes to position
  c XOR r mod 8 of its 128 bytes. Eight rows at one logical chunk are then in eight different places. No byte is lost.
  Rows of less than 128 bytes share a line of the banks; the line's number takes the place of the row's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from attnprof.model.banks import WAVEFRONT_BYTES

CHUNK_BYTES = 16


class Layout(StrEnum):
    """How a tile's rows are laid out."""

    PLAIN = "plain"
    PAD = "pad"
    SWIZZLE = "swizzle"


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of rows in shared memory, at an address that is a multiple of 128 bytes.

    Attributes:
        row_bytes: what is used of a row.
        layout: how the rows lie.
        pad_bytes: what ``pad`` adds to a row.
    """

    row_bytes: int
    layout: Layout
    pad_bytes: int = 16

    @property
    def pitch_bytes(self) -> int:
        """From the start of a row to the start of the next."""
        return self.row_bytes + (self.pad_bytes if self.layout is Layout.PAD else 0)

    def nbytes(self, rows: int) -> int:
        """Shared memory of so many rows."""
        return rows * self.pitch_bytes

    def misfit(self) -> str | None:
        """Why rows of this length can't be laid out so, or None when they can."""
        if self.layout is Layout.SWIZZLE and not (
            self.row_bytes % WAVEFRONT_BYTES == 0
            or (self.row_bytes % CHUNK_BYTES == 0 and WAVEFRONT_BYTES % self.row_bytes == 0)
        ):
            return f"a swizzle needs rows of 16, 32 or 64 bytes or of whole 128 bytes, not {self.row_bytes}"
        return None

    def address(self, row: int, byte: int) -> int:
        """Where a byte of a row lies.

        Args:
            row: the row, 0 or more.
            byte: the byte in it, 0 … ``row_bytes`` − 1.
        """
        if self.layout is not Layout.SWIZZLE:
            return row * self.pitch_bytes + byte
        rows_per_line = max(1, WAVEFRONT_BYTES // self.row_bytes)
        chunks = min(WAVEFRONT_BYTES, self.row_bytes) // CHUNK_BYTES
        chunk, within = divmod(byte, CHUNK_BYTES)
        return row * self.row_bytes + (chunk ^ (row // rows_per_line % chunks)) * CHUNK_BYTES + within
