"""The fa2-decode rung without a GPU: what it plans, predicts and refuses, and what it computes when emulated."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.kernels.fa2_decode_tiles import SHAPES, Tiles, fitted
from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.ladder.fa2_decode import (
    FILE,
    SPECS,
    builds,
    demand,
    plan,
    plan_with,
    rows_per_kv_head,
    splits_for,
    tiles_for,
    unsupported,
)
from attnprof.kernels.plan import LaunchPlan, Pointer, Scalar
from attnprof.kernels.trial import run_once
from attnprof.kernels.verify import verify
from attnprof.model.devices import DeviceSpec, find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.occupancy import occupancy
from attnprof.model.roofline import roofline
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Pass, Workload

H200 = find("H200")
A100 = find("A100-SXM4-80GB")
L4 = find("L4")
MODERN = [device for device in table() if device.compute_capability >= (8, 0)]


def decode(seq_q: int, seq_kv: int, **sizes: object) -> Workload:
    """A decode-shaped workload: 32 query heads on 8 KV heads unless told."""
    return Workload.of(seq_q, seq_kv=seq_kv, **{"heads": 32, "kv_heads": 8, **sizes})  # type: ignore[arg-type]


WORKLOADS = [
    decode(seq_q, seq_kv, batch=batch, kv_heads=kv_heads, head_dim=head_dim, causal=seq_q > 1)
    for (seq_q, seq_kv), (batch, head_dim), kv_heads in product(
        [(1, 1), (1, 4096), (5, 2), (8, 32768), (16, 100_000)], [(1, 64), (16, 128), (2, 256)], [1, 8, 32]
    )
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_the_stages_launched_are_the_stages_predicted(workload: Workload) -> None:
    stages = demand(workload, H200).stages
    launches = plan(workload, H200).launches
    assert [stage.name for stage in stages] == [launch.stage for launch in launches]
    assert [stage.schedule.blocks for stage in stages if stage.schedule] == [launch.blocks for launch in launches]
    assert launches[0].stage == "attention"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_tensors_take_the_predicted_memory(workload: Workload) -> None:
    a_plan, asked = plan(workload, H200), demand(workload, H200)
    assert a_plan.footprint_bytes == asked.footprint_bytes
    scratch = sum(tensor.nbytes for tensor in a_plan.tensors if tensor.role == "scratch")
    assert scratch == asked.intermediate_bytes
    written = sum(line.bytes for line in asked.ledger if line.tensor in ("O parts", "statistics"))
    assert written == 2 * scratch


def test_the_ledger_of_one_query_over_32k_keys() -> None:
    workload = decode(1, 32768)
    asked = demand(workload, H200)
    splits = plan(workload, H200).tensor("o_parts").shape[0]
    lines = {(line.stage, line.tensor, line.direction): line.bytes for line in asked.ledger}
    row = 32 * 128  # elements of Q
    assert lines == {
        ("attention", "Q", "read"): 2 * row,
        ("attention", "K", "read"): 67_108_864,
        ("attention", "V", "read"): 67_108_864,
        ("attention", "O parts", "write"): 4 * row * splits,
        ("attention", "statistics", "write"): 8 * 32 * splits,
        ("combine", "O parts", "read"): 4 * row * splits,
        ("combine", "statistics", "read"): 8 * 32 * splits,
        ("combine", "O", "write"): 2 * row,
        ("combine", "LSE", "write"): 4 * 32,
    }
    roof = roofline(workload, asked, H200)
    assert roof.bound == "hbm"
    assert asked.hbm_bytes < 1.01 * 2 * 67_108_864


@pytest.mark.parametrize("workload", [Workload.of(17), decode(1, 64, head_dim=40), Workload.of(1, direction=Pass.BWD)])
def test_demand_covers_what_the_kernel_does_not(workload: Workload) -> None:
    assert demand(workload, H200) == fused_demand(workload)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload.of(1, direction=Pass.BWD), "forward"),
        (Workload.of(1, dtype=Dtype.FP32), "fp16 or bf16"),
        (Workload.of(1, head_dim=80), "takes head dim 64, 128 or 256, not 80"),
        (Workload.of(17, seq_kv=64), "up to 16 queries: fa2 is for more"),
        (decode(1, 2**30 + 1), "1073741824 keys"),
        (Workload.of(1, batch=2**26, heads=32), "2147483647 rows"),
        (Workload.of(1, seq_kv=2**26, heads=32), "2147483647 rows"),
    ],
)
def test_refusals_name_what_is_allowed(workload: Workload, reason: str) -> None:
    refusal = unsupported(workload)
    assert refusal is not None
    assert reason in refusal


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_what_it_takes_is_not_refused(workload: Workload) -> None:
    assert unsupported(workload) is None


@pytest.mark.parametrize(
    ("seq_q", "group", "rows"), [(1, 1, 16), (16, 1, 16), (1, 17, 32), (8, 4, 32), (3, 11, 64), (16, 8, 64)]
)
def test_the_tile_is_the_smallest_that_holds_a_group(seq_q: int, group: int, rows: int) -> None:
    workload = Workload.of(seq_q, seq_kv=4096, heads=2 * group, kv_heads=2)
    assert rows_per_kv_head(workload) == seq_q * group
    assert tiles_for(workload, H200).rows == rows
    row_blocks = math.ceil(seq_q * group / rows)
    splits = splits_for(workload, tiles_for(workload, H200), H200)
    assert plan(workload, H200).launches[0].blocks == row_blocks * splits * 2


def test_few_rows_split_and_many_do_not() -> None:
    lonely, crowd = decode(1, 32768), decode(1, 32768, batch=64)
    assert splits_for(lonely, tiles_for(lonely, H200), H200) > 8
    assert splits_for(crowd, tiles_for(crowd, H200), H200) < 4
    short = decode(1, 200)
    (launch,) = plan(short, H200).launches
    assert [argument.tensor for argument in launch.args if isinstance(argument, Pointer)] == ["q", "k", "v", "o", "lse"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_no_split_is_without_keys(workload: Workload) -> None:
    tiles = tiles_for(workload, H200)
    splits = splits_for(workload, tiles, H200)
    assert 1 <= splits <= math.ceil(workload.seq_kv / tiles.step_keys)


def test_arguments_are_those_of_the_entry_points() -> None:
    workload = decode(3, 5000, batch=2, heads=12, kv_heads=2, head_dim=64, causal=True)
    attention, combine = plan_with(workload, tiles_for(workload, H200), 7).launches
    assert [a.tensor for a in attention.args if isinstance(a, Pointer)] == ["q", "k", "v", "o_parts", "statistics"]
    values = [a.value for a in attention.args if isinstance(a, Scalar)]
    assert values[:-1] == [3, 5000, 18, 72, 1, 7, 1]
    assert math.isclose(2 ** values[-1], math.exp(1 / math.sqrt(64)))
    assert [a.tensor for a in combine.args if isinstance(a, Pointer)] == ["o_parts", "statistics", "o", "lse"]
    assert [a.value for a in combine.args if isinstance(a, Scalar)] == [72, 7]
    assert combine.grid == (72, 1, 1)


@pytest.mark.parametrize("device", MODERN, ids=lambda device: device.name)
@pytest.mark.parametrize("shape", [shape for shapes in SHAPES.values() for shape in shapes], ids=str)
def test_the_tiles_fit_every_gpu(device: DeviceSpec, shape: Tiles) -> None:
    tiles = fitted(shape, device)
    assert tiles.stages >= 2
    assert replace(tiles, key_warps=shape.key_warps, stages=shape.stages, blocks_per_sm=shape.blocks_per_sm) == shape
    assert tiles.smem_bytes <= device.smem_per_block_bytes
    found = device.architecture
    assert found is not None
    fitting = occupancy(found, threads=tiles.threads, registers=255, smem_bytes=tiles.smem_bytes)
    assert fitting.blocks_per_sm >= tiles.blocks_per_sm


@pytest.mark.parametrize("shape", [shape for shapes in SHAPES.values() for shape in shapes], ids=str)
def test_an_h200_has_enough_bytes_on_their_way(shape: Tiles) -> None:
    tiles = fitted(shape, H200)
    assert tiles.blocks_per_sm * (tiles.stages - 1) * tiles.stage_bytes >= 80 * 1024


def test_equal_choices_build_once() -> None:
    assert len(set(builds(H200))) == len(builds(H200)) == 18
    assert fitted(SHAPES[128][0], L4) != fitted(SHAPES[128][0], H200)


EMULATED = [
    (decode(1, 1, heads=2, kv_heads=2, head_dim=64), Distribution.NORMAL),
    (decode(1, 700, heads=4, kv_heads=2, head_dim=64), Distribution.NORMAL),
    (decode(1, 1000, heads=8, kv_heads=1, head_dim=128, dtype=Dtype.BF16), Distribution.NORMAL),
    (decode(8, 530, heads=8, kv_heads=2, head_dim=128, causal=True), Distribution.NORMAL),
    (decode(16, 333, heads=3, kv_heads=1, head_dim=64, causal=True, dtype=Dtype.BF16), Distribution.NORMAL),
    (decode(11, 150, heads=14, kv_heads=2, head_dim=64, causal=True), Distribution.NORMAL),  # two blocks of rows
    (decode(3, 300, heads=4, kv_heads=2, head_dim=256, causal=True), Distribution.NORMAL),
    (decode(8, 100, heads=4, kv_heads=1, head_dim=256, dtype=Dtype.BF16), Distribution.NORMAL),
    (decode(16, 70, heads=4, kv_heads=1, head_dim=256), Distribution.NORMAL),
    (decode(5, 2, batch=2, heads=2, kv_heads=1, head_dim=64, causal=True), Distribution.NORMAL),  # empty rows
    (decode(16, 1, heads=2, kv_heads=1, head_dim=128, causal=True), Distribution.NORMAL),
    (decode(2, 640, batch=2, heads=2, kv_heads=1, head_dim=64), Distribution.LARGE_LOGITS),
    (decode(4, 900, heads=4, kv_heads=1, head_dim=64), Distribution.DOMINANT_KEY),  # maxima that grow late
    (decode(2, 200, heads=2, kv_heads=2, head_dim=128), Distribution.TINY),
]


def emulate(a_plan: LaunchPlan, workload: Workload, distribution: Distribution) -> None:
    executor = EmulatorExecutor(Compiler(), H200, mode=Mode.CHECKS)
    inputs = make_inputs(workload, distribution=distribution)
    outputs = run_once(a_plan, inputs, executor)
    verdict = verify(workload, SPECS[0].rounds, inputs, outputs["o"], outputs["lse"])
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize(("workload", "distribution"), EMULATED, ids=[f"{w.label} {d}" for w, d in EMULATED])
def test_emulated_it_computes_attention(workload: Workload, distribution: Distribution) -> None:
    emulate(plan(workload, H200), workload, distribution)


@pytest.mark.parametrize("splits", [1, 2, 5, 13])
def test_emulated_any_number_of_splits_will_do(splits: int) -> None:
    # 13 steps of 16 keys, the last ragged; the mask hides the last keys from most queries, and all of the last split.
    workload = decode(16, 197, heads=2, kv_heads=1, causal=True)
    emulate(plan_with(workload, tiles_for(workload, H200), splits), workload, Distribution.DOMINANT_KEY)


def test_emulated_more_parts_than_a_thread_loads_at_once() -> None:
    workload = decode(2, 48 * 16, heads=2, kv_heads=1, causal=True)
    emulate(plan_with(workload, tiles_for(workload, H200), 48), workload, Distribution.NORMAL)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_emulated_traffic_is_the_ledger_and_banks_do_not_conflict(head_dim: int) -> None:
    workload = decode(3, 1100, batch=2, heads=8, kv_heads=2, head_dim=head_dim, causal=True)
    a_plan, asked = plan(workload, H200), demand(workload, H200)
    executor = EmulatorExecutor(Compiler(), H200, mode=Mode.COUNTS)
    with executor.prepare(a_plan) as run:
        for name, values in make_inputs(workload).items():
            run.write(name, values)
        run.poison()
        run.launch()
        trace = run.trace
    assert trace is not None
    assert [stage.name for stage in asked.stages] == ["attention", "combine"]
    for stage, kernel in zip(asked.stages, trace.kernels, strict=True):
        moved = {(t.name, "read"): t.read_bytes for t in kernel.tensors if t.read_bytes}
        moved |= {(t.name, "write"): t.write_bytes for t in kernel.tensors if t.write_bytes}
        predicted = {(line.tensor.lower().replace(" ", "_"), line.direction): line.bytes for line in stage.ledger}
        # Every split reads Q, and every lane the statistics of its row; all but once they come out of a cache.
        for name in ("q", "statistics"):
            if (name, "read") in moved:
                moved[name, "read"] = kernel.tensor(name).unique_read_bytes
        assert moved == predicted
    attention, combine = (kernel.counters for kernel in trace.kernels)
    assert attention.bank_conflicts < 0.01 * attention.shared_wavefronts  # a few at the very end
    assert combine.bank_conflicts == 0


VARIANTS = {
    "for A100": fitted(SHAPES[128][1], A100),
    "for 100 KiB": fitted(SHAPES[128][2], L4),
    "one team": replace(SHAPES[64][0], key_warps=1, stages=4),
    "32 keys": replace(SHAPES[128][0], key_warps=4, step_keys=32),
    "q from shared memory": replace(SHAPES[128][1], q_in_registers=False),
    "two blocks an SM": replace(SHAPES[64][2], key_warps=2, stages=4, blocks_per_sm=2),
}


@pytest.mark.parametrize("tiles", VARIANTS.values(), ids=VARIANTS)
def test_emulated_every_variant_computes_attention(tiles: Tiles) -> None:
    workload = decode(9, 410, heads=8, kv_heads=2, head_dim=tiles.head_dim, causal=True)
    emulate(plan_with(workload, tiles, 3), workload, Distribution.DOMINANT_KEY)


def test_the_file_is_found() -> None:
    assert FILE.is_file()
