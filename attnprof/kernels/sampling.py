"""Which rows of a large output are compared with the reference: few, but every place in a tile among them.

A fault seldom hits one row. It hits the first or last rows of a sequence, the edges of tiles, the rows of one warp in
every tile, one head, or all from some length on. So the sample takes the edges, and beside them chunks at every
offset from a tile's start, spread over heads and positions. The same sizes always give the same sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

# Consecutive rows that are compared together.
CHUNK = 8
# Rows after which tiles of all kernels start again: 128, or a divisor of it.
_TILE = 128
# The steps of a sequence that fills the unit square evenly: 1/g and 1/g^2, where g^3 = g + 1 (M. Roberts, "The
# unreasonable effectiveness of quasirandom sequences", 2018).
_ACROSS, _ALONG = 0.7548776662466927, 0.5698402909980532
# Whole heads are taken where the budget holds so many.
_MANY_HEADS = 64


def sampled_chunks(heads: int, rows: int, budget: int) -> list[tuple[int, int]]:
    """Head and first row, a multiple of `CHUNK`, of at most ``budget`` chunks, in order, none twice.

    With a budget of one, the last rows of the last head; with eight, the edges; with sixteen, each place of a chunk in
    64 rows. Of many small heads, some as a whole.

    Args:
        heads: how many there are.
        rows: of each.
        budget: chunks, at least one.
    """
    chunks_a_head = -(-rows // CHUNK)
    whole = budget // chunks_a_head
    if whole >= min(heads, _MANY_HEADS):
        return [(head, start) for head in spread(heads, whole) for start in range(0, rows, CHUNK)]
    chosen = spread(heads, min(max(budget // min(4, chunks_a_head), 2), heads))
    # The last head first: with a budget of one it is the farthest offset.
    order = [chosen[-1], *chosen[:-1]]
    most = min(budget, len(order) * chunks_a_head)
    found: dict[tuple[int, int], None] = {}
    for candidate in islice(_candidates(order, rows), 16 * most):  # most of them are new
        found[candidate] = None
        if len(found) == most:
            break
    return sorted(found)


def spread(total: int, wanted: int) -> list[int]:
    """At most ``wanted`` indices of ``range(total)``, evenly spread, the first and the last among them."""
    if wanted >= total:
        return list(range(total))
    if wanted == 1:
        return [total - 1]
    return sorted({round(step * (total - 1) / (wanted - 1)) for step in range(wanted)})


def _candidates(heads: list[int], rows: int) -> Iterator[tuple[int, int]]:
    """Rounds of eight edges, each in another head than the round before, and eight chunks at other places."""
    last = (rows - 1) // CHUNK * CHUNK
    tiles = -(-rows // _TILE)
    indices = count(1)
    for turn in count():
        for index, edge in enumerate(_edges(rows)):
            yield heads[(index + turn) % len(heads)], min(max(edge, 0), last)
        # Short sequences have few edges: all places at once.
        for index in islice(indices, 16 if turn == 0 else 8):
            start = int(index * _ACROSS % 1.0 * tiles) * _TILE + index * CHUNK % _TILE
            # Past the end: the same place of the tile before.
            start = start if start <= last else min(max(start - _TILE, 0), last)
            yield heads[int(index * _ALONG % 1.0 * len(heads))], start


def _edges(rows: int) -> tuple[int, ...]:
    """Where a sequence and its tiles end and begin, the weightiest first."""
    middle, last = rows // 2 // _TILE * _TILE, (rows - 1) // _TILE * _TILE
    return (rows - 1) // CHUNK * CHUNK, 0, _TILE - CHUNK, _TILE, last - CHUNK, last, middle - CHUNK, middle
