"""The fa2-bwd rung without a GPU: what it plans, predicts and refuses, and what it computes when emulated."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.kernels.attention import RESERVED_SMEM_BYTES
from attnprof.kernels.catalogue import select
from attnprof.kernels.fa2_bwd_tiles import DEFAULTS, Tiles, tiles_for
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.ladder import fa2_bwd
from attnprof.kernels.ladder.fa2_bwd import (
    ACCUMULATORS_MAX,
    SPECS,
    accumulators_for,
    builds,
    demand,
    plan,
    plan_with,
    unsupported,
)
from attnprof.kernels.plan import LaunchPlan, Pointer, Scalar
from attnprof.kernels.trial import inputs_for, judge
from attnprof.model.devices import DeviceSpec, find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.occupancy import occupancy
from attnprof.model.traffic import fused_demand, recomputation_saves_bytes
from attnprof.model.workload import Pass, Workload

H200 = find("H200")
A100 = find("A100-SXM4-80GB")
L4 = find("L4")


def backward(seq_q: int, **options: object) -> Workload:
    return Workload.of(seq_q, direction=Pass.BWD, **options)  # type: ignore[arg-type]


WORKLOADS = [
    backward(seq_q, seq_kv=seq_kv, batch=2, heads=6, kv_heads=kv_heads, head_dim=head_dim, causal=causal)
    for (seq_q, seq_kv), kv_heads, head_dim, causal in product(
        [(1, 1), (1, 4096), (128, 4096), (4096, 128), (257, 129), (1000, 1000), (8192, 8192)],
        [2, 6],
        [64, 80, 128, 256],
        [False, True],
    )
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_stages_launched_are_the_stages_predicted(workload: Workload, spec) -> None:
    asked, launches = spec.demand(workload, H200), spec.plan(workload, H200)
    assert [stage.name for stage in asked.stages] == [launch.stage for launch in launches.launches]
    schedule = asked.stages[1].schedule
    assert schedule is not None
    assert schedule.blocks == launches.launches[1].blocks == sum(count for count, _ in schedule.work)
    assert asked.footprint_bytes == launches.footprint_bytes


def steps_by_hand(w: Workload, tiles: Tiles) -> int:
    """Tiles of queries and keys in which the mask allows a pair."""
    return sum(
        not w.causal or key <= min(query + tiles.block_q, w.seq_q) - 1 + w.seq_kv - w.seq_q
        for key in range(0, w.seq_kv, tiles.block_kv)
        for query in range(0, w.seq_q, tiles.block_q)
    )


@pytest.mark.parametrize("workload", WORKLOADS[:-8], ids=lambda w: w.label)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_schedule_counts_every_tile_that_has_a_pair(workload: Workload, spec) -> None:
    schedule = spec.demand(workload, H200).stages[1].schedule
    tiles = tiles_for(workload.head_dim, H200)
    assert schedule is not None
    heads = workload.batch * workload.kv_heads
    assert sum(count * size for count, size in schedule.work) == heads * steps_by_hand(workload, tiles)


def test_the_ledger_is_the_model_s_and_the_sums_of_dq() -> None:
    workload = backward(4096, heads=16)
    base, asked = fused_demand(workload), demand(workload, H200)
    sums = 4 * workload.q_elements
    assert asked.hbm_bytes == base.hbm_bytes + 4 * sums
    assert asked.tensor_flops == base.tensor_flops == 10 * workload.pairs * 128
    assert asked.exponentials == base.exponentials
    assert asked.footprint_bytes == base.footprint_bytes + sums
    assert [line.tensor for line in asked.ledger if line.direction == "write"] == [
        *("D", "dQ accumulator"),
        *("dK", "dV", "dQ accumulator"),
        "dQ",
    ]
    # Even with them, recomputing P moves far less than storing it: from 512 keys on or so.
    (naive,) = select(["naive"])
    assert asked.hbm_bytes < naive.demand(workload, H200).hbm_bytes - recomputation_saves_bytes(workload) // 2


@pytest.mark.parametrize("head_dim", [44, 512])
@pytest.mark.parametrize("direction", list(Pass))
def test_demand_covers_what_the_kernel_does_not(head_dim: int, direction: Pass) -> None:
    workload = Workload.of(512, head_dim=head_dim, direction=direction)
    assert demand(workload, H200) == fused_demand(workload)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload.of(64), "backward"),
        (backward(64, dtype=Dtype.FP32), "fp16 or bf16"),
        (backward(64, head_dim=60), "8 to 256 in steps of 8"),
        (backward(64, head_dim=264), "8 to 256 in steps of 8"),
        (backward(2**30 + 1, heads=1), "1073741824"),
        (backward(2**26, heads=33), "2147483648 rows"),
        (backward(1, seq_kv=2**26, heads=33), "2147483648 rows"),
    ],
)
def test_refusals_name_what_is_allowed(workload: Workload, reason: str) -> None:
    refusal = unsupported(workload)
    assert refusal is not None
    assert reason in refusal


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_what_it_takes_is_not_refused(workload: Workload) -> None:
    assert unsupported(workload) is None


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (65_535, 1), (65_536, 1), (100_000, 3), (7, 65_537)])
def test_the_grid_holds_any_number_of_heads(batch: int, heads: int) -> None:
    workload = backward(300, batch=batch, heads=heads)
    x, y, z = plan(workload, H200).launches[1].grid
    assert x == math.ceil(300 / 128)
    assert max(y, z) <= 65_535
    assert 0 <= y * z - batch * heads < z  # no head is left out, and hardly a block is idle


def test_arguments_are_those_of_the_entry_points() -> None:
    workload = backward(100, seq_kv=130, batch=2, heads=6, kv_heads=3, head_dim=64)
    rowsum, gradients, convert = plan(workload, H200).launches
    pointers = [
        [argument.tensor for argument in launch.args if isinstance(argument, Pointer)]
        for launch in (rowsum, gradients, convert)
    ]
    assert pointers == [
        ["o", "dout", "d", "dq_accumulator"],
        ["q", "k", "v", "dout", "lse", "d", "dq_accumulator", "dk", "dv"],
        ["dq_accumulator", "dq"],
    ]
    scalars = [(a.kind, a.value) for a in gradients.args if isinstance(a, Scalar)]
    assert scalars[:6] == [("i32", 64), ("i32", 100), ("i32", 130), ("i32", 6), ("i32", 2), ("i32", 0)]
    assert [kind for kind, _ in scalars[6:]] == ["f32", "f32"]
    assert math.isclose(2 ** scalars[-1][1], math.exp(scalars[-2][1]))


def test_deterministic_blocks_have_an_accumulator_each() -> None:
    workload = backward(4096, heads=16)
    (deterministic,) = (spec for spec in SPECS if spec.varies is None)
    launches = deterministic.plan(workload, H200)
    count = launches.tensor("dq_accumulator").shape[0]
    # 16 heads on 132 SMs: eight blocks a head fill 128 of them at once.
    assert count == 8
    assert launches.launches[1].grid == (count, 16, 1)
    scalars = [a.value for a in launches.launches[1].args if isinstance(a, Scalar)]
    assert scalars[5] == workload.q_elements // (64 * 128)  # tiles from one to the next


@pytest.mark.parametrize(
    ("heads", "seq", "count"),
    [(256, 1024, 1), (132, 4096, 1), (64, 4096, 2), (1, 8192, ACCUMULATORS_MAX), (1, 128, 1), (16, 16384, 8)],
)
def test_as_many_accumulators_as_fill_the_gpu_and_no_more(heads: int, seq: int, count: int) -> None:
    workload = backward(seq, heads=heads)
    assert accumulators_for(workload, tiles_for(128, H200), H200) == count


@pytest.mark.parametrize("device", [device for device in table() if device.compute_capability >= (8, 0)], ids=str)
@pytest.mark.parametrize("head_dim", DEFAULTS)
def test_tiles_fit_every_gpu(device: DeviceSpec, head_dim: int) -> None:
    tiles = tiles_for(head_dim, device)
    assert tiles.smem_bytes <= device.smem_per_block_bytes
    assert tiles.blocks_per_sm * (tiles.smem_bytes + RESERVED_SMEM_BYTES) <= device.smem_per_sm_bytes
    found = device.architecture
    assert found is not None
    fitting = occupancy(found, threads=tiles.threads, registers=255, smem_bytes=tiles.smem_bytes)
    assert fitting.blocks_per_sm >= tiles.blocks_per_sm


def test_equal_choices_build_once() -> None:
    assert tiles_for(64, H200).build(Dtype.FP16, causal=True) in builds(H200)
    assert len(set(builds(H200))) == len(builds(H200)) == 24


def emulate(
    a_plan: LaunchPlan,
    workload: Workload,
    distribution: Distribution = Distribution.NORMAL,
    device: DeviceSpec = H200,
) -> dict[str, np.ndarray]:
    executor = EmulatorExecutor(Compiler(), device, mode=Mode.CHECKS)
    inputs = inputs_for(SPECS[0], workload, executor=executor, distribution=distribution)
    with executor.prepare(a_plan) as run:
        for name, values in inputs.items():
            run.write(name, values)
        run.poison()
        run.launch()
        outputs = {name: run.read(name) for name in ("dq", "dk", "dv")}
    verdict = judge(SPECS[0], workload, inputs, outputs)
    assert verdict.passed, verdict.detail
    return outputs


EMULATED = [
    (backward(256, heads=2, head_dim=64), Distribution.NORMAL),  # whole tiles
    (backward(129, seq_kv=200, heads=2, kv_heads=1, head_dim=128, dtype=Dtype.BF16), Distribution.NORMAL),
    (backward(5, seq_kv=2, heads=2, head_dim=64, causal=True), Distribution.NORMAL),  # empty rows
    (backward(257, seq_kv=65, batch=2, heads=1, head_dim=64, causal=True), Distribution.NORMAL),  # empty blocks
    (backward(65, seq_kv=300, heads=2, head_dim=128, causal=True), Distribution.NORMAL),
    (backward(130, heads=2, head_dim=64, causal=True), Distribution.LARGE_LOGITS),
    (backward(70, seq_kv=130, heads=2, kv_heads=1, head_dim=256, causal=True), Distribution.NORMAL),
    (backward(1, seq_kv=1, heads=2, head_dim=64), Distribution.NORMAL),  # P is 1 and dS is 0
    (backward(150, heads=2, head_dim=40), Distribution.NORMAL),  # padded rows
    (backward(70, seq_kv=150, heads=2, kv_heads=1, head_dim=120, causal=True), Distribution.NORMAL),
    (backward(70, heads=1, head_dim=8), Distribution.NORMAL),
]


@pytest.mark.parametrize(("workload", "distribution"), EMULATED, ids=[f"{w.label} {d}" for w, d in EMULATED])
def test_emulated_it_computes_the_gradients(workload: Workload, distribution: Distribution) -> None:
    emulate(plan(workload, H200), workload, distribution)


@pytest.mark.parametrize("device", [A100, L4], ids=lambda device: device.name)
@pytest.mark.parametrize("head_dim", DEFAULTS)
def test_emulated_the_tiles_of_other_gpus_compute_the_gradients(device: DeviceSpec, head_dim: int) -> None:
    """Other tiles, and before sm_90 other additions to dQ."""
    workload = backward(90, seq_kv=150, heads=2, kv_heads=1, head_dim=head_dim, causal=True)
    emulate(plan(workload, device), workload, device=device)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_emulated_more_accumulators_give_the_same_gradients(causal: bool) -> None:
    workload = backward(150, seq_kv=400, heads=2, head_dim=64, causal=causal)
    one = emulate(plan_with(workload, tiles_for(64, H200)), workload)
    three = emulate(plan_with(workload, tiles_for(64, H200), 3), workload)
    for name in ("dk", "dv"):
        assert np.array_equal(one[name].view(np.uint16), three[name].view(np.uint16))


D64, D128 = tiles_for(64, H200), tiles_for(128, H200)

# What tuning may switch, on a ragged causal workload.
VARIANTS = {
    "nothing to exchange": replace(D128, warps_kv=8, warps_q=1),
    "256 keys": replace(D64, block_kv=256, warps_kv=8, blocks_per_sm=1),
    "128 queries": Tiles(head_dim=64, block_q=128, dq_warps_q=4),
    "64 keys": Tiles(head_dim=64, block_kv=64, warps_kv=2),
    "one tile of dS": replace(D128, ds_stages=1),
    "one tile of Q": replace(D64, q_stages=1),
    "one of each": replace(D64, q_stages=1, ds_stages=1),
}


@pytest.mark.parametrize("tiles", VARIANTS.values(), ids=VARIANTS)
def test_emulated_every_variant_computes_the_gradients(tiles: Tiles) -> None:
    workload = backward(150, seq_kv=210, heads=2, kv_heads=1, head_dim=tiles.head_dim, causal=True)
    emulate(plan_with(workload, tiles), workload)


def test_the_file_is_found() -> None:
    assert fa2_bwd.FILE.is_file()
