"""Roof time, bound, prediction, and the JSON row."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.ceilings import UNITS
from attnprof.model.demand import Demand, LedgerLine, Schedule, Stage
from attnprof.model.devices import DeviceSpec, find, from_facts
from attnprof.model.dtypes import Dtype
from attnprof.model.roofline import LAUNCH_OVERHEAD_S, roofline, row
from attnprof.model.traffic import fused_demand, kv_blocks_visited, three_kernel_demand
from attnprof.model.workload import Pass, Workload

A100 = find("A100-SXM4-80GB")

STAGES = st.builds(
    lambda name, size, tensor, fp32, exp, blocks: Stage(
        name, (LedgerLine(name, "X", "read", size),), tensor, fp32, exp, Schedule(blocks, 1) if blocks else None
    ),
    name=st.just("x"),
    size=st.integers(0, 10**12),
    tensor=st.integers(0, 10**15),
    fp32=st.integers(0, 10**13),
    exp=st.integers(0, 10**12),
    blocks=st.integers(0, 2000),
)
DEMANDS = st.lists(STAGES, min_size=1, max_size=4).map(lambda stages: Demand(tuple(stages), 1))
W = Workload.of(1024)


def test_acceptance_naive_and_fused_on_the_a100() -> None:
    w = Workload.of(32768)
    naive = roofline(w, three_kernel_demand(w), A100)
    fused = roofline(w, fused_demand(w), A100)
    assert naive.arithmetic_intensity is not None
    assert round(naive.arithmetic_intensity, 2) == 63.75
    assert naive.bound == "hbm"
    assert fused.arithmetic_intensity == 16384
    assert fused.bound == "tensor"
    assert naive.time_s is not None
    assert fused.time_s is not None
    assert round(naive.time_s * 1e3, 1) == 135.3
    assert round(fused.time_s * 1e3, 1) == 56.4
    assert round(naive.time_s / fused.time_s, 2) == 2.40


def test_exponentials_rival_the_matrix_work_at_head_dim_64_on_hopper() -> None:
    w = Workload.of(16384, head_dim=64)
    times = roofline(w, fused_demand(w), find("H200"), "clock").stages[0].unit_time_s
    assert times["tensor"] is not None
    assert times["exp"] is not None
    assert times["exp"] / times["tensor"] == pytest.approx(1.0)


@given(demand=DEMANDS)
def test_roof_is_at_least_every_unit_alone(demand: Demand) -> None:
    found = roofline(W, demand, A100)
    assert found.time_s is not None
    assert found.predicted_time_s is not None
    totals = {
        "hbm": demand.hbm_bytes,
        "tensor": demand.tensor_flops,
        "exp": demand.exponentials,
        "fp32": demand.fp32_flops,
    }
    for ceiling in found.ceilings.known:
        assert found.time_s >= totals[ceiling.unit] / ceiling.per_s * (1 - 1e-12)
    assert found.predicted_time_s >= found.time_s + len(demand.stages) * LAUNCH_OVERHEAD_S * (1 - 1e-9)


@given(demand=DEMANDS, unit=st.sampled_from(["ledger", "tensor_flops", "fp32_flops", "exponentials"]))
def test_more_work_is_never_faster(demand: Demand, unit: str) -> None:
    first = demand.stages[0]
    more = {
        "ledger": (*first.ledger, LedgerLine(first.name, "Y", "write", 10**9)),
        "tensor_flops": first.tensor_flops + 10**12,
        "fp32_flops": first.fp32_flops + 10**10,
        "exponentials": first.exponentials + 10**9,
    }
    larger = replace(demand, stages=(replace(first, **{unit: more[unit]}), *demand.stages[1:]))
    before, after = roofline(W, demand, A100), roofline(W, larger, A100)
    assert before.time_s is not None
    assert after.time_s is not None
    assert after.time_s >= before.time_s
    assert after.predicted_time_s >= before.predicted_time_s  # type: ignore[operator]


@given(demand=DEMANDS)
def test_the_bound_holds_the_largest_share(demand: Demand) -> None:
    found = roofline(W, demand, A100)
    share = dict.fromkeys(UNITS, 0.0)
    for stage in found.stages:
        if stage.bound is not None and stage.time_s is not None:
            share[stage.bound] += stage.time_s
    if found.bound is None:
        assert found.time_s == 0
    else:
        assert share[found.bound] == max(share.values())


def test_quantisation_slows_the_sms_and_not_the_memory() -> None:
    line = (LedgerLine("x", "X", "read", 2_039_000_000),)
    compute = Stage("x", line, tensor_flops=3_120_000_000_000, schedule=Schedule(109, 1))
    found = roofline(W, Demand((compute,), 1), A100)
    assert found.time_s == pytest.approx(0.01)
    assert found.predicted_time_s == pytest.approx(0.01 * 216 / 109 + LAUNCH_OVERHEAD_S)
    memory = replace(compute, tensor_flops=0)
    assert roofline(W, Demand((memory,), 1), A100).predicted_time_s == pytest.approx(0.001 + LAUNCH_OVERHEAD_S)


def test_a_cause_that_several_units_share_is_said_once() -> None:
    orin = from_facts("Orin", (8, 7), sm_count=16, memory_clock_hz=3_200_000_000, memory_bus_bits=256)
    found = roofline(W, fused_demand(W), orin)
    assert found.reason == "no sourced tensor rate for sm_87; Orin: its SM clock is unknown"


def test_an_unknown_ceiling_makes_an_unknown_roof_with_the_reason() -> None:
    w = Workload.of(1024, dtype=Dtype.BF16)
    found = roofline(w, fused_demand(w), find("V100"))
    assert (found.time_s, found.bound, found.predicted_time_s) == (None, None, None)
    assert found.reason == "the tensor cores of sm_70 take no bf16 (sm_80 and later do)"
    data = json.loads(json.dumps(row("fa2", w, fused_demand(w), found), allow_nan=False))
    assert data["roof_time_s"] is None
    assert data["reason"] == found.reason
    assert data["hbm_bytes"] == fused_demand(w).hbm_bytes


def test_a_ceiling_that_nobody_asks_for_may_be_unknown() -> None:
    w = Workload.of(1024, dtype=Dtype.FP32)
    found = roofline(w, fused_demand(w), A100)
    assert found.bound == "fp32"
    assert found.reason is None


@pytest.mark.parametrize(
    ("seq", "heads", "head_dim", "resident"),
    [(512, 8, 64, "footprint"), (32768, 32, 128, None), (4096, 1, 128, "footprint"), (4096, 1, 1024, "intermediates")],
)
def test_l2_residency(seq: int, heads: int, head_dim: int, resident: str | None) -> None:
    w = Workload.of(seq, heads=heads, head_dim=head_dim)
    l2_bytes = 40 * 2**20
    demand = three_kernel_demand(w)
    device = replace(A100, l2_bytes=l2_bytes)
    assert roofline(w, demand, device).l2_resident == resident
    assert roofline(w, demand, replace(A100, l2_bytes=None)).l2_resident is None


def test_row_has_what_the_json_promises() -> None:
    w = Workload.of(128, seq_kv=256, kv_heads=8, batch=2, causal=True, dtype=Dtype.BF16, direction=Pass.BWD)
    demand = fused_demand(w)
    data = json.loads(
        json.dumps(row("fa2", w, demand, roofline(w, demand, A100), speedup_vs_naive=1.5), allow_nan=False)
    )
    promised = {
        "kernel": "fa2",
        "status": "ok",
        "reason": None,
        "batch": 2,
        "heads": 32,
        "kv_heads": 8,
        "seq_q": 128,
        "seq_kv": 256,
        "head_dim": 128,
        "dtype": "bf16",
        "causal": True,
        "pass": "bwd",
        "flops": w.flops,
        "hbm_bytes": demand.hbm_bytes,
        "speedup_vs_naive": 1.5,
    }
    assert {key: data[key] for key in promised} == promised
    assert data["ledger"][0] == {"stage": "rowsum", "tensor": "dO", "direction": "read", "bytes": w.q_elements * 2}
    assert sum(line["bytes"] for line in data["ledger"]) == data["hbm_bytes"]
    assert data["bound"] in UNITS
    assert data["predicted_time_s"] >= data["roof_time_s"] > 0
    assert sum(stage["roof_time_s"] for stage in data["stages"]) == pytest.approx(data["roof_time_s"])


def test_an_empty_ledger_has_no_intensity() -> None:
    found = roofline(W, Demand((Stage("x", (), tensor_flops=1),), 0), A100)
    assert found.arithmetic_intensity is None


def test_a_device_without_facts_still_gives_rows() -> None:
    device: DeviceSpec = from_facts("NVIDIA GB10", (12, 1), sm_count=48)
    found = roofline(W, three_kernel_demand(W), device)
    assert found.time_s is None
    assert found.reason is not None
    json.dumps(row("naive", W, three_kernel_demand(W), found), allow_nan=False)


def causal_sweep() -> None:
    for exponent in range(10, 16):
        w = Workload.of(2**exponent, causal=True)
        visited = kv_blocks_visited(w, 128, 64)
        runs = tuple((1, blocks) for _ in range(w.heads) for blocks in visited)
        schedule = Schedule(len(runs), 1, runs)
        roofline(w, fused_demand(w, {"attention": schedule}), A100)
        roofline(w, three_kernel_demand(w), A100)


def test_six_lengths_take_less_than_10_ms() -> None:
    causal_sweep()  # reads the GPU table once
    times = []
    for _ in range(7):
        start = time.process_time()
        causal_sweep()
        times.append(time.process_time() - start)
    assert min(times) < 0.010


def test_the_roofline_needs_no_numpy() -> None:
    code = "import sys, attnprof.model.roofline, attnprof.model.traffic; sys.exit('numpy' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
