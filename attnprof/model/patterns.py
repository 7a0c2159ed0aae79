"""Every way in which an attention kernel's warp touches a tile in shared memory, as addresses.

Fragment layouts are those of ``mma.m16n8k16``: lane l holds, with g = l / 4 and t = l mod 4, the accumulator elements
(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), and of the B operand the elements (2t, g), (2t + 1, g) and eight
further on. Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".

A column of a tile can be read in three ways, and they need different cures. Rows of 64 halves, 32 of them read down one
column, take 32 wavefronts in a plain tile in the first two:

* ``ldmatrix``, or 16 bytes a lane, at one chunk of 32 rows: the fewest wavefronts are 4. A padding of 8 halves starts
  each row 4 banks on, so that 8 rows fill the 32 banks: conflict-free, and so is the swizzle.
* single halves, a row a lane: the fewest is 1. With 8 halves of padding rows r and r + 8 still share a bank: 4-way.
  Two halves of padding (rows an odd number of words apart) are conflict-free, but no row then starts at a multiple of
  16 bytes, which ``ldmatrix`` and 16-byte copies need.
* single halves as a B fragment takes them, 8 columns of 4 rows: 4-way plain, conflict-free with 8 halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnprof.model.banks import WARP, WAVEFRONT_BYTES, Conflicts, conflicts, ldmatrix_conflicts
from attnprof.model.layouts import CHUNK_BYTES, Layout, Tile

Row = Literal["head-dim", "block-kv"]
# fp16 or bf16.
ELEMENT_BYTES = 2
_LANES = range(WARP)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of access by one warp.

    Attributes:
        name: its key in JSON.
        tensor: the tile that it touches.
        instruction: what does it.
        description: what each lane accesses.
        nbytes: bytes a lane (a row, for ldmatrix).
        row: what a row of the tile is as long as.
        positions: (row, byte) of each lane; a byte past the end of a row is one of the next rows.
    """

    name: str
    tensor: str
    instruction: str
    description: str
    nbytes: int
    row: Row
    positions: tuple[tuple[int, int], ...]

    def alignment(self, tile: Tile) -> str | None:
        """Why the access can't be made at all in this tile, or None when it can."""
        if tile.pitch_bytes % self.nbytes:
            return f"rows {tile.pitch_bytes} bytes apart do not start at multiples of {self.nbytes} bytes"
        return None

    def addresses(self, tile: Tile) -> tuple[int, ...]:
        """The byte address of each lane, with the first row at 0."""
        return tuple(tile.address(row + byte // tile.row_bytes, byte % tile.row_bytes) for row, byte in self.positions)

    def conflicts(self, tile: Tile) -> Conflicts | None:
        """What it costs in this tile; None where the tile or the access is impossible."""
        if tile.misfit() or self.alignment(tile):
            return None
        addresses = self.addresses(tile)
        if "ldmatrix" in self.instruction:
            return ldmatrix_conflicts(addresses)
        return conflicts(addresses, self.nbytes, load=self.instruction.startswith("ld.shared"))

    def conflict_free_pad(self, row_bytes: int) -> int | None:
        """The least padding of a row, in elements, with which it has no conflicts; None where none has that effect.

        Less than 128 bytes are tried: those are all banks, and beyond them everything repeats.
        """
        for pad in range(WAVEFRONT_BYTES // ELEMENT_BYTES):
            found = self.conflicts(Tile(row_bytes, Layout.PAD, pad * ELEMENT_BYTES))
            if found is not None and found.wavefronts == found.ideal:
                return pad
        return None


# Lane by lane: (row, byte). A byte past the end of a row is one of the next rows.
_IN_ORDER = tuple((0, lane * CHUNK_BYTES) for lane in _LANES)
_A_OPERAND = tuple((lane % 16, lane // 16 * CHUNK_BYTES) for lane in _LANES)
_B_OPERAND = tuple((lane // 16 * 8 + lane % 8, lane // 8 % 2 * CHUNK_BYTES) for lane in _LANES)
_COLUMN = tuple((lane, 0) for lane in _LANES)
_B_ELEMENTS = tuple((lane % 4 * 2, lane // 4 * ELEMENT_BYTES) for lane in _LANES)
_ACCUMULATOR_PAIRS = tuple((lane // 4, lane % 4 * 2 * ELEMENT_BYTES) for lane in _LANES)

PATTERNS: tuple[Pattern, ...] = (
    Pattern("tile_store", "Q, K, V", "cp.async 16 B", "lanes copy chunk after chunk of a row, row after row", 16,
            "head-dim", _IN_ORDER),
    Pattern("q_load", "Q", "ldmatrix.x4", "A operand: 16 rows at two neighbouring chunks", 16, "head-dim", _A_OPERAND),
    Pattern("k_load", "K", "ldmatrix.x4", "B operand: 16 keys at two neighbouring chunks", 16, "head-dim",
            _B_OPERAND),
    Pattern("v_load", "V", "ldmatrix.x4.trans", "B operand, transposed on the way: 16 keys at two chunks", 16,
            "head-dim", _A_OPERAND),
    Pattern("column_chunks", "V", "ld.shared 16 B", "one chunk of 32 rows, a row a lane", 16, "head-dim",
            _COLUMN),
    Pattern("column_read", "V", "ld.shared 2 B", "one column of 32 rows, an element a lane", 2, "head-dim",
            _COLUMN),
    Pattern("v_fragment", "V", "ld.shared 2 B", "B operand without ldmatrix: 8 columns of 4 rows, an element a lane", 2,
            "head-dim", _B_ELEMENTS),
    Pattern("o_store", "O", "st.shared 4 B", "accumulator: 4 pairs of elements of 8 rows", 4, "head-dim",
            _ACCUMULATOR_PAIRS),
    Pattern("o_load", "O", "ld.shared 16 B", "chunk after chunk of a row, on the way to HBM", 16, "head-dim",
            _IN_ORDER),
    Pattern("p_store", "P", "st.shared 4 B", "accumulator: 4 pairs of elements of 8 rows", 4, "block-kv",
            _ACCUMULATOR_PAIRS),
    Pattern("p_load", "P", "ldmatrix.x4", "A operand: 16 rows at two neighbouring chunks", 16, "block-kv", _A_OPERAND),
)  # fmt: skip


def pattern(name: str) -> Pattern:
    """The pattern of that name."""
    return next(each for each in PATTERNS if each.name == name)
