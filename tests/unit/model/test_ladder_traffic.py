"""Ledgers of the rungs between three kernels and FlashAttention-2."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.ladder_traffic import (
    exact_statistics_demand,
    first_row_that_sees,
    keys_outside_demand,
    rows_that_see,
)
from attnprof.model.roofline import LAUNCH_OVERHEAD_S, roofline
from attnprof.model.traffic import fused_demand, three_kernel_demand
from attnprof.model.workload import Pass, Workload

WORKLOADS = st.builds(
    Workload.of,
    seq_q=st.integers(1, 300),
    seq_kv=st.integers(1, 300),
    batch=st.integers(1, 3),
    heads=st.just(8),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.sampled_from([40, 64, 128]),
    dtype=st.sampled_from(list(Dtype)),
    causal=st.booleans(),
)


def traffic(demand: Demand, tensor: str) -> int:
    return sum(line.bytes for line in demand.ledger if line.tensor == tensor)


def sees(w: Workload, row: int, key: int) -> bool:
    return not w.causal or key <= row + w.seq_kv - w.seq_q


@given(w=WORKLOADS)
def test_exact_statistics_move_what_the_fused_kernel_moves_and_multiply_half_as_much_again(w: Workload) -> None:
    exact, fused = exact_statistics_demand(w), fused_demand(w)
    assert tuple(exact.ledger) == tuple(fused.ledger)
    assert (exact.footprint_bytes, exact.intermediate_bytes) == (fused.footprint_bytes, 0)
    assert exact.exponentials == 2 * fused.exponentials
    matrix_flops = 4 * w.head_dim * w.pairs
    if w.dtype is Dtype.FP32:
        assert exact.tensor_flops == 0
        assert exact.fp32_flops - fused.fp32_flops == matrix_flops // 2 + w.pairs
    else:
        assert exact.tensor_flops == matrix_flops * 3 // 2
        assert exact.fp32_flops - fused.fp32_flops == w.pairs


@given(w=WORKLOADS)
def test_k_counts_twice_where_l2_has_lost_it(w: Workload) -> None:
    once, twice = exact_statistics_demand(w), exact_statistics_demand(w, k_from_l2=False)
    assert traffic(twice, "K") == 2 * traffic(once, "K") == 2 * w.kv_elements * w.dtype.itemsize
    assert twice.hbm_bytes - once.hbm_bytes == w.kv_elements * w.dtype.itemsize
    assert twice.footprint_bytes == once.footprint_bytes


@given(w=WORKLOADS, block_kv=st.integers(1, 80), strip=st.integers(1, 20))
def test_rows_that_see_a_block_are_whole_strips_with_an_allowed_pair(w: Workload, block_kv: int, strip: int) -> None:
    counted = []
    for first_key in range(0, w.seq_kv, block_kv):
        strips = {row // strip for row in range(w.seq_q) if sees(w, row, first_key)}
        counted.append(sum(row // strip in strips for row in range(w.seq_q)))
    assert rows_that_see(w, block_kv, strip=strip) == tuple(counted)


@pytest.mark.parametrize(("key", "row"), [(0, 0), (128, 0), (129, 0), (144, 16), (159, 16), (160, 32)])
def test_first_rows_are_those_of_strips(key: int, row: int) -> None:
    """With 128 keys more than queries, row i sees key i + 128."""
    w = Workload.of(512, seq_kv=640, causal=True)
    assert first_row_that_sees(w, key, strip=16) == row
    assert first_row_that_sees(replace(w, causal=False), key, strip=16) == 0


@given(w=WORKLOADS, block_kv=st.integers(1, 80), strip=st.integers(1, 20))
def test_a_row_hands_over_between_each_two_of_its_steps(w: Workload, block_kv: int, strip: int) -> None:
    demand = keys_outside_demand(w, block_kv, strip=strip)
    row_steps = handovers = 0
    for row in range(w.seq_q):
        last_of_strip = min(row // strip * strip + strip, w.seq_q) - 1
        steps = sum(sees(w, last_of_strip, first_key) for first_key in range(0, w.seq_kv, block_kv))
        row_steps += max(1, steps)  # the first step takes every row
        handovers += max(0, steps - 1)
    heads, e, d = w.batch * w.heads, w.dtype.itemsize, w.head_dim
    assert traffic(demand, "Q") == heads * row_steps * d * e
    assert traffic(demand, "O fp32") == 2 * heads * handovers * d * 4
    assert traffic(demand, "m") == traffic(demand, "l") == 2 * heads * handovers * 4
    assert traffic(demand, "O") == w.q_elements * e
    assert traffic(demand, "K") == traffic(demand, "V") == w.kv_elements * e


def test_closed_form_without_a_mask() -> None:
    w = Workload.of(4096, heads=1)
    steps = -(-4096 // 192)
    n, d, e = 4096, 128, 2
    assert keys_outside_demand(w, 192).hbm_bytes == e * (steps + 3) * n * d + 8 * (steps - 1) * n * (d + 2)


@given(w=WORKLOADS)
def test_one_block_of_keys_is_the_fused_kernel(w: Workload) -> None:
    """All keys at once: nothing waits between steps."""
    demand = keys_outside_demand(w, w.seq_kv)
    assert demand.hbm_bytes == fused_demand(w).hbm_bytes
    assert demand.stages[0].launches == 1


@given(w=WORKLOADS, block_kv=st.integers(1, 80))
def test_steps_cost_exponentials_and_rescaling_but_no_products(w: Workload, block_kv: int) -> None:
    demand, fused = keys_outside_demand(w, block_kv), fused_demand(w)
    steps = w.rows + sum(rows_that_see(w, block_kv)[1:]) * w.batch * w.heads
    assert demand.tensor_flops == fused.tensor_flops
    assert demand.exponentials - fused.exponentials == steps
    assert demand.fp32_flops - fused.fp32_flops == 2 * w.head_dim * steps - w.q_elements
    assert demand.stages[0].launches == -(-w.seq_kv // block_kv)
    assert demand.intermediate_bytes == w.rows * (4 * w.head_dim + 8)
    assert demand.footprint_bytes == fused.footprint_bytes + demand.intermediate_bytes


def test_both_are_slower_than_fused_and_faster_than_three_kernels_on_an_h200() -> None:
    h200 = find("H200")
    for seq in (4096, 16384, 32768):
        for causal in (False, True):
            w = Workload.of(seq, causal=causal)
            demands = (
                three_kernel_demand(w),
                exact_statistics_demand(w),
                keys_outside_demand(w, 192, strip=16),
                fused_demand(w),
            )
            naive, tiled, fa1, fa2 = (roofline(w, demand, h200).time_s or 0.0 for demand in demands)
            assert fa2 < tiled < naive
            assert fa2 < fa1 < naive


def test_every_launch_of_a_stage_costs_its_overhead() -> None:
    w = Workload.of(4096)
    demand = keys_outside_demand(w, 192)
    once = replace(demand, stages=(replace(demand.stages[0], launches=1),))
    h200 = find("H200")
    many_s, one_s = roofline(w, demand, h200).predicted_time_s, roofline(w, once, h200).predicted_time_s
    assert many_s is not None
    assert one_s is not None
    assert many_s - one_s == pytest.approx(21 * LAUNCH_OVERHEAD_S)


def test_the_backward_is_the_fused_one() -> None:
    w = Workload.of(64, direction=Pass.BWD)
    assert exact_statistics_demand(w) == keys_outside_demand(w, 16) == fused_demand(w)


def test_schedules_go_to_the_stage() -> None:
    schedule = Schedule(7, 1)
    w = Workload.of(64)
    for demand in (
        exact_statistics_demand(w, {"attention": schedule}),
        keys_outside_demand(w, 16, {"attention": schedule}),
    ):
        assert [stage.schedule for stage in demand.stages] == [schedule]
