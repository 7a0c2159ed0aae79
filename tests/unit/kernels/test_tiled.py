"""The tiled rung without a GPU: what it plans, predicts and refuses, and what it computes when emulated."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from attnprof.emulator.executor import Mode
from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.ladder.tiled import (
    CHOICES,
    SPECS,
    Tiles,
    builds,
    demand,
    plan,
    plan_with,
    tiles_for,
    unsupported,
)
from attnprof.model.devices import DeviceSpec, find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.ladder_traffic import exact_statistics_demand
from attnprof.model.occupancy import occupancy
from attnprof.model.rounding import decode
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


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_the_stage_launched_is_the_stage_predicted(workload: Workload) -> None:
    (stage,) = demand(workload, H200).stages
    (launch,) = plan(workload, H200).launches
    assert unsupported(workload) is None
    assert (stage.name, stage.launches) == (launch.stage, 1)
    assert stage.schedule is not None
    assert stage.schedule.blocks == launch.blocks == sum(count for count, _ in stage.schedule.work)
    assert plan(workload, H200).footprint_bytes == demand(workload, H200).footprint_bytes


def test_half_as_much_matrix_work_again_and_not_a_byte_more_at_32768() -> None:
    asked = demand(Workload.of(32768), H200)
    assert asked.hbm_bytes == 1_073_741_824
    assert asked.tensor_flops == 17_592_186_044_416 * 3 // 2
    assert asked.exponentials == 2 * 32 * 32768**2


@pytest.mark.parametrize(
    ("workload", "k_reads"),
    [
        # 264 blocks at once. 256 query blocks a head: two heads, 16 MiB of K.
        (Workload.of(32768), 1),
        (Workload.of(1024, heads=64), 1),
        # One query block a head: 64 heads, 512 MiB of K, and 50 MiB of L2.
        (Workload.of(1, seq_kv=32768, heads=64), 2),
        # The same with one KV head for all of them.
        (Workload.of(1, seq_kv=32768, heads=64, kv_heads=1), 1),
    ],
    ids=lambda value: value.label if isinstance(value, Workload) else str(value),
)
def test_k_comes_twice_where_l2_is_too_small_for_the_heads_at_work(workload: Workload, k_reads: int) -> None:
    lines = [line for line in demand(workload, H200).ledger if line.tensor == "K"]
    assert len(lines) == k_reads
    assert demand(workload, replace(H200, l2_bytes=None)).hbm_bytes == exact_statistics_demand(workload).hbm_bytes


def test_causal_blocks_start_longest_first() -> None:
    (stage,) = demand(Workload.of(1024, heads=3, causal=True), H200).stages
    assert stage.schedule is not None
    assert stage.schedule.work == tuple((3, size) for size in (16, 14, 12, 10, 8, 6, 4, 2))


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload.of(64, direction=Pass.BWD), "forward"),
        (Workload.of(64, dtype=Dtype.FP32), "fp16 or bf16"),
        (Workload.of(64, head_dim=63), "64 or 128"),
        (Workload.of(64, head_dim=256), "64 or 128"),
        (Workload.of(2**30 + 1, heads=1), "1073741824"),
        (Workload.of(1, batch=2**17, heads=2**16), "4294836225 heads"),
    ],
    ids=lambda value: value.label if isinstance(value, Workload) else value,
)
def test_refusals_name_what_is_allowed_and_have_a_ledger_all_the_same(workload: Workload, reason: str) -> None:
    refusal = unsupported(workload)
    assert refusal is not None
    assert refusal.startswith("tiled ")
    assert reason in refusal
    assert demand(workload, H200) == exact_statistics_demand(workload)


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (65_535, 1), (65_536, 1), (100_000, 3), (7, 65_537)])
def test_the_grid_holds_any_number_of_heads(batch: int, heads: int) -> None:
    workload = Workload.of(300, batch=batch, heads=heads)
    (launch,) = plan(workload, H200).launches
    (stage,) = demand(workload, H200).stages
    x, y, z = launch.grid
    assert x == math.ceil(300 / 128)
    assert max(y, z) <= 65_535
    assert 0 <= y * z - batch * heads < z  # no head is left out, and hardly a block is idle
    assert stage.schedule is not None
    assert stage.schedule.blocks == x * y * z


def test_arguments_are_those_of_the_entry_point() -> None:
    workload = Workload.of(100, seq_kv=130, batch=2, heads=6, kv_heads=3, head_dim=64)
    (launch,) = plan(workload, H200).launches
    assert pointers(launch) == ["q", "k", "v", "o"]
    *integers, (kind, value) = scalars(launch)
    assert integers == [("i32", 100), ("i32", 130), ("i32", 12), ("i32", 2)]
    assert kind == "f32"
    assert math.isclose(2**value, math.exp(1 / math.sqrt(64)))


@pytest.mark.parametrize("device", [device for device in table() if device.compute_capability >= (8, 0)], ids=str)
@pytest.mark.parametrize("head_dim", CHOICES)
def test_two_blocks_fit_an_sm_of_every_gpu(device: DeviceSpec, head_dim: int) -> None:
    tiles = tiles_for(head_dim, device)
    assert tiles.smem_bytes <= device.smem_per_block_bytes
    assert device.architecture is not None
    fitting = occupancy(device.architecture, threads=tiles.threads, registers=255, smem_bytes=tiles.smem_bytes)
    assert fitting.blocks_per_sm >= tiles.blocks_per_sm == 2


def test_more_shared_memory_means_larger_tiles() -> None:
    chosen = [tiles_for(128, find(name)) for name in ("H200", "A100-SXM4-80GB", "L4")]
    assert [tiles.smem_bytes for tiles in chosen] == [96 * 1024, 64 * 1024, 48 * 1024]
    assert len(set(builds(H200))) == 8


@pytest.mark.parametrize(
    ("workload", "distribution"),
    [
        (Workload.of(256, heads=2, head_dim=64), Distribution.NORMAL),  # whole tiles
        (Workload.of(129, seq_kv=200, heads=2, kv_heads=1, dtype=Dtype.BF16), Distribution.NORMAL),
        (Workload.of(5, seq_kv=2, heads=2, head_dim=64, causal=True), Distribution.NORMAL),  # empty rows
        (Workload.of(257, seq_kv=65, batch=2, heads=1, head_dim=64, causal=True), Distribution.NORMAL),  # empty blocks
        (Workload.of(65, seq_kv=300, heads=2, causal=True), Distribution.NORMAL),
        (Workload.of(2, seq_kv=1, heads=1, head_dim=64), Distribution.NORMAL),  # lanes that meet no key
        (Workload.of(130, heads=2, head_dim=64, causal=True), Distribution.LARGE_LOGITS),
        (Workload.of(70, seq_kv=330, heads=1, head_dim=64), Distribution.DOMINANT_KEY),  # maxima that grow late
        (Workload.of(70, heads=1, head_dim=64), Distribution.TINY),
        (Workload.of(70, heads=1, head_dim=64, dtype=Dtype.BF16), Distribution.TINY),
    ],
    ids=str,
)
def test_emulated_it_computes_attention(workload: Workload, distribution: Distribution) -> None:
    assert_right(workload, plan(workload, H200), distribution)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_emulated_traffic_is_the_ledger_with_no_conflict_and_no_fault(head_dim: int, causal: bool) -> None:
    # 320 keys are whole tiles of both walks: 64 and, at d 128, 80 keys.
    workload = Workload.of(256, seq_kv=320, heads=2, kv_heads=1, head_dim=head_dim, causal=causal)
    trace = assert_right(workload, plan(workload, H200), mode=Mode.ALL)
    predicted = {(line.tensor, line.direction): line.bytes for line in demand(workload, H200).ledger}
    assert moved_bytes(trace, {"q": "Q", "k": "K", "v": "V", "o": "O"}) == predicted
    (kernel,) = trace.kernels
    assert kernel.counters.bank_conflicts == 0
    assert kernel.counters.coalescing_efficiency == 1.0
    if not causal:
        # The running maxima of four lanes a row, in each step, and their merge.
        extra = 4 * (320 // tiles_for(head_dim, H200).statistics_kv + 1) * workload.rows
        assert kernel.counters.matrix_flops == demand(workload, H200).tensor_flops
        assert kernel.counters.exponentials == demand(workload, H200).exponentials + extra


D64 = tiles_for(64, H200)


@pytest.mark.parametrize(
    "tiles",
    [
        replace(D64, statistics_kv=128),
        replace(D64, statistics_kv=96),
        replace(D64, block_kv=48, statistics_kv=80),
        replace(D64, block_q=256, warps=8, blocks_per_sm=1),
        replace(D64, block_q=64),
        *CHOICES[128][1:],
    ],
    ids=str,
)
def test_emulated_other_tiles_compute_attention(tiles: Tiles) -> None:
    workload = Workload.of(150, seq_kv=210, heads=2, kv_heads=1, head_dim=tiles.head_dim, causal=True)
    assert_right(workload, plan_with(workload, tiles), Distribution.DOMINANT_KEY)


def test_emulated_small_probabilities_keep_their_precision() -> None:
    """Equal weights of 20,000 keys lie below what fp16 holds in full, 2^-14; O would lose bits with them."""
    workload = Workload.of(1, seq_kv=20_000, heads=1, head_dim=64)
    inputs = {name: values.copy() for name, values in make_inputs(workload).items()}
    inputs["q"][:] = 0
    inputs["v"][:] = 1
    o, _ = emulate(workload, plan(workload, H200), inputs, Mode.FAST)
    assert np.all(decode(o, Dtype.FP16) == 1.0)


def test_emulated_nan_reaches_the_rows_that_it_touches_and_no_other() -> None:
    workload = Workload.of(70, heads=1, head_dim=64)
    assert_nan_stays_in_its_row(workload, plan(workload, H200))


def test_it_stands_between_naive_and_fa1() -> None:
    (spec,) = SPECS
    assert (spec.name, spec.rung, spec.rounds) == ("tiled", 30, ("p", "o"))
