"""Block-wide barriers: who has arrived, who waits, and who may go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.lanes import WARP, Active, Frame, Lanes

if TYPE_CHECKING:
    from attnprof.emulator.wave import Wave


@dataclass(slots=True)
class Arrival:
    """A group that arrives at a barrier; the reduction's parts are None for a plain one."""

    lanes: Active
    number: int
    expected: int | None
    waits: bool
    put: Callable[[Active, Any], None] | None = None
    reduction: str | None = None
    flags: NDArray[np.bool_] | None = None


@dataclass(slots=True)
class _Waiting:
    frame: Frame
    pc: int
    lanes: Lanes
    put: Callable[[Active, Any], None] | None
    reduction: str | None


class _Barrier:
    """One of the 16 barriers, for all blocks of the wave."""

    def __init__(self, blocks: int) -> None:
        self.arrived = np.zeros(blocks, np.int64)
        self.expected = np.full(blocks, -1, np.int64)  # −1: every live thread of the block
        self.true_flags = np.zeros(blocks, np.int64)
        self.members: list[Lanes] = []
        self.waiting: list[_Waiting] = []


class Barriers:
    """All barriers of a wave."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.table: dict[int, _Barrier] = {}

    @property
    def waiting(self) -> list[tuple[int, _Waiting]]:
        """Who waits where, for the report of a deadlock."""
        return [(number, w) for number, barrier in self.table.items() for w in barrier.waiting]

    def arrive(self, arrival: Arrival) -> list[Active]:
        """Let a group arrive. Returns those that go on: the group itself, or all whom it releases."""
        wave = self.wave
        x = arrival.lanes
        barrier = self.table.setdefault(arrival.number, _Barrier(wave.blocks))
        quiet = not barrier.waiting and not barrier.members
        if quiet and arrival.expected is None and x.n == wave.live_count and arrival.put is None:
            # Everyone is here: nobody has to wait.
            self._check_warps(x.lane_ids(), x.pc)
            if wave.counts is not None:
                wave.counts.barrier(x, wave.blocks_of(x.lane_ids()).size)
            if wave.checks is not None:
                wave.checks.block_barrier(x.lane_ids())
            x.pc += 1
            return [x]
        lanes = x.lane_ids()
        block = wave.block_row[lanes]
        barrier.arrived += np.bincount(block, minlength=wave.blocks)
        if arrival.expected is not None:
            barrier.expected[block] = arrival.expected
        if arrival.flags is not None:
            barrier.true_flags += np.bincount(block[arrival.flags], minlength=wave.blocks)
        barrier.members.append(lanes)
        goes_on: list[Active] = []
        if arrival.waits:
            barrier.waiting.append(_Waiting(x.frame, x.pc + 1, lanes, arrival.put, arrival.reduction))
        else:
            x.pc += 1
            goes_on.append(x)
        return goes_on + self._release(barrier, x)

    def threads_left(self) -> list[Active]:
        """Look again after threads exited: a barrier for a whole block may now be complete."""
        released: list[Active] = []
        for barrier in self.table.values():
            if barrier.waiting:
                released += self._release(barrier, None)
        return released

    def _release(self, barrier: _Barrier, last: Active | None) -> list[Active]:
        wave = self.wave
        expected = np.where(barrier.expected >= 0, barrier.expected, wave.live_per_block)
        complete = (barrier.arrived >= expected) & (barrier.arrived > 0)
        if not complete.any():
            return []
        if wave.counts is not None and last is not None:
            wave.counts.barrier(last, int(np.count_nonzero(complete)))
        members = np.concatenate(barrier.members)
        through = complete[wave.block_row[members]]
        passed = np.sort(members[through])
        barrier.members = [members[~through]] if not through.all() else []
        self._check_waiting(barrier, complete)
        self._check_warps(passed, last.pc if last is not None else barrier.waiting[0].pc - 1)
        if wave.checks is not None:
            wave.checks.block_barrier(passed)
        released: list[Active] = []
        still: list[_Waiting] = []
        for w in barrier.waiting:
            go = complete[wave.block_row[w.lanes]]
            if go.any():
                group = Active(wave, w.frame, w.pc, w.lanes[go])
                if w.put is not None:
                    self._reduce(barrier, group, w)
                released.append(group)
            if not go.all():
                still.append(_Waiting(w.frame, w.pc, w.lanes[~go], w.put, w.reduction))
        barrier.waiting = still
        barrier.arrived[complete] = 0
        barrier.expected[complete] = -1
        barrier.true_flags[complete] = 0
        return released

    def _reduce(self, barrier: _Barrier, group: Active, w: _Waiting) -> None:
        block = self.wave.block_row[group.lane_ids()]
        true, arrived = barrier.true_flags[block], barrier.arrived[block]
        if w.put is None:
            return
        if w.reduction == "popc":
            w.put(group, true.astype(np.uint32))
        else:
            w.put(group, true == arrived if w.reduction == "and" else true > 0)

    def _check_waiting(self, barrier: _Barrier, complete: NDArray[np.bool_]) -> None:
        """The lanes of a warp must wait at one and the same instruction."""
        if len(barrier.waiting) < 2:
            return
        seen: dict[int, tuple[int, int]] = {}
        for w in sorted(barrier.waiting, key=lambda w: w.pc):
            lanes = w.lanes[complete[self.wave.block_row[w.lanes]]]
            for warp in np.unique(lanes >> 5):
                first_pc, lane = seen.setdefault(int(warp), (w.pc, int(lanes[lanes >> 5 == warp][0])))
                if first_pc != w.pc:
                    raise self.wave.divergent_barrier(first_pc - 1, lane, w.pc - 1)

    def _check_warps(self, lanes: Lanes, pc: int) -> None:
        """In checks mode, a barrier that only part of a warp passes is a fault, though hardware may let it by."""
        wave = self.wave
        if wave.checks is None:
            return
        per_warp = np.bincount(lanes >> 5, minlength=wave.size // WARP)
        partial = (per_warp > 0) & (per_warp < wave.launched_per_warp)
        if partial.any():
            warp = int(np.flatnonzero(partial)[0])
            raise wave.divergent_barrier(pc, int(lanes[lanes >> 5 == warp][0]), None)
