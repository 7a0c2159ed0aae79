from __future__ import annotations

import pytest

from attnprof.report.workload import size


def row(seq_q: int, seq_kv: int, **changes: object) -> dict[str, object]:
    return {"operation": "attention", "seq_q": seq_q, "seq_kv": seq_kv, "batch": 1, "heads": 1, **changes}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (row(256, 256), "length 256"),
        (row(1, 1), "length 1"),
        (row(5, 2), "5 queries, 2 keys"),
        (row(1, 4096), "1 query, 4096 keys"),
        (row(2, 1), "2 queries, 1 key"),
        (row(11, 1025, operation="softmax"), "11 rows of 1025 columns"),
        (row(1, 1, operation="softmax"), "1 row of 1 column"),
        (row(64, 64, operation="softmax", heads=2), "length 64"),
    ],
)
def test_the_size_of_a_workload_in_words(shape: dict[str, object], said: str) -> None:
    assert size(shape) == said
