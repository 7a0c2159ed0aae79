"""The shipped kernels on the emulator: right, free of faults, and counted as the model predicts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from attnprof.emulator import EmulatorExecutor, Mode, Trace
from attnprof.kernels import catalogue
from attnprof.model import reference, rounding
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload
from tests.unit.emulator.emulator_harness import A100, Bench

EPSILON = {Dtype.FP16: 2.0**-11, Dtype.BF16: 2.0**-8}


def run_kernel(bench: Bench, name: str, w: Workload, mode: Mode) -> tuple[float, Trace]:
    """The largest error against float64, relative to the largest output, and the trace."""
    (spec,) = catalogue.select([name])
    plan = spec.plan(w, A100)
    rng = np.random.default_rng(7)
    inputs: dict[str, Any] = {}
    with EmulatorExecutor(bench.cuda, A100, mode=mode).prepare(plan) as run:
        for tensor in plan.tensors:
            if tensor.role == "in":
                inputs[tensor.name] = rounding.encode(rng.standard_normal(tensor.shape), tensor.dtype)
                run.write(tensor.name, inputs[tensor.name])
        run.poison()
        run.launch()
        output = rounding.decode(run.read("o"), w.dtype)
        trace = run.trace
    exact, _ = reference.attention(*(rounding.decode(inputs[t], w.dtype) for t in "qkv"), causal=w.causal)
    assert trace is not None
    return float(np.abs(output - exact).max() / np.abs(exact).max()), trace


@pytest.mark.parametrize("kernel", ["naive", "fa2"])
@pytest.mark.parametrize(
    "workload",
    [
        Workload.of(128, heads=2, head_dim=64),
        Workload.of(130, seq_kv=200, heads=2, kv_heads=1, head_dim=128, dtype=Dtype.BF16),
        Workload.of(100, seq_kv=70, heads=1, head_dim=64, causal=True),
    ],
    ids=lambda w: w.label,
)
def test_the_kernels_are_right_and_without_faults(bench: Bench, kernel: str, workload: Workload) -> None:
    error, trace = run_kernel(bench, kernel, workload, Mode.CHECKS)
    assert error <= 4 * EPSILON[workload.dtype]
    assert trace.faults == ()
    assert trace.kernels == ()


@pytest.mark.parametrize("kernel", ["naive", "fa2"])
def test_counts_equal_the_model_where_tiles_are_full(bench: Bench, kernel: str) -> None:
    workload = Workload.of(256, heads=2, head_dim=64)
    (spec,) = catalogue.select([kernel])
    _, trace = run_kernel(bench, kernel, workload, Mode.COUNTS)
    stages = spec.demand(workload, A100).stages
    assert len(stages) == len(trace.kernels)
    for stage, counted in zip(stages, trace.kernels, strict=True):
        assert counted.counters.matrix_flops == stage.tensor_flops
        for line in stage.ledger:
            tensor = counted.tensor("s" if line.tensor == "P" else line.tensor.lower())
            got = tensor.unique_read_bytes if line.direction == "read" else tensor.unique_write_bytes
            assert got == line.bytes, (line, tensor)
        assert counted.counters.bank_conflicts == 0
        assert counted.counters.coalescing_efficiency in (None, 1.0)
    rescaling = sum(
        line.counters.exponentials
        for counted in trace.kernels
        for line in counted.lines
        if "correction" in line.source or "lower" in line.source
    )
    assert trace.counters.exponentials - rescaling == spec.demand(workload, A100).exponentials
    assert rescaling == 0 or kernel == "fa2"


@pytest.mark.parametrize(("seq", "limit_s"), [(256, 0.5), (1024, 5.0)])
def test_speed(bench: Bench, seq: int, limit_s: float) -> None:
    """CPU time, so that a busy machine is not mistaken for a slow emulator; the best of three."""
    workload = Workload.of(seq, heads=2, head_dim=64)
    (spec,) = catalogue.select(["fa2"])
    plan = spec.plan(workload, A100)
    times_s = []
    with EmulatorExecutor(bench.cuda, A100).prepare(plan) as run:
        for tensor in plan.tensors:
            if tensor.role == "in":
                run.write(tensor.name, np.zeros(tensor.shape, np.float16))
        for _ in range(3):
            started = time.process_time()
            run.launch()
            times_s.append(time.process_time() - started)
    assert min(times_s) < limit_s
