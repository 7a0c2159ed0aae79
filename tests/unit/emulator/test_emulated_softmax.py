"""The softmax rungs on the emulator: right at every length, free of faults, and counted as their ledgers say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnprof.emulator import EmulatorExecutor, Mode, Trace
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.ladder.softmax import SPECS
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for, judge
from attnprof.kernels.verify import Verification
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import decode
from attnprof.model.workload import Workload
from tests.unit.emulator.emulator_harness import A100, Bench

# The emulator counts what a kernel asks for, whatever L2 might serve.
UNCACHED = replace(A100, l2_bytes=None)
NAIVE, SAFE, ONLINE, FUSED = SPECS
UNUSUAL = (Distribution.LARGE_LOGITS, Distribution.DOMINANT_KEY, Distribution.MASKED)

# At, under and over a chunk, a warp's share, and a block's batch; odd ones shift every row.
LENGTHS = (1, 2, 7, 8, 9, 33, 127, 256, 257, 1000, 1023, 1024, 1025, 2049, 5001)
# Beyond a block's registers on sm_80, and beyond its shared memory: aligned, shifted, and with a short last part.
ON_CHIP = (32_768, 32_769, 40_001, 65_536, 81_920, 131_073, 160_001)


def run(
    bench: Bench,
    spec: KernelSpec,
    workload: Workload,
    distribution: Distribution = Distribution.NORMAL,
    mode: Mode = Mode.CHECKS,
) -> tuple[Verification, Trace, LaunchPlan]:
    """The verdict on the output, what was observed, and what was launched."""
    executor = EmulatorExecutor(bench.cuda, A100, mode=mode, on_fault="record")
    plan = spec.plan(workload, A100)
    inputs = inputs_for(spec, workload, distribution=distribution)
    with executor.prepare(plan) as prepared:
        prepared.write("x", inputs["x"])
        prepared.poison()
        prepared.launch()
        trace = prepared.trace
        verdict = judge(spec, workload, inputs, {"y": prepared.read("y")})
    assert trace is not None
    return verdict, trace, plan


def matrix(rows: int, columns: int, dtype: Dtype = Dtype.FP16) -> Workload:
    return Workload.of(rows, seq_kv=columns, heads=1, dtype=dtype)


@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_length_is_right_and_without_faults(bench: Bench, spec: KernelSpec, columns: int) -> None:
    for dtype in Dtype:
        for distribution in (Distribution.NORMAL, *(() if spec is NAIVE else UNUSUAL)):
            verdict, trace, _ = run(bench, spec, matrix(7, columns, dtype), distribution)
            assert verdict.passed, (dtype, distribution, verdict.detail)
            assert trace.faults == (), (dtype, distribution)


@pytest.mark.parametrize("columns", ON_CHIP)
def test_rows_beyond_the_registers_and_the_shared_memory(bench: Bench, columns: int) -> None:
    for distribution in (Distribution.NORMAL, Distribution.MASKED):
        verdict, trace, plan = run(bench, FUSED, matrix(5, columns), distribution)
        expected = "softmax_fused_block" if columns <= 32_775 else "softmax_fused_shared"
        assert plan.launches[0].entry == expected
        assert verdict.passed, verdict.detail
        assert trace.faults == ()


def test_many_rows_and_a_ragged_last_block(bench: Bench) -> None:
    for rows in (1, 3, 31, 33, 130):
        verdict, trace, _ = run(bench, FUSED, matrix(rows, 61))
        assert verdict.passed, verdict.detail
        assert trace.faults == ()


def test_softmax_naive_overflows_where_the_others_do_not(bench: Bench) -> None:
    workload = matrix(4, 300, Dtype.FP32)
    verdicts = [run(bench, spec, workload, Distribution.LARGE_LOGITS)[0] for spec in SPECS]
    assert [verdict.passed for verdict in verdicts] == [False, True, True, True]
    assert "nan" in verdicts[0].detail


def test_moderate_logits_up_to_its_limit_are_right_for_softmax_naive(bench: Bench) -> None:
    assert NAIVE.largest_logit is not None
    x = np.full((2, 4096), NAIVE.largest_logit, np.float32)
    x[1] = -NAIVE.largest_logit
    workload = matrix(2, 4096, Dtype.FP32)
    with EmulatorExecutor(bench.cuda, A100).prepare(NAIVE.plan(workload, A100)) as prepared:
        prepared.write("x", x)
        prepared.poison()
        prepared.launch()
        y: Any = decode(prepared.read("y"), Dtype.FP32)
    assert y == pytest.approx(1 / 4096, rel=1e-5)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_bytes_and_exponentials_are_those_of_the_ledger(bench: Bench, spec: KernelSpec) -> None:
    """On rows that fill the chunks, the batches and the block: nothing is loaded in vain."""
    workload = matrix(3, 4096)
    demand = spec.demand(workload, UNCACHED)
    _, trace, _ = run(bench, spec, workload, mode=Mode.COUNTS)
    (counted,) = trace.kernels
    reads = sum(line.bytes for line in demand.ledger if line.direction == "read")
    writes = sum(line.bytes for line in demand.ledger if line.direction == "write")
    assert counted.tensor("x").read_bytes == reads
    assert counted.tensor("x").unique_read_bytes == 3 * 4096 * 2
    assert counted.tensor("y").write_bytes == counted.tensor("y").unique_write_bytes == writes
    assert counted.counters.coalescing_efficiency == 1.0
    assert counted.counters.bank_conflicts == 0
    # Merging the statistics and carrying sums over takes a few more.
    assert demand.exponentials <= counted.counters.exponentials <= 1.1 * demand.exponentials


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("nbytes", [128, 512, 1024, 2048, 4096, 16_384, 98_304])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_whole_chunks_move_as_such(bench: Bench, spec: KernelSpec, nbytes: int, dtype: Dtype) -> None:
    """16 bytes a lane, at each place where a row can stay: no sector is touched for a part of it."""
    _, trace, _ = run(bench, spec, matrix(16, nbytes // dtype.itemsize, dtype), mode=Mode.COUNTS)
    counters = trace.counters
    assert counters.global_sectors == counters.global_bytes / 32
    assert counters.global_bytes / counters.global_requests >= min(512, nbytes)


def test_what_does_not_fit_the_shared_memory_is_read_once_more(bench: Bench) -> None:
    workload = matrix(2, 163_840)
    demand = FUSED.demand(workload, UNCACHED)
    _, trace, _ = run(bench, FUSED, workload, mode=Mode.COUNTS)
    (counted,) = trace.kernels
    assert counted.tensor("x").read_bytes == demand.hbm_bytes - workload.rows * workload.seq_kv * 2
    assert counted.tensor("x").read_bytes > 2 * 163_840 * 2
    assert counted.counters.bank_conflicts == 0


def test_shifted_rows_touch_no_byte_outside_them_and_still_move_16_bytes_at_a_time(bench: Bench) -> None:
    workload = matrix(8, 4097)
    _, trace, _ = run(bench, SAFE, workload, mode=Mode.COUNTS)
    (counted,) = trace.kernels
    assert counted.tensor("x").read_bytes == 3 * 8 * 4097 * 2
    assert counted.tensor("y").write_bytes == 8 * 4097 * 2
    # Four passes of 16 bytes a lane, and a request for each edge.
    assert counted.counters.global_requests < 3.5 * 4 * 8 * (4097 / 8 / 32 + 2)
