"""Traps on a real device: every cure cures, and both sides are timed."""

from __future__ import annotations

from functools import partial

import pytest

from attnprof.bench.together import median_times
from attnprof.check.rows import CheckStatus
from attnprof.check.trap_runner import TrapRunner
from attnprof.check.traps import all_traps
from attnprof.compiler import Compiler
from attnprof.emulator.counter import EmulatorCounter
from attnprof.gpu.executor import GpuExecutor

pytestmark = pytest.mark.gpu


def test_every_cure_cures_and_is_timed(executor: GpuExecutor) -> None:
    compiler = Compiler()
    runner = TrapRunner(
        executor,
        EmulatorCounter(compiler, executor.device),
        compiler,
        timer=partial(median_times, executor=executor),
    )
    rows = {row.trap: row for row in runner.run(all_traps())}
    assert {row.status for row in rows.values()} == {CheckStatus.PASS}, [row.detail for row in rows.values()]
    assert all(row.time_reason is None for row in rows.values()), [row.time_reason for row in rows.values()]
    # Nine times the traffic and eight times the shared-memory passes cannot go unnoticed.
    for name in ("no swizzle", "no padding", "P in HBM"):
        trap_s, cure_s = rows[name].trap_time_s, rows[name].cure_time_s
        assert trap_s is not None
        assert cure_s is not None
        assert trap_s > 1.2 * cure_s, name
