"""The fa1 rung without a GPU: what it plans, predicts and refuses, and what it computes when emulated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from attnprof.emulator.executor import Mode
from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.ladder.fa1 import (
    CHOICES,
    SPECS,
    STRIP,
    Tiles,
    builds,
    demand,
    plan,
    plan_with,
    steps,
    tiles_for,
    unsupported,
)
from attnprof.model.devices import DeviceSpec, find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.ladder_traffic import keys_outside_demand
from attnprof.model.occupancy import occupancy
from attnprof.model.workload import Pass, Workload
from tests.unit.kernels.attention import (
    WORKLOADS,
    assert_nan_stays_in_its_row,
    assert_right,
    emulate,
    moved_bytes,
    pointers,
    scalars,
)

H200 = find("H200")
LEDGER_NAMES = {"q": "Q", "k": "K", "v": "V", "o": "O", "o_fp32": "O fp32", "m": "m", "l": "l"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_the_launches_are_those_predicted(workload: Workload) -> None:
    (stage,) = demand(workload, H200).stages
    launches = plan(workload, H200).launches
    assert unsupported(workload) is None
    assert {launch.stage for launch in launches} == {stage.name}
    assert stage.launches == len(launches) == math.ceil(workload.seq_kv / tiles_for(workload.head_dim, H200).block_kv)
    assert stage.schedule is not None
    assert stage.schedule.blocks == launches[0].blocks == sum(count for count, _ in stage.schedule.work)
    assert plan(workload, H200).footprint_bytes == demand(workload, H200).footprint_bytes
    assert {launch.build for launch in launches} <= set(builds(H200))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_every_step_takes_each_row_that_sees_a_key_once(workload: Workload) -> None:
    tiles = tiles_for(workload.head_dim, H200)
    for step in steps(workload, tiles):
        rows = workload.seq_q - step.first_row
        each = step.rounds * tiles.round_rows
        assert (step.blocks_a_head - 1) * each < rows <= step.blocks_a_head * each  # no block is idle
        assert step.first_row % STRIP == 0
        first_seeing = max(0, step.first_key - (workload.seq_kv - workload.seq_q)) if workload.causal else 0
        assert step.first_row == (first_seeing // STRIP * STRIP if step.first_key else 0)
        assert step.rounds <= tiles.most_rounds


def test_blocks_fill_the_sms_with_hardly_a_gap() -> None:
    """132 blocks at once: one wave where that does, and never more than 32 rounds a block."""
    for seq, blocks, rounds in ((1024, 128, 2), (4096, 128, 8), (16384, 128, 32), (65536, 512, 32)):
        workload = Workload.of(seq)
        assert steps(workload, tiles_for(128, H200))[0].rounds == rounds
        assert plan(workload, H200).launches[0].blocks == blocks
    first, *_, last = plan(Workload.of(16384, causal=True), H200).launches
    assert (first.blocks, last.blocks) == (128, 64)


def test_the_ledger_at_32768() -> None:
    asked = demand(Workload.of(32768), H200)
    one = 32 * 32768 * 128
    # 74 steps; O waits in fp32 and its m and l with it.
    assert asked.hbm_bytes == 2 * one * (74 + 3) + 73 * (8 * one + 16 * 32 * 32768)
    assert asked.tensor_flops == 17_592_186_044_416
    assert asked.intermediate_bytes == 4 * one + 8 * 32 * 32768


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload.of(64, direction=Pass.BWD), "forward"),
        (Workload.of(64, dtype=Dtype.FP32), "fp16 or bf16"),
        (Workload.of(64, head_dim=63), "64 or 128"),
        (Workload.of(64, head_dim=256), "64 or 128"),
        (Workload.of(2**30 + 1, heads=1), "1073741824"),
        (Workload.of(64, seq_kv=192 * 65_536 + 1), "12582912"),
        (Workload.of(1, batch=2**16, heads=2**15), "2147483647 rows"),
    ],
    ids=lambda value: value.label if isinstance(value, Workload) else value,
)
def test_refusals_name_what_is_allowed_and_have_a_ledger_all_the_same(workload: Workload, reason: str) -> None:
    refusal = unsupported(workload)
    assert refusal is not None
    assert refusal.startswith("fa1 ")
    assert reason in refusal
    (stage,) = demand(workload, H200).stages[-1:]
    assert stage.schedule is None
    block_kv = 896 if workload.head_dim == 64 else 448
    assert demand(workload, H200) == keys_outside_demand(workload, block_kv, strip=STRIP)


@pytest.mark.parametrize(("batch", "heads"), [(65_535, 1), (65_536, 1), (100_000, 3), (7, 65_537)])
def test_the_grid_holds_any_number_of_heads(batch: int, heads: int) -> None:
    workload = Workload.of(300, batch=batch, heads=heads)
    for launch in plan(workload, H200).launches:
        assert launch.grid == (batch * heads, 1, 1)


def test_arguments_are_those_of_the_entry_point() -> None:
    workload = Workload.of(200, seq_kv=1000, batch=2, heads=6, kv_heads=3, head_dim=64, causal=True)
    _, launch = plan(workload, H200).launches
    assert pointers(launch) == ["q", "k", "v", "o", "o_fp32", "m", "l"]
    *integers, (kind, value) = scalars(launch)
    # Lengths, heads a KV head; the second block of keys, which rows from 96 on see, in a block of one round.
    assert integers == [("i32", each) for each in (200, 1000, 2, 896, 96, 1, 1)]
    assert kind == "f32"
    assert math.isclose(2**value, math.exp(1 / math.sqrt(64)))


@pytest.mark.parametrize("device", [device for device in table() if device.compute_capability >= (8, 0)], ids=str)
@pytest.mark.parametrize("head_dim", CHOICES)
def test_eight_warps_fit_an_sm_of_every_gpu(device: DeviceSpec, head_dim: int) -> None:
    tiles = tiles_for(head_dim, device)
    assert tiles.smem_bytes <= device.smem_per_block_bytes
    assert tiles.warps * tiles.blocks_per_sm == 8
    assert tiles.blocks_at_once == tiles.blocks_per_sm * device.sm_count
    assert device.architecture is not None
    fitting = occupancy(device.architecture, threads=tiles.threads, registers=255, smem_bytes=tiles.smem_bytes)
    assert fitting.blocks_per_sm >= tiles.blocks_per_sm


@pytest.mark.parametrize(
    ("workload", "distribution"),
    [
        (Workload.of(128, seq_kv=896, heads=2, head_dim=64), Distribution.NORMAL),  # whole tiles
        (Workload.of(129, seq_kv=500, heads=2, kv_heads=1, dtype=Dtype.BF16), Distribution.NORMAL),
        (Workload.of(5, seq_kv=2, heads=2, head_dim=64, causal=True), Distribution.NORMAL),  # empty rows
        (Workload.of(257, seq_kv=65, batch=2, heads=1, head_dim=64, causal=True), Distribution.NORMAL),  # empty strips
        (Workload.of(257, seq_kv=200, batch=2, heads=1, causal=True), Distribution.NORMAL),
        (Workload.of(200, seq_kv=600, heads=2, causal=True), Distribution.NORMAL),
        (Workload.of(1, seq_kv=1000, heads=4, kv_heads=2), Distribution.NORMAL),
        (Workload.of(300, heads=2, head_dim=64, causal=True), Distribution.LARGE_LOGITS),
        (Workload.of(70, seq_kv=2000, heads=1, head_dim=64), Distribution.DOMINANT_KEY),  # maxima that grow late
        (Workload.of(70, seq_kv=300, heads=1, head_dim=64), Distribution.TINY),
    ],
    ids=str,
)
def test_emulated_it_computes_attention(workload: Workload, distribution: Distribution) -> None:
    assert_right(workload, plan(workload, H200), distribution)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "causal"), [(48, 1792, False), (464, 960, True), (300, 1111, True), (300, 270, True)]
)
def test_emulated_traffic_is_the_ledger_with_no_conflict_and_no_fault(
    head_dim: int, seq_q: int, seq_kv: int, causal: bool
) -> None:
    workload = Workload.of(seq_q, seq_kv=seq_kv, heads=2, kv_heads=1, head_dim=head_dim, causal=causal)
    trace = assert_right(workload, plan(workload, H200), mode=Mode.ALL)
    predicted = {(line.tensor, line.direction): line.bytes for line in demand(workload, H200).ledger if line.bytes}
    assert moved_bytes(trace, LEDGER_NAMES) == predicted
    assert sum(kernel.counters.bank_conflicts for kernel in trace.kernels) == 0
    if not causal:
        # The ledger counts one correction a row and block; four lanes evaluate one for each sub-block of keys.
        surplus = workload.rows * (4 * seq_kv // tiles_for(head_dim, H200).sub_kv - len(trace.kernels))
        assert sum(kernel.counters.matrix_flops for kernel in trace.kernels) == demand(workload, H200).tensor_flops
        assert (
            sum(kernel.counters.exponentials for kernel in trace.kernels)
            == demand(workload, H200).exponentials + surplus
        )


@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(64, block_kv=64),
        Tiles(64, block_kv=160, sub_kv=80, warps=2),
        Tiles(128, block_kv=32, sub_kv=16, warps=4, blocks_per_sm=2),
        Tiles(128, block_kv=192, sub_kv=96, blocks_at_once=1, most_rounds=2),
        tiles_for(128, find("L4")),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_emulated_other_tiles_compute_attention(tiles: Tiles, causal: bool) -> None:
    workload = Workload.of(250, seq_kv=330, heads=2, kv_heads=1, head_dim=tiles.head_dim, causal=causal)
    assert_right(workload, plan_with(workload, tiles), Distribution.DOMINANT_KEY)


def test_emulated_how_rows_are_shared_out_changes_no_bit() -> None:
    workload = Workload.of(400, seq_kv=1000, heads=1, head_dim=64, causal=True)
    inputs = make_inputs(workload)
    tiles = tiles_for(64, H200)
    many, _ = emulate(workload, plan_with(workload, tiles), inputs, Mode.FAST)
    few, _ = emulate(workload, plan_with(workload, replace(tiles, blocks_at_once=1)), inputs, Mode.FAST)
    assert plan_with(workload, replace(tiles, blocks_at_once=1)).launches[0].blocks == 1
    assert np.array_equal(many, few)


def test_emulated_nan_reaches_the_rows_that_it_touches_and_no_other() -> None:
    workload = Workload.of(70, seq_kv=1000, heads=1, head_dim=64)
    assert_nan_stays_in_its_row(workload, plan(workload, H200))


def test_it_stands_between_tiled_and_fa2() -> None:
    (spec,) = SPECS
    assert (spec.name, spec.rung, spec.rounds) == ("fa1", 40, ("p", "o"))
