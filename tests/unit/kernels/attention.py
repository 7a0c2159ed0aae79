"""What the tests of single rungs share: workloads, the arguments of a launch, a kernel on the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.emulator.trace import Trace
from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.plan import Launch, LaunchPlan, Pointer, Scalar
from attnprof.kernels.verify import verify
from attnprof.model.devices import find
from attnprof.model.rounding import decode
from attnprof.model.workload import Workload

WORKLOADS = [
    Workload.of(seq_q, seq_kv=seq_kv, batch=2, heads=6, kv_heads=kv_heads, head_dim=head_dim, causal=causal)
    for (seq_q, seq_kv), kv_heads, head_dim, causal in product(
        [(1, 1), (1, 4096), (128, 4096), (4096, 128), (257, 129), (1000, 1000), (8192, 8192)],
        [2, 6],
        [64, 128],
        [False, True],
    )
]


def pointers(launch: Launch) -> list[str]:
    """The tensors that it gets."""
    return [argument.tensor for argument in launch.args if isinstance(argument, Pointer)]


def scalars(launch: Launch) -> list[tuple[str, int | float]]:
    """Kind and value of the other arguments."""
    return [(argument.kind, argument.value) for argument in launch.args if isinstance(argument, Scalar)]


def emulate(
    workload: Workload, a_plan: LaunchPlan, inputs: Mapping[str, Any], mode: Mode = Mode.CHECKS
) -> tuple[np.ndarray, Trace]:
    """The output in storage form, and what was seen; a fault fails the launch."""
    with EmulatorExecutor(Compiler(), find("H200"), mode=mode).prepare(a_plan) as run:
        for name in ("q", "k", "v"):
            run.write(name, inputs[name])
        run.poison()
        run.launch()
        assert run.trace is not None
        return run.read("o"), run.trace


def assert_right(
    workload: Workload, a_plan: LaunchPlan, distribution: Distribution = Distribution.NORMAL, mode: Mode = Mode.CHECKS
) -> Trace:
    """A fused kernel computes attention, within what rounding P and O allows."""
    inputs = make_inputs(workload, distribution=distribution)
    o, trace = emulate(workload, a_plan, inputs, mode)
    verdict = verify(workload, ("p", "o"), inputs, o)
    assert verdict.passed, verdict.detail
    return trace


def assert_nan_stays_in_its_row(workload: Workload, a_plan: LaunchPlan) -> None:
    """A NaN in one query makes that row NaN, all of it, and no other."""
    inputs = {name: values.copy() for name, values in make_inputs(workload).items()}
    inputs["q"][0, 0, 3, 5] = np.float16("nan")
    o, _ = emulate(workload, a_plan, inputs, Mode.FAST)
    rows = np.isnan(decode(o, workload.dtype)[0, 0])
    assert rows[3].all()
    assert not np.delete(rows, 3, axis=0).any()


def moved_bytes(trace: Trace, tensors: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Bytes that each launch touched at least once, added over the launches, by ledger name and direction."""
    found: dict[tuple[str, str], int] = {}
    for kernel in trace.kernels:
        for tensor, name in tensors.items():
            seen = kernel.tensor(tensor)
            for direction, size in (("read", seen.unique_read_bytes), ("write", seen.unique_write_bytes)):
                if size:
                    found[name, direction] = found.get((name, direction), 0) + size
    return found
