"""How notes name the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attnprof.report.roofline import RowNames


def row(kernel: str, length: int, **changes: Any) -> dict[str, Any]:
    return {"kernel": kernel, "seq_q": length, "seq_kv": length, "head_dim": 128, "dtype": "fp16", **changes}


def test_rows_by_kernel_with_what_tells_them_apart() -> None:
    rows = [row(kernel, length, dtype=dtype) for kernel in ("naive", "fa2") for length in (1, 2) for dtype in "ab"]
    assert RowNames(rows)(rows) == "all rows"
    assert RowNames(rows)(rows[:4]) == "naive a at 1, 2; naive b at 1, 2"
    assert RowNames(rows[::2])([row("fa2", 1, seq_kv=7)]) == "fa2 at 1/7"


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (12, "naive at 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"),
        (1200, "naive at 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … 1200 (1,200 lengths)"),
    ],
)
def test_many_lengths_are_folded(count: int, says: str) -> None:
    rows = [row("naive", length) for length in range(1, count + 1)]
    assert RowNames([*rows, row("fa2", 1)])(rows) == says


def test_a_table_is_looked_through_once_whatever_is_named() -> None:
    """A sweep of 4096 lengths has a note for thousands of rows: a look at all of them for each took half a minute."""

    class Counted(list[dict[str, Any]]):
        looks = 0

        def __iter__(self) -> Iterator[dict[str, Any]]:
            type(self).looks += 1
            return super().__iter__()

    rows = Counted(row("naive", length) for length in range(1, 100))
    names = RowNames(rows)
    before = Counted.looks
    for index in range(98):
        names([rows[index]])
    assert Counted.looks == before <= 2
