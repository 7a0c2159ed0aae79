"""The fa2 rung without a GPU: what it plans, what it predicts, what it refuses, and what it computes when emulated."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.kernels.fa2_tiles import DEFAULTS, Tiles, tiles_for
from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.ladder import fa2
from attnprof.kernels.ladder.fa2 import SPECS, builds, demand, plan, plan_lse, plan_with, unsupported
from attnprof.kernels.plan import LaunchPlan, Pointer, Scalar
from attnprof.kernels.spec import Layout
from attnprof.kernels.trial import run_once
from attnprof.kernels.verify import verify
from attnprof.model.devices import DeviceSpec, find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.occupancy import occupancy
from attnprof.model.traffic import fused_demand
from attnprof.model.workload import Pass, Workload

H200 = find("H200")
A100 = find("A100-SXM4-80GB")

WORKLOADS = [
    Workload.of(seq_q, seq_kv=seq_kv, batch=2, heads=6, kv_heads=kv_heads, head_dim=head_dim, causal=causal)
    for (seq_q, seq_kv), kv_heads, head_dim, causal in product(
        [(1, 1), (1, 4096), (128, 4096), (4096, 128), (257, 129), (1000, 1000), (8192, 8192)],
        [2, 6],
        [64, 128, 200],
        [False, True],
    )
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_the_stage_launched_is_the_stage_predicted(workload: Workload) -> None:
    (stage,) = demand(workload, H200).stages
    (launch,) = plan(workload, H200).launches
    assert stage.name == launch.stage
    assert stage.schedule is not None
    assert stage.schedule.blocks == launch.blocks
    assert sum(count for count, _ in stage.schedule.work) == launch.blocks
    assert sum(count for count, size in stage.schedule.work if size) > 0


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_tensors_take_the_predicted_memory(workload: Workload) -> None:
    assert plan(workload, H200).footprint_bytes == demand(workload, H200).footprint_bytes
    assert plan_lse(workload, H200).footprint_bytes == demand(workload, H200).footprint_bytes + 4 * workload.rows
    assert plan_lse(workload, H200).tensor("lse").shape == (workload.batch, workload.heads, workload.seq_q)


def test_the_ledger_of_the_issue() -> None:
    workload = Workload.of(32768)
    asked = demand(workload, H200)
    assert asked.hbm_bytes == 1_073_741_824
    assert asked.tensor_flops == 17_592_186_044_416
    assert asked.footprint_bytes == plan(workload, H200).footprint_bytes == 1_073_741_824
    assert asked.intermediate_bytes == 0


@pytest.mark.parametrize("head_dim", [63, 264])
@pytest.mark.parametrize("direction", list(Pass))
def test_demand_covers_what_the_kernel_does_not(head_dim: int, direction: Pass) -> None:
    workload = Workload.of(512, head_dim=head_dim, direction=direction)
    assert demand(workload, H200) == fused_demand(workload)


def test_causal_blocks_start_longest_first() -> None:
    (stage,) = demand(Workload.of(1024, heads=3, causal=True), H200).stages
    assert stage.schedule is not None
    # Block i of eight sees the keys up to 128 (i + 1), in blocks of 64.
    assert stage.schedule.work == tuple((3, size) for size in (16, 14, 12, 10, 8, 6, 4, 2))


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload.of(64, direction=Pass.BWD), "forward"),
        (Workload.of(64, dtype=Dtype.FP32), "fp16 or bf16"),
        (Workload.of(64, head_dim=63), "multiples of 8 up to 256, not 63"),
        (Workload.of(64, head_dim=4), "multiples of 8 up to 256, not 4"),
        (Workload.of(64, head_dim=264), "multiples of 8 up to 256, not 264"),
        (Workload.of(2**30 + 1, heads=1), "1073741824"),
        (Workload.of(2**26, heads=33), "2147483648 rows"),
        (Workload.of(1, seq_kv=2**26, heads=33), "2147483648 rows"),
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
    workload = Workload.of(300, batch=batch, heads=heads)
    (launch,) = plan(workload, H200).launches
    x, y, z = launch.grid
    assert x == math.ceil(300 / 128)
    assert max(y, z) <= 65_535
    assert 0 <= y * z - batch * heads < z  # no head is left out, and hardly a block is idle
    assert stage_blocks(workload) == x * y * z


def stage_blocks(workload: Workload) -> int:
    (stage,) = demand(workload, H200).stages
    assert stage.schedule is not None
    assert stage.schedule.blocks == sum(count for count, _ in stage.schedule.work)
    return stage.schedule.blocks


def test_arguments_are_those_of_the_entry_point() -> None:
    workload = Workload.of(100, seq_kv=130, batch=2, heads=6, kv_heads=3, head_dim=64)
    (launch,) = plan_lse(workload, H200).launches
    pointers = [argument.tensor for argument in launch.args if isinstance(argument, Pointer)]
    scalars = [argument for argument in launch.args if isinstance(argument, Scalar)]
    assert pointers == ["q", "k", "v", "o", "lse"]
    assert [(scalar.kind, scalar.value) for scalar in scalars[:-1]] == [
        ("i32", 100),
        ("i32", 130),
        ("i32", 12),
        ("i32", 2),
    ]
    assert scalars[-1].kind == "f32"
    assert math.isclose(2 ** scalars[-1].value, math.exp(1 / math.sqrt(64)))
    # Without a log-sum-exp its pointer is null, as wide as the others.
    (launch,) = plan(workload, H200).launches
    assert launch.args[4] == Scalar("i64", 0)


@pytest.mark.parametrize(
    ("axes", "q_strides", "k_strides"),
    [
        ("bhsd", (6 * 100 * 72, 100 * 72, 72), (3 * 130 * 72, 130 * 72, 72)),
        ("bshd", (6 * 100 * 72, 72, 6 * 72), (3 * 130 * 72, 72, 3 * 72)),
    ],
)
def test_strides_are_those_of_the_axes(axes: Layout, q_strides: tuple[int, ...], k_strides: tuple[int, ...]) -> None:
    workload = Workload.of(100, seq_kv=130, batch=2, heads=6, kv_heads=3, head_dim=72)
    a_plan = plan_with(workload, tiles_for(72, H200), axes=axes)
    (launch,) = a_plan.launches
    strides = [argument.value for argument in launch.args if isinstance(argument, Scalar) and argument.kind == "i64"]
    assert strides[1:] == [*q_strides, *k_strides, *k_strides, *q_strides]  # after the null pointer
    assert a_plan.footprint_bytes == plan(workload, H200).footprint_bytes


def test_a_scale_of_its_own_reaches_the_kernel() -> None:
    (launch,) = plan(Workload.of(100, softmax_scale=0.5), H200).launches
    (scale_log2,) = (
        argument.value for argument in launch.args if isinstance(argument, Scalar) and argument.kind == "f32"
    )
    assert math.isclose(2**scale_log2, math.exp(0.5))


@pytest.mark.parametrize(
    ("head_dim", "width"),
    [
        (8, 32),
        (32, 32),
        (40, 64),
        (64, 64),
        (72, 96),
        (96, 96),
        (104, 128),
        (128, 128),
        (136, 192),
        (200, 256),
        (256, 256),
    ],
)
def test_a_head_dim_gets_the_narrowest_tiles_that_hold_it(head_dim: int, width: int) -> None:
    assert tiles_for(head_dim, H200).head_dim == width
    (launch,) = plan(Workload.of(100, head_dim=head_dim), H200).launches
    assert dict(launch.build.defines)["STRIDED"] == str(int(head_dim not in (64, 128, 256)))


@pytest.mark.parametrize("device", [device for device in table() if device.compute_capability >= (8, 0)], ids=str)
@pytest.mark.parametrize("head_dim", DEFAULTS)
def test_as_many_blocks_as_planned_fit_an_sm_of_every_gpu(device: DeviceSpec, head_dim: int) -> None:
    tiles = tiles_for(head_dim, device)
    assert tiles.smem_bytes <= device.smem_per_block_bytes
    found = device.architecture
    assert found is not None
    fitting = occupancy(found, threads=tiles.threads, registers=255, smem_bytes=tiles.smem_bytes)
    assert fitting.blocks_per_sm >= tiles.blocks_per_sm
    assert tiles.blocks_per_sm == 2 or head_dim > 128


def test_more_shared_memory_means_larger_tiles() -> None:
    chosen = [tiles_for(128, find(name)) for name in ("H200", "A100-SXM4-80GB", "L4")]
    assert [tiles.smem_bytes for tiles in chosen] == [96 * 1024, 64 * 1024, 48 * 1024]
    assert all(tiles in DEFAULTS[128] for tiles in chosen)


def test_equal_choices_build_once() -> None:
    assert Tiles(64).build(Dtype.FP16, causal=True) in builds(A100)
    # Six widths, two types, two masks; three widths exact and strided; short causal heads at d 256 on sm_90.
    assert len(set(builds(H200))) == len(builds(H200)) == 36 + 2
    assert len(set(builds(A100))) == len(builds(A100)) == 36


EMULATED = [
    (Workload.of(256, heads=2, head_dim=64), Distribution.NORMAL),  # whole tiles
    (Workload.of(129, seq_kv=200, heads=2, kv_heads=1, head_dim=128, dtype=Dtype.BF16), Distribution.NORMAL),
    (Workload.of(5, seq_kv=2, heads=2, head_dim=64, causal=True), Distribution.NORMAL),  # empty rows
    (Workload.of(257, seq_kv=65, batch=2, heads=1, head_dim=64, causal=True), Distribution.NORMAL),  # empty blocks
    (Workload.of(65, seq_kv=300, heads=2, head_dim=128, causal=True), Distribution.NORMAL),
    (Workload.of(130, heads=2, head_dim=64, causal=True), Distribution.LARGE_LOGITS),
    (Workload.of(70, seq_kv=330, heads=1, head_dim=64), Distribution.DOMINANT_KEY),  # maxima that grow late
    (Workload.of(70, heads=1, head_dim=64), Distribution.TINY),
    (Workload.of(40, seq_kv=70, heads=2, head_dim=8), Distribution.NORMAL),
    (Workload.of(65, seq_kv=200, batch=2, heads=2, kv_heads=1, head_dim=72, causal=True), Distribution.NORMAL),
    (Workload.of(70, seq_kv=130, heads=1, head_dim=160, dtype=Dtype.BF16), Distribution.NORMAL),
    (Workload.of(70, seq_kv=130, heads=1, head_dim=256, causal=True), Distribution.NORMAL),
    (Workload.of(5, seq_kv=2, heads=2, head_dim=248, causal=True), Distribution.NORMAL),
    (Workload.of(40, seq_kv=70, heads=2, head_dim=64, softmax_scale=0.75), Distribution.NORMAL),
]


def emulate(a_plan: LaunchPlan, workload: Workload, distribution: Distribution) -> None:
    executor = EmulatorExecutor(Compiler(), H200, mode=Mode.CHECKS)
    inputs = make_inputs(workload, distribution=distribution)
    outputs = run_once(a_plan, inputs, executor)
    verdict = verify(workload, SPECS[0].rounds, inputs, outputs["o"], outputs.get("lse"))
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize("head_dim", [64, 72])
def test_emulated_heads_may_lie_inside_the_sequence(head_dim: int) -> None:
    workload = Workload.of(65, seq_kv=100, batch=2, heads=4, kv_heads=2, head_dim=head_dim, causal=True)
    a_plan = plan_with(workload, tiles_for(head_dim, H200), lse=True, axes="bshd")
    inputs = make_inputs(workload)
    with EmulatorExecutor(Compiler(), H200, mode=Mode.CHECKS).prepare(a_plan) as run:
        for name, values in inputs.items():
            run.write(name, np.ascontiguousarray(values.swapaxes(1, 2)))
        run.poison()
        run.launch()
        o, lse = run.read("o").swapaxes(1, 2), run.read("lse")
    verdict = verify(workload, SPECS[0].rounds, inputs, np.ascontiguousarray(o), lse)
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize(("workload", "distribution"), EMULATED, ids=[f"{w.label} {d}" for w, d in EMULATED])
def test_emulated_it_computes_attention(workload: Workload, distribution: Distribution) -> None:
    emulate(plan_lse(workload, H200), workload, distribution)


D64, D128 = tiles_for(64, H200), tiles_for(128, H200)

# What tuning may switch, on a ragged causal workload and a late maximum.
VARIANTS = {
    "one stage": replace(D64, kv_stages=1),
    "q in registers": replace(D64, q_in_registers=True),
    "8 warps": replace(D64, block_q=256, warps=8, blocks_per_sm=1),
    "16 rows a warp": replace(D64, warps=8),
    "128 keys": replace(D64, block_kv=128),
    "32 keys, rescale always": replace(D64, block_kv=32, rescale_log2=-1.0),
    "for A100": tiles_for(128, A100),
    "for 100 KiB": tiles_for(128, find("L4")),
    "d 256 for 100 KiB": tiles_for(256, find("L4")),
    "d 96 for 100 KiB": tiles_for(96, find("L4")),
    "rescale at every new maximum": replace(D128, rescale_log2=0.0, kv_stages=1),
}


@pytest.mark.parametrize("tiles", VARIANTS.values(), ids=VARIANTS)
def test_emulated_every_variant_computes_attention(tiles: Tiles) -> None:
    workload = Workload.of(150, seq_kv=210, heads=2, kv_heads=1, head_dim=tiles.head_dim, causal=True)
    emulate(plan_with(workload, tiles, lse=True), workload, Distribution.DOMINANT_KEY)


def test_the_file_is_found() -> None:
    assert fa2.FILE.is_file()
