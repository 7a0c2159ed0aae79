"""Ledgers of three-kernel and fused attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.demand import Demand, Schedule
from attnprof.model.dtypes import Dtype
from attnprof.model.traffic import (
    fused_demand,
    fused_stages,
    kv_blocks_visited,
    recomputation_saves_bytes,
    three_kernel_demand,
    three_kernel_stages,
)
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
    direction=st.sampled_from(list(Pass)),
)


def tensors(demand: Demand) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for line in demand.ledger:
        key = (line.tensor, line.direction)
        found[key] = found.get(key, 0) + line.bytes
    return found


def test_article_figures_at_32768() -> None:
    w = Workload.of(32768)
    assert three_kernel_demand(w).hbm_bytes == 275_951_648_768
    assert fused_demand(w).hbm_bytes == 1_073_741_824
    assert w.flops == 17_592_186_044_416


def test_linear_and_quadratic_terms_of_one_head_at_4096() -> None:
    found = tensors(three_kernel_demand(Workload.of(4096, heads=1)))
    quadratic = sum(size for (name, _), size in found.items() if name in "SP")
    linear = sum(size for (name, _), size in found.items() if name in "QKVO")
    assert linear == 8 * 4096 * 128 == 4_194_304
    assert quadratic == 8 * 4096 * 4096 == 134_217_728


def test_scores_at_32768() -> None:
    one_head = Workload.of(32768, heads=1)
    assert tensors(three_kernel_demand(one_head))["S", "write"] == 2 * 2**30
    assert tensors(three_kernel_demand(replace(one_head, dtype=Dtype.FP32)))["S", "write"] == 4 * 2**30


def test_p_takes_the_place_of_s_so_that_32_heads_fit_the_gpu() -> None:
    demand = three_kernel_demand(Workload.of(32768))
    assert demand.intermediate_bytes == 64 * 2**30
    assert demand.footprint_bytes == 65 * 2**30


@given(w=WORKLOADS)
def test_ledger_is_the_sum_of_its_formula(w: Workload) -> None:
    e = w.dtype.itemsize
    q, k, s, row = w.q_elements * e, w.kv_elements * e, w.pairs * e, 4 * w.rows
    if w.direction is Pass.FWD:
        assert three_kernel_demand(w).hbm_bytes == 2 * q + 2 * k + 4 * s
        assert fused_demand(w).hbm_bytes == 2 * q + 2 * k
        assert fused_demand(w, lse=True).hbm_bytes == 2 * q + 2 * k + row
    else:
        # dO twice, Q, dQ; V, K, dV, dK; P twice, dP twice, dS three times.
        assert three_kernel_demand(w).hbm_bytes == 4 * q + 4 * k + 7 * s
        # rowsum: dO, O, D. gradients: Q, dO, dQ; K, V, dK, dV; LSE, D.
        assert fused_demand(w).hbm_bytes == 5 * q + 4 * k + 3 * row


@given(w=WORKLOADS)
def test_matrix_work_runs_on_the_unit_that_takes_the_type(w: Workload) -> None:
    forward = 4 * w.head_dim * w.pairs
    products = {True: (1.0, 1.0), False: (2.0, 2.5)}[w.direction is Pass.FWD]
    for demand, factor in zip((three_kernel_demand(w), fused_demand(w)), products, strict=True):
        if w.dtype is Dtype.FP32:
            assert demand.tensor_flops == 0
            assert demand.fp32_flops > forward * factor
        else:
            assert demand.tensor_flops == forward * factor
    assert fused_demand(w).exponentials == w.pairs
    assert three_kernel_demand(w).exponentials == (w.pairs if w.direction is Pass.FWD else 0)


@given(w=WORKLOADS)
def test_every_written_tensor_is_allocated(w: Workload) -> None:
    for demand in (three_kernel_demand(w), fused_demand(w)):
        written = {line.tensor: line.bytes for line in demand.ledger if line.direction == "write"}
        assert demand.intermediate_bytes <= demand.footprint_bytes
        assert max(written.values()) <= demand.footprint_bytes
        assert all(line.stage == stage.name for stage in demand.stages for line in stage.ledger)


def test_softmax_costs_five_an_element() -> None:
    w = Workload.of(64, heads=1)
    softmax = three_kernel_stages(w)[1]
    assert softmax.fp32_flops + softmax.exponentials == 5 * w.pairs


@given(w=WORKLOADS)
def test_recomputation_trades_pairs_for_rows(w: Workload) -> None:
    e = w.dtype.itemsize
    assert recomputation_saves_bytes(w) == 7 * w.pairs * e - w.q_elements * e - 12 * w.rows


def test_schedules_go_to_the_stage_of_their_name() -> None:
    schedule = Schedule(7, 1)
    w = Workload.of(64)
    assert [s.schedule for s in three_kernel_stages(w, {"softmax": schedule})] == [None, schedule, None]
    assert fused_stages(w, {"attention": schedule})[0].schedule is schedule


@given(
    seq_q=st.integers(1, 70),
    seq_kv=st.integers(1, 70),
    block_q=st.integers(1, 20),
    block_kv=st.integers(1, 20),
    causal=st.booleans(),
)
def test_visited_blocks_are_those_with_an_allowed_pair(
    seq_q: int, seq_kv: int, block_q: int, block_kv: int, causal: bool
) -> None:
    w = Workload.of(seq_q, seq_kv=seq_kv, heads=1, causal=causal)
    counted = []
    for first in range(0, seq_q, block_q):
        rows = range(first, min(first + block_q, seq_q))
        blocks = {j // block_kv for i in rows for j in range(seq_kv) if not causal or j <= i + seq_kv - seq_q}
        counted.append(len(blocks))
    assert kv_blocks_visited(w, block_q, block_kv) == tuple(counted)


@pytest.mark.parametrize("direction", list(Pass))
def test_stages_are_named_once(direction: Pass) -> None:
    w = Workload.of(64, direction=direction)
    for stages in (three_kernel_stages(w), fused_stages(w)):
        names = [stage.name for stage in stages]
        assert len(set(names)) == len(names)
