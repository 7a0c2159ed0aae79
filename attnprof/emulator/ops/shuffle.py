"""Warp-wide exchange: shfl, vote, match, redux, activemask, elect and bar.warp.sync."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.decoder import Decoder, Source
from attnprof.emulator.lanes import WARP, Active
from attnprof.emulator.ops.registry import CollectiveStep, Flow, Step, op
from attnprof.emulator.program import Instruction, Register
from attnprof.emulator.types import TYPES

U32 = TYPES["u32"]
B32 = TYPES["b32"]
PRED = TYPES["pred"]


def warp_bits(x: Active, flags: NDArray[np.bool_] | None = None) -> NDArray[np.uint32]:
    """For each warp of the wave a mask of this group's lanes, or of those for which ``flags`` holds."""
    lanes = x.lane_ids()
    weights = (np.uint64(1) << (lanes & 31).astype(np.uint64)).astype(np.float64)
    if flags is not None:
        weights = np.where(flags, weights, 0.0)
    # Sums of distinct powers of two below 2^32 are exact in float64.
    bits: NDArray[np.uint32] = np.bincount(lanes >> 5, weights, minlength=x.wave.size // WARP).astype(np.uint32)
    return bits


def of_warp(x: Active, per_warp: NDArray[Any]) -> NDArray[Any]:
    """A value a warp, handed to each lane of the group."""
    return per_warp.take(x.lane_ids() >> 5)


def _per_lane(x: Active, values: Any) -> Any:
    return values if values.size == x.n else np.full(x.n, values[0])


def _members(d: Decoder, i: Instruction, at: int) -> Source:
    if "sync" not in i.mods or at >= len(i.operands):
        raise d.malformed(i, "no member mask")
    return d.lane(i, i.operands[at], U32)


@op("shfl", flow=Flow.COLLECTIVE)
def _shuffle(d: Decoder, i: Instruction) -> Step:
    """Source lanes as the PTX ISA's pseudocode for shfl.sync computes them."""
    modes = ("up", "down", "bfly", "idx")
    d.allow(i, "sync", *modes)
    mode = next((m for m in i.mods if m in modes), "")
    dest, a, b, c, _mask = d.args(i, 5)
    members = _members(d, i, 4)
    first, second = d.pair(dest)
    put = d.lane_put(i, first, B32)
    put_valid = None if second is None else d.lane_put(i, second, PRED)
    by, clamp = d.lane(i, b, U32), d.lane(i, c, U32)
    register = a.index if isinstance(a, Register) else None
    constant = None if isinstance(a, Register) else d.lane(i, a, B32)
    if isinstance(a, Register) and a.type.bits != 32:
        raise d.malformed(i, "it moves 32 bits")

    def run(x: Active) -> None:
        wave = x.wave
        lanes = x.lane_ids()
        lane = (lanes & 31).astype(np.int32)
        step = (by(x) & np.uint32(31)).astype(np.int32)
        control = clamp(x).astype(np.int32)
        segment = (control >> 8) & 31
        last = (lane & segment) | (control & 31 & ~segment)
        if mode == "up":
            source = lane - step
            valid = source >= last
        elif mode == "down":
            source = lane + step
            valid = source <= last
        elif mode == "bfly":
            source = lane ^ step
            valid = source <= last
        else:
            source = (lane & segment) | (step & ~segment)
            valid = source <= last
        source = np.where(valid, source, lane)
        if register is not None:
            put(x, x.regs[register].take((lanes - lane) + source))
        elif constant is not None:
            put(x, _per_lane(x, constant(x)).copy())
        if put_valid is not None:
            put_valid(x, valid)
        if wave.checks is not None:
            wave.checks.shuffle_sources(x, (lanes - lane) + source)

    return CollectiveStep(run, members)


@op("vote", flow=Flow.COLLECTIVE)
def _vote(d: Decoder, i: Instruction) -> Step:
    modes = ("all", "any", "uni", "ballot")
    d.allow(i, "sync", *modes)
    mode = next((m for m in i.mods if m in modes), "")
    dest, a, _mask = d.args(i, 3)
    members = _members(d, i, 2)
    put = d.lane_put(i, dest, B32 if mode == "ballot" else PRED)
    predicate = d.lane(i, a, PRED)

    def run(x: Active) -> None:
        mask = members(x)
        true = of_warp(x, warp_bits(x, _per_lane(x, predicate(x)))) & mask
        here = of_warp(x, warp_bits(x)) & mask
        if mode == "ballot":
            put(x, true)
        elif mode == "all":
            put(x, true == here)
        elif mode == "any":
            put(x, true != 0)
        else:
            put(x, (true == here) | (true == 0))

    return CollectiveStep(run, members)


@op("match", flow=Flow.COLLECTIVE)
def _match(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "sync", "any", "all")
    kind = d.types(i)[-1]
    dest, a, _mask = d.args(i, 3)
    members = _members(d, i, 2)
    first, second = d.pair(dest)
    put = d.lane_put(i, first, B32)
    put_all = None if second is None else d.lane_put(i, second, PRED)
    value = d.lane(i, a, kind)

    def run(x: Active) -> None:
        mask = members(x)
        table = np.zeros(x.wave.size, kind.storage)
        lanes = x.lane_ids()
        table[lanes] = value(x).view(kind.storage)
        rows = table.reshape(-1, WARP)
        bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        same = np.where(rows[:, :, None] == rows[:, None, :], bits, np.uint32(0)).sum(axis=2, dtype=np.uint32)
        here = of_warp(x, warp_bits(x)) & mask
        equal = same.reshape(-1)[lanes] & here
        if "any" in i.mods:
            put(x, equal)
            return
        put(x, np.where(equal == here, here, np.uint32(0)))
        if put_all is not None:
            put_all(x, equal == here)

    return CollectiveStep(run, members)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@op("redux", flow=Flow.COLLECTIVE)
def _reduce(d: Decoder, i: Instruction) -> Step:
    d.allow(i, "sync", *_REDUCTIONS)
    operation = next((m for m in i.mods if m in _REDUCTIONS), None)
    kind = d.types(i)[-1]
    if operation is None or kind.bits != 32 or kind.kind == "f":
        raise d.unsupported(i)
    function = _REDUCTIONS[operation]
    dest, a, _mask = d.args(i, 3)
    members = _members(d, i, 2)
    put, value = d.lane_put(i, dest, kind), d.lane(i, a, kind)

    def run(x: Active) -> None:
        mask = _per_lane(x, members(x)).astype(np.uint64)
        values = _per_lane(x, value(x))
        # Lanes that reduce together: the same warp and the same mask.
        groups, inverse = np.unique((x.lane_ids() >> 5).astype(np.uint64) << np.uint64(32) | mask, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(groups.size))
        put(x, function.reduceat(values[order], starts)[inverse].astype(kind.dtype))

    return CollectiveStep(run, members)


@op("activemask")
def _active_mask(d: Decoder, i: Instruction) -> Step:
    (dest,) = d.args(i, 1)
    put = d.lane_put(i, dest, B32)
    return lambda x: put(x, of_warp(x, warp_bits(x)))


@op("elect", flow=Flow.COLLECTIVE)
def _elect(d: Decoder, i: Instruction) -> Step:
    """One lane of the mask, the lowest, gets a true predicate."""
    d.allow(i, "sync")
    dest, _mask = d.args(i, 2)
    members = _members(d, i, 1)
    first, second = d.pair(dest)
    put = d.lane_put(i, first, B32)
    put_leader = None if second is None else d.lane_put(i, second, PRED)

    def run(x: Active) -> None:
        here = of_warp(x, warp_bits(x)) & members(x)
        lowest = here & (~here + np.uint32(1))
        leader = np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.uint32)
        put(x, leader)
        if put_leader is not None:
            put_leader(x, leader == (x.lane_ids() & 31).astype(np.uint32))

    return CollectiveStep(run, members)


def warp_barrier(d: Decoder, i: Instruction) -> Step:
    """bar.warp.sync: the lanes of the mask meet, and see each other's memory."""
    (mask,) = d.args(i, 1)
    members = d.lane(i, mask, U32)

    def run(x: Active) -> None:
        if x.wave.checks is not None:
            x.wave.checks.warp_barrier(x)

    return CollectiveStep(run, members)
