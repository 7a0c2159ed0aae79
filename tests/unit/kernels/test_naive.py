"""The naive rung without a GPU: what it plans, predicts and refuses, and what the emulator makes of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.emulator.trace import Trace
from attnprof.kernels.inputs import make_inputs
from attnprof.kernels.ladder import naive
from attnprof.kernels.ladder.naive import SPECS, TILES, demand, plan, plan_with, unsupported
from attnprof.kernels.plan import Launch, LaunchPlan, Scalar
from attnprof.kernels.verify import verify
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import decode
from attnprof.model.traffic import three_kernel_demand
from attnprof.model.workload import Pass, Workload

A100 = find("A100-SXM4-80GB")
SMALLEST_SMEM_PER_BLOCK = 99 * 1024  # sm_86, sm_89, sm_120

WORKLOADS = [
    Workload.of(seq_q, seq_kv=seq_kv, batch=2, heads=6, kv_heads=kv_heads, head_dim=head_dim, causal=causal)
    for (seq_q, seq_kv), kv_heads, head_dim, causal in product(
        [(1, 1), (1, 4096), (128, 4096), (4096, 128), (257, 129), (1000, 1000), (8192, 8192)],
        [2, 6],
        [64, 128],
        [False, True],
    )
]


def launch(a_plan: LaunchPlan, stage: str) -> Launch:
    return next(launch for launch in a_plan.launches if launch.stage == stage)


def integer(a_launch: Launch, index: int) -> int:
    """The value of a scalar argument."""
    argument = a_launch.args[index]
    assert isinstance(argument, Scalar)
    return int(argument.value)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_the_stages_launched_are_the_stages_predicted(workload: Workload) -> None:
    stages = demand(workload, A100).stages
    launches = plan(workload, A100).launches
    assert [stage.name for stage in stages] == [launch.stage for launch in launches]
    for stage, a_launch in zip(stages, launches, strict=True):
        assert stage.schedule is not None
        assert stage.schedule.blocks == a_launch.blocks
        assert sum(count for count, _ in stage.schedule.work) in (0, a_launch.blocks)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_score_segments_cover_every_key_once(workload: Workload) -> None:
    tiles = TILES[workload.head_dim]
    scores = launch(plan(workload, A100), "scores")
    key_tiles = integer(scores, 8)
    row_blocks = -(-workload.seq_q // tiles.scores_m)
    segments = scores.blocks // (row_blocks * workload.batch * workload.heads)
    in_a_row = -(-workload.seq_kv // tiles.scores_n)
    assert (segments - 1) * key_tiles < in_a_row <= segments * key_tiles


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_the_work_scheduled_is_the_tiles_that_the_mask_touches(workload: Workload) -> None:
    tiles = TILES[workload.head_dim]
    for stage, (block_q, block_kv) in {
        "scores": (tiles.scores_m, tiles.scores_n),
        "output": (tiles.output_m, tiles.output_k),
    }.items():
        schedule = next(s.schedule for s in demand(workload, A100).stages if s.name == stage)
        assert schedule is not None
        touched = 0
        for first in range(0, workload.seq_q, block_q):
            last = min(first + block_q, workload.seq_q) - 1
            keys = min(last + 1 + workload.seq_kv - workload.seq_q, workload.seq_kv)
            touched += -(-max(0, keys if workload.causal else workload.seq_kv) // block_kv)
        assert sum(count * work for count, work in schedule.work) == touched * workload.batch * workload.heads


@pytest.mark.parametrize("seq_kv", [1, 7, 8, 9, 2048, 32767, 32768, 65535, 65536, 65537, 131072])
def test_softmax_holds_the_row_or_takes_the_long_kernel(seq_kv: int) -> None:
    softmax = launch(plan(Workload.of(16, seq_kv=seq_kv, heads=1), A100), "softmax")
    assert softmax.threads % 32 == 0
    if seq_kv <= 65536:
        assert softmax.entry == "naive_softmax"
        assert softmax.threads * 64 >= seq_kv
        assert softmax.threads == 32 or (softmax.threads - 32) * 64 < seq_kv
    else:
        assert softmax.entry == "naive_softmax_long"
        assert softmax.threads == 1024


@pytest.mark.parametrize("seq_kv", range(1, 25))
def test_rows_of_s_start_on_16_byte_boundaries_with_the_least_padding(seq_kv: int) -> None:
    a_plan = plan(Workload.of(5, seq_kv=seq_kv, heads=3), A100)
    ld = a_plan.tensor("s").shape[-1]
    assert ld % 8 == 0
    assert seq_kv <= ld < seq_kv + 8
    assert {integer(a_launch, index) for a_launch, index in zip(a_plan.launches, (5, 3, 5), strict=True)} == {ld}


def test_32_heads_at_32768_fit_a_139_gib_gpu() -> None:
    assert plan(Workload.of(32768), A100).footprint_bytes == 64 * 2**30 + 4 * 32 * 32768 * 128 * 2 < 139 * 2**30


def test_ledger_at_32768_is_that_of_the_article() -> None:
    asked = demand(Workload.of(32768), A100)
    assert asked.hbm_bytes == 275_951_648_768
    assert asked.tensor_flops == 17_592_186_044_416


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
def test_demand_is_the_model_with_each_exponential_twice(workload: Workload) -> None:
    model, asked = three_kernel_demand(workload), demand(workload, A100)
    assert asked.exponentials == 2 * model.exponentials == 2 * workload.pairs
    assert tuple(asked.ledger) == tuple(model.ledger)
    assert asked.tensor_flops == model.tensor_flops


@pytest.mark.parametrize("causal", [False, True])
def test_rows_too_long_for_the_chip_read_s_twice(causal: bool) -> None:
    workload = Workload.of(65537, heads=1, causal=causal)
    extra = demand(workload, A100).hbm_bytes - three_kernel_demand(workload).hbm_bytes
    assert extra == 2 * workload.pairs


def test_demand_answers_for_workloads_that_cannot_run() -> None:
    for workload in (
        Workload.of(64, head_dim=80),
        Workload.of(64, dtype=Dtype.FP32),
        Workload.of(64, direction=Pass.BWD),
    ):
        assert unsupported(workload) is not None
        assert demand(workload, A100).hbm_bytes == three_kernel_demand(workload).hbm_bytes


@pytest.mark.parametrize(
    ("workload", "named"),
    [
        *((Workload.of(64, head_dim=d), "64 or 128") for d in (40, 63, 80, 96, 160, 192, 256)),
        (Workload.of(64, dtype=Dtype.FP32), "fp16 or bf16"),
        (Workload.of(64, direction=Pass.BWD), "forward"),
        (Workload.of(2**30 + 1, heads=1), str(2**30)),
        (Workload.of(2**15, batch=2**12, heads=16, seq_kv=1), str(2**31 - 1)),
    ],
    ids=lambda value: value.label if isinstance(value, Workload) else value,
)
def test_what_it_cannot_run_is_refused_with_what_it_can(workload: Workload, named: str) -> None:
    reason = unsupported(workload)
    assert reason is not None
    assert named in reason


def test_more_heads_than_a_grid_row_of_65535() -> None:
    workload = Workload.of(64, batch=70_000, heads=1)
    assert unsupported(workload) is None
    assert all(a_launch.grid[1:] == (1, 1) for a_launch in plan(workload, A100).launches)


def test_one_build_serves_every_architecture() -> None:
    (spec,) = SPECS
    assert len(set(spec.builds(A100))) == 4
    for tiles in TILES.values():
        assert max(tiles.scores_smem_bytes, tiles.output_smem_bytes) <= SMALLEST_SMEM_PER_BLOCK
    for workload in WORKLOADS:
        assert {a_launch.build for a_launch in plan(workload, A100).launches} <= set(spec.builds(A100))


def test_the_python_and_cuda_block_limits_agree() -> None:
    text = naive.FILE.read_text(encoding="utf-8")
    assert text.count(f"__launch_bounds__({naive.MOST_THREADS}") == 2


@pytest.mark.parametrize("row_vectors", [4, 8])
def test_other_tiles_change_the_build_and_the_launches_together(row_vectors: int) -> None:
    tiles = replace(
        TILES[128], scores_m=128, scores_n=128, output_m=256, output_k=32, output_stages=4, row_vectors=row_vectors
    )
    scores, softmax, output = plan_with(Workload.of(32768), tiles).launches
    assert (scores.threads, scores.smem_bytes, scores.blocks) == (128, 98304, 32 * 256 * 4)
    assert (softmax.threads, softmax.entry) == (4096 // row_vectors, "naive_softmax")
    assert (output.threads, output.smem_bytes, output.blocks) == (256, 98304, 32 * 128)
    assert dict(scores.build.defines)["ROW_VECTORS"] == str(row_vectors)
    assert scores.build == softmax.build == output.build != plan(Workload.of(32768), A100).launches[0].build


def emulate(
    workload: Workload, a_plan: LaunchPlan, inputs: dict[str, np.ndarray], mode: Mode = Mode.FAST
) -> tuple[np.ndarray, Trace]:
    """The output in storage form, and what was seen; a fault fails the launch."""
    with EmulatorExecutor(Compiler(), find("H200"), mode=mode).prepare(a_plan) as run:
        for name in ("q", "k", "v"):
            run.write(name, inputs[name])
        run.poison()
        run.launch()
        return run.read("o"), run.trace


@pytest.mark.parametrize("head_dim", [64, 128])
def test_emulated_traffic_is_the_ledger_with_no_conflict_and_no_fault(head_dim: int) -> None:
    workload = Workload.of(256, heads=1, head_dim=head_dim)
    inputs = dict(make_inputs(workload))
    o, trace = emulate(workload, plan(workload, A100), inputs, Mode.ALL)
    assert verify(workload, ("s", "p", "o"), inputs, o).passed
    for stage, kernel in zip(demand(workload, A100).stages, trace.kernels, strict=True):
        moved = {(name, "read"): kernel.tensor(name).unique_read_bytes for name in "qkvso"}
        moved |= {(name, "write"): kernel.tensor(name).unique_write_bytes for name in "qkvso"}
        # P overwrites S.
        predicted = {(line.tensor.lower().replace("p", "s"), line.direction): line.bytes for line in stage.ledger}
        assert {key: size for key, size in moved.items() if size} == predicted
        assert kernel.counters.matrix_flops == stage.tensor_flops
        assert kernel.counters.exponentials == stage.exponentials
        assert kernel.counters.bank_conflicts == 0
        assert kernel.counters.coalescing_efficiency == 1.0


@pytest.mark.parametrize(
    "workload",
    [
        Workload.of(300, seq_kv=333, heads=2, kv_heads=1, causal=True, dtype=Dtype.BF16),
        Workload.of(257, seq_kv=129, heads=2, causal=True),
        Workload.of(5, seq_kv=2, batch=2, heads=3, causal=True, head_dim=64, dtype=Dtype.BF16),
        Workload.of(1, seq_kv=513, batch=2, heads=4, kv_heads=2, head_dim=64),
        Workload.of(1, heads=1),
    ],
    ids=lambda w: w.label,
)
def test_emulated_ragged_masked_and_grouped_heads_are_right(workload: Workload) -> None:
    inputs = dict(make_inputs(workload))
    o, _ = emulate(workload, plan(workload, A100), inputs, Mode.CHECKS)
    verdict = verify(workload, ("s", "p", "o"), inputs, o)
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize(
    "changes",
    [
        {"scores_m": 128, "scores_n": 128, "row_vectors": 4},
        {"output_m": 256, "output_k": 32, "output_stages": 4, "output_blocks": 1},
        {"scores_n": 128, "scores_blocks": 1, "output_m": 256, "output_stages": 4, "output_blocks": 1},
    ],
    ids=lambda changes: " ".join(f"{name}={size}" for name, size in changes.items()),
)
def test_emulated_other_tiles_give_the_same_bits(changes: dict[str, int]) -> None:
    workload = Workload.of(150, seq_kv=170, heads=1, causal=True)
    inputs = dict(make_inputs(workload))
    tuned, _ = emulate(workload, plan(workload, A100), inputs)
    other, _ = emulate(workload, plan_with(workload, replace(TILES[128], **changes)), inputs, Mode.CHECKS)
    assert np.array_equal(tuned, other)


@pytest.mark.parametrize("seq_kv", [1000, 2048])
def test_emulated_long_rows_give_what_rows_on_chip_give(seq_kv: int) -> None:
    workload = Workload.of(2, seq_kv=seq_kv, heads=1, head_dim=64, causal=True)
    inputs = dict(make_inputs(workload))
    on_chip = plan(workload, A100)
    long_rows = replace(
        on_chip,
        launches=tuple(
            replace(a_launch, entry="naive_softmax_long", block=(64, 1, 1)) if a_launch.stage == "softmax" else a_launch
            for a_launch in on_chip.launches
        ),
    )
    o, _ = emulate(workload, long_rows, inputs, Mode.CHECKS)
    assert verify(workload, ("s", "p", "o"), inputs, o).passed


def test_emulated_nan_reaches_the_rows_that_it_touches_and_no_other() -> None:
    workload = Workload.of(70, heads=1, head_dim=64)
    inputs = {name: values.copy() for name, values in make_inputs(workload).items()}
    inputs["q"][0, 0, 3, 5] = np.float16("nan")
    o, _ = emulate(workload, plan(workload, A100), inputs)
    rows = np.isnan(decode(o, workload.dtype)[0, 0])
    assert rows[3].all()
    assert not np.delete(rows, 3, axis=0).any()
