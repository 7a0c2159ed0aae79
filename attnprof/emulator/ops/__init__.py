"""What each instruction does, one module a family."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops import (  # noqa: F401  each import registers its family
    async_copy,
    atomic,
    barrier,
    carry,
    compare,
    control,
    convert,
    floating,
    integer,
    loadstore,
    logic,
    matrix,
    mbarrier,
    packed,
    shuffle,
    transcendental,
    wmma,
)
from attnprof.emulator.ops.nans import watch_nans
from attnprof.emulator.ops.registry import OPS, CollectiveStep, Flow, Step
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES


def decode(d: Decoder, i: Instruction, function_start: int, pc: int) -> tuple[Step, Flow]:
    """The step that executes an instruction, its guard included, and how the scheduler must treat it.

    Raises:
        UnsupportedPtx: the opcode is missing; PtxError: it is malformed.
    """
    if i.op in ("bra", "brx", "call", "ret", "exit", "trap"):
        return control.decode_control(d, i, function_start, pc), Flow.CONTROL
    found = OPS.get(i.op)
    if found is None:
        raise d.unsupported(i)
    decoder, flow = found
    step = decoder(d, i)
    if d.watch.nans and flow is not Flow.CONTROL:
        step = watch_nans(i, step)
    if isinstance(step, CollectiveStep):
        flow = Flow.COLLECTIVE
        return (step if i.guard is None else CollectiveStep(_guarded(d, i, step), step.members)), flow
    if flow is Flow.CONTROL or i.guard is None:
        return step, flow
    return _guarded(d, i, step), flow


def _guarded(d: Decoder, i: Instruction, step: Step) -> Callable[[Active], None]:
    if i.guard is None:
        raise d.malformed(i, "its guard is missing")
    guard = d.lane(i, i.guard, TYPES["pred"])

    def run(x: Active) -> None:
        keep = guard(x).view(np.bool_)
        kept = int(np.count_nonzero(keep))
        if kept == keep.size:
            step(x)
            return
        if x.wave.counts is not None:
            x.wave.counts.predicated_off(x, keep.size - kept)
        if kept:
            step(x.subset(keep))

    return run
