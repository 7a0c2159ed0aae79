"""The ledgers of the softmax rungs."""

from __future__ import annotations

import pytest

from attnprof.model.demand import Direction
from attnprof.model.dtypes import Dtype
from attnprof.model.softmax_traffic import (
    FUSED,
    NAIVE,
    ONLINE,
    SAFE,
    Rung,
    matrix_bytes,
    rereads_hit_l2,
    softmax_demand,
    softmax_flops,
)
from attnprof.model.workload import Workload

W = Workload.of(512, seq_kv=1_048_576, heads=1)


def moved(rung: Rung, direction: Direction, **options: object) -> int:
    demand = softmax_demand(W, rung, **options)  # type: ignore[arg-type]
    return sum(line.bytes for line in demand.ledger if line.direction == direction)


@pytest.mark.parametrize(("rung", "reads"), [(NAIVE, 2), (SAFE, 3), (ONLINE, 2), (FUSED, 1)])
def test_each_rung_reads_the_matrix_once_a_pass_and_writes_it_once(rung: Rung, reads: int) -> None:
    assert moved(rung, "read") == reads * 2**30
    assert moved(rung, "write") == 2**30
    assert moved(rung, "read", rereads_in_l2=True) == 2**30
    assert moved(rung, "write", rereads_in_l2=True) == 2**30


def test_a_reread_that_l2_serves_stays_in_the_ledger_and_says_so() -> None:
    stages = [line.stage for line in softmax_demand(W, SAFE, rereads_in_l2=True).ledger]
    assert stages == ["maximum", "sum, from L2", "normalise, from L2", "normalise"]
    assert [line.stage for line in softmax_demand(W, SAFE).ledger] == ["maximum", "sum", "normalise", "normalise"]


def test_columns_beyond_the_chip_are_read_once_more() -> None:
    assert moved(FUSED, "read", resident_columns=917_504) == 2**30 + 512 * (1_048_576 - 917_504) * 2
    assert moved(FUSED, "read", resident_columns=917_504, rereads_in_l2=True) == 2**30
    assert moved(FUSED, "read", resident_columns=2**21) == 2**30


def test_rereads_hit_l2_when_the_rows_in_flight_fit() -> None:
    l2_bytes = 60 * 2**20
    short, long = Workload.of(2**17, seq_kv=4096, heads=1), W
    assert rereads_hit_l2(short, 264, l2_bytes)
    assert not rereads_hit_l2(long, 264, l2_bytes)
    assert not rereads_hit_l2(short, 264, None)
    # 30 rows of 2 MiB fit, 31 don't; and no more rows are in flight than there are.
    assert rereads_hit_l2(long, 30, l2_bytes)
    assert not rereads_hit_l2(long, 31, l2_bytes)
    assert rereads_hit_l2(Workload.of(30, seq_kv=1_048_576, heads=1), 264, l2_bytes)


def test_the_matrix_is_that_of_all_scores_and_flops_are_five_an_element() -> None:
    attention = Workload.of(1024, batch=2, heads=4, dtype=Dtype.BF16)
    assert matrix_bytes(attention) == 2 * 4 * 1024 * 1024 * 2
    assert softmax_flops(attention) == 5 * 2 * 4 * 1024 * 1024
    demand = softmax_demand(attention, FUSED)
    assert demand.footprint_bytes == 2 * matrix_bytes(attention)
    assert demand.tensor_flops == 0
    assert demand.exponentials == 2 * 2 * 4 * 1024 * 1024


def test_without_the_maximum_there_is_less_to_compute() -> None:
    assert softmax_demand(W, NAIVE).fp32_flops < softmax_demand(W, SAFE).fp32_flops
