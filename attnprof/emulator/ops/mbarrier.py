"""mbarrier: barriers that are words in shared memory, counted by arrivals and waited for by phase.

The word is opaque to programs. Here its bits hold, from the lowest: arrivals still missing in this phase (20), arrivals
expected (20), the number of the phase (24). The state that an arrival returns is the word as it was before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active, Lanes
from attnprof.emulator.ops.access import address_of, resolve
from attnprof.emulator.ops.registry import Flow, Step, op
from attnprof.emulator.program import Address, Instruction
from attnprof.emulator.types import TYPES

U32, U64, PRED = TYPES["u32"], TYPES["u64"], TYPES["pred"]
_FIELD = np.uint64((1 << 20) - 1)
_EXPECTED, _PHASE = np.uint64(20), np.uint64(40)
MAX_ARRIVALS = (1 << 20) - 1
_MODS = (
    "init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "pending_count", "parity", "noComplete",
    "shared", "shared::cta", "release", "acquire", "relaxed", "cta",
)  # fmt: skip


@op("mbarrier", flow=Flow.CONTROL)
def _mbarrier(d: Decoder, i: Instruction) -> Step:
    d.allow(i, *_MODS)
    operation = i.mods[0] if i.mods else ""
    action: Any = None
    if operation == "init":
        action = _init(d, i)
    elif operation in ("arrive", "arrive_drop"):
        action = _arrive(d, i, drop=operation == "arrive_drop")
    elif operation in ("test_wait", "try_wait"):
        action = _wait(d, i)
    elif operation == "inval":
        address = address_of(d, i, d.args(i, 1)[0])

        def action(x: Active) -> None:
            barrier_word(x, address(x), "invalidates")

    elif operation == "pending_count":
        dest, state = d.args(i, 2)
        put, value = d.lane_put(i, dest, U32), d.lane(i, state, U64)

        def action(x: Active) -> None:
            put(x, (value(x) & _FIELD).astype(np.uint32))

    else:
        raise d.unsupported(i)
    guard = None if i.guard is None else d.lane(i, i.guard, PRED)

    def run(x: Active) -> list[Active]:
        part = x
        if guard is not None:
            keep = guard(x).view(np.bool_)
            if not keep.any():
                x.pc += 1
                return [x]
            part = x if keep.all() else x.subset(keep)
        action(part)
        x.yielded = part.yielded
        x.pc += 1
        return [x]

    return run


def barrier_word(x: Active, addresses: Any, verb: str) -> tuple[Any, Lanes]:
    """All mbarrier words of the wave as one array, and where in it each lane's is."""
    space = "generic" if int(addresses[0]) >> 56 else "shared"
    chunks = resolve(x, space, addresses, 8, verb)
    storage = chunks[0].storage
    if storage is not x.wave.shared or len(chunks) > 1:
        raise x.wave.stop(x, "an mbarrier outside shared memory")
    return storage.view(storage.data, 8), chunks[0].offsets // 8


def _init(d: Decoder, i: Instruction) -> Any:
    where, count = d.args(i, 2)
    address, expected = address_of(d, i, where), d.lane(i, count, U32)

    def run(x: Active) -> None:
        words, at = barrier_word(x, address(x), "initialises")
        n = np.broadcast_to(expected(x), (x.n,)).astype(np.uint64)
        if int(n.max()) > MAX_ARRIVALS or not n.all():
            raise x.wave.stop(x, f"an mbarrier for {int(n.max())} arrivals; 1 to {MAX_ARRIVALS} are allowed")
        words[at] = n | n << _EXPECTED
        if x.wave.checks is not None:
            x.wave.checks.mbarrier_initialised(at)

    return run


def arrive(x: Active, words: Any, at: Lanes, counts: Any, *, drop: bool = False) -> Any:
    """Count arrivals; a phase whose last one is here gives way to the next. Returns the words from before.

    Raises:
        EmulatedFault: more arrivals than the phase expects.
    """
    before = words[at]
    for where in np.unique(at):
        word = int(words[where])
        here = at == where
        missing, expected, phase = word & MAX_ARRIVALS, word >> 20 & MAX_ARRIVALS, word >> 40
        total = int(counts[here].sum())
        if total > missing or (drop and total > expected):
            lane = int(x.lane_ids()[here][0])
            raise x.wave.too_many_arrivals(x, lane, total, missing)
        expected -= total if drop else 0
        missing -= total
        if not missing:
            missing, phase = expected, phase + 1 & 0xFFFFFF
        words[where] = missing | expected << 20 | phase << 40
    x.wave.arrivals += 1
    if x.wave.checks is not None:
        x.wave.checks.mbarrier_arrived(x, at)
    return before


def _arrive(d: Decoder, i: Instruction, *, drop: bool) -> Any:
    operands = d.args(i, 1, 2, 3)
    has_state = not _is_address(operands[0])
    state = d.lane_put(i, operands[0], U64) if has_state else None
    where = operands[1 if has_state else 0]
    rest = operands[2 if has_state else 1 :]
    address = address_of(d, i, where)
    count = d.lane(i, rest[0], U32) if rest else None

    def run(x: Active) -> None:
        words, at = barrier_word(x, address(x), "arrives at")
        counts = np.ones(x.n, np.int64) if count is None else np.broadcast_to(count(x), (x.n,)).astype(np.int64)
        before = arrive(x, words, at, counts, drop=drop)
        if state is not None:
            state(x, before)

    return run


def _is_address(operand: object) -> bool:
    return isinstance(operand, Address)


def _wait(d: Decoder, i: Instruction) -> Any:
    """Whether the phase of a state, or the last one of a parity, is over. Who must go on waiting yields to others."""
    dest, where, phase, *_hint = d.args(i, 3, 4)
    put, address = d.lane_put(i, dest, PRED), address_of(d, i, where)
    parity = "parity" in i.mods
    value = d.lane(i, phase, U32 if parity else U64)

    def run(x: Active) -> None:
        words, at = barrier_word(x, address(x), "waits at")
        current = words[at] >> _PHASE
        wanted = np.broadcast_to(value(x), (x.n,)).astype(np.uint64)
        over = (current & np.uint64(1)) != (wanted & np.uint64(1)) if parity else current != wanted >> _PHASE
        put(x, np.array(over))
        x.yielded = not over.all()
        if x.wave.checks is not None and over.any():
            x.wave.checks.mbarrier_waited(x.subset(over), at[over])

    return run
