"""Runs a wave to its end: at each step the group of runnable lanes with the lowest program counter.

Lanes of a warp that took different branches meet again where their counters do. A group that waits is out of the
running; when nobody runs and somebody waits, that is a deadlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnprof.emulator.errors import PtxError
from attnprof.emulator.faults import EmulatedFault, FaultKind
from attnprof.emulator.lanes import WARP, Active, Frame
from attnprof.emulator.ops.registry import CollectiveStep, Flow

if TYPE_CHECKING:
    from attnprof.emulator.wave import Wave

# Steps after which a group that has not run gets its turn: threads may spin on what others are about to write.
PATIENCE = 20_000
# Rounds of waiting at mbarriers without a single arrival.
MAX_IDLE = 2_000
_FAR = 1 << 62


class Scheduler:
    """Executes a wave."""

    def __init__(self, wave: Wave, budget: int) -> None:
        self.wave = wave
        self.budget = budget
        self.groups: list[Active] = [wave.first] if wave.first.n else []
        self.seen_arrivals = self.idle = 0
        self.current: Active = wave.first
        self.parked: dict[tuple[int, int], Active] = {}

    def run(self) -> None:
        """Run until every thread has exited.

        Raises:
            EmulatedFault: a fault of the kernel, a deadlock, or more steps than the budget.
        """
        wave = self.wave
        with np.errstate(all="ignore"):
            while True:
                if not self.groups:
                    if not wave.live_count:
                        return
                    self.groups = wave.barriers.threads_left()
                    if not self.groups:
                        raise self._deadlock()
                group = self._pick()
                try:
                    self._run_group(group)
                except (TypeError, ValueError, IndexError, OverflowError) as error:
                    # NumPy refuses operands whose types don't go together, which decoding cannot always foresee.
                    i = wave.program.instructions[self.current.pc]
                    raise PtxError(
                        f"{i.position.file or 'the kernel'}:{i.position.line or '?'} (PTX line {i.position.ptx_line}): "
                        f"{i.opcode} cannot be executed with these operands: {' '.join(str(error).split())}"
                    ) from error

    def _pick(self) -> Active:
        """Take the deepest, then lowest group out, joined with those at the same place."""
        groups = self.groups
        if len(groups) == 1:
            return groups.pop()
        eager = [g for g in groups if not g.yielded]
        if not eager:
            self._everyone_waits(groups[0])
            for g in groups:
                g.yielded = False
        first = min(eager or groups, key=lambda g: (-g.frame.depth, g.pc))
        starving = [g for g in groups if self.wave.steps - g.last_run > PATIENCE]
        if starving:
            first = min(starving, key=lambda g: g.last_run)
        same = [g for g in groups if g.pc == first.pc and g.frame is first.frame]
        self.groups = [g for g in groups if g.pc != first.pc or g.frame is not first.frame]
        if len(same) == 1:
            return first
        joined = self._join(first.frame, first.pc, same)
        joined.last_run = min(g.last_run for g in same)
        return joined

    def _join(self, frame: Frame, pc: int, groups: list[Active]) -> Active:
        wave = self.wave
        mask = np.zeros(wave.size, np.bool_)
        for group in groups:
            mask[group.lane_ids()] = True
        lanes = np.flatnonzero(mask)
        return Active(wave, frame, pc, None if lanes.size == wave.size else lanes)

    def _run_group(self, group: Active) -> None:
        wave = self.wave
        steps, flows = wave.program.steps, wave.program.flows
        counts = wave.counts
        # If others exited meanwhile, this group may now be all that lives.
        if group.sel is not None and group.n == wave.live_count:
            group.sel = None
        while True:
            self.current = group
            stop = min((g.pc for g in self.groups if g.frame is group.frame and g.pc > group.pc), default=_FAR)
            pc = start = group.pc
            flow = flows[pc]
            while flow == 0:
                if counts is not None:
                    counts.executed(pc, group)
                steps[pc](group)
                pc += 1
                group.pc = pc
                if pc >= stop:
                    break
                flow = flows[pc]
            wave.steps += pc - start
            if pc >= stop:
                self._put_back(group)
                return
            wave.steps += 1
            if wave.steps > self.budget:
                raise wave.fault(
                    group,
                    FaultKind.BUDGET,
                    f"still running after {self.budget} steps: an endless loop, or a larger budget is needed",
                    int(group.lane_ids()[0]),
                )
            if flow == Flow.COLLECTIVE:
                step = steps[pc]
                if group.whole and isinstance(step, CollectiveStep):
                    if counts is not None:
                        counts.executed(pc, group)
                    step(group)
                    group.pc = pc + 1
                    if group.pc >= stop:
                        self._put_back(group)
                        return
                    continue
                self._converge(group)
                return
            if counts is not None:
                counts.executed(pc, group)
            before = wave.live_count
            result = steps[pc](group)
            if not isinstance(result, list):
                raise TypeError(f"step {pc} is marked as control but returned {result!r}")
            if wave.live_count != before:
                result += wave.barriers.threads_left()
                result += self._unpark()
            if len(result) == 1 and not self.groups:
                group = result[0]
                if group.yielded:
                    group.yielded = False
                    self._everyone_waits(group)
                if group.sel is not None and group.n == wave.live_count:
                    group.sel = None
                continue
            for left in result:
                self._put_back(left)
            return

    def _everyone_waits(self, group: Active) -> None:
        """Called when all groups wait at mbarriers; without any arrival in between for long, it is a deadlock."""
        if self.wave.arrivals != self.seen_arrivals:
            self.seen_arrivals, self.idle = self.wave.arrivals, 0
        self.idle += 1
        if self.idle > MAX_IDLE:
            raise self.wave.fault(
                group,
                FaultKind.DEADLOCK,
                f"{group.n} threads wait at an mbarrier for arrivals that never come",
                int(group.lane_ids()[0]),
            )

    def _put_back(self, group: Active) -> None:
        group.last_run = self.wave.steps
        self.groups.append(group)

    def _unpark(self) -> list[Active]:
        """Let those who wait for lanes that have exited look again."""
        waiting = list(self.parked.values())
        self.parked.clear()
        return waiting

    def _converge(self, group: Active) -> None:
        """Bring lanes together for a warp-wide operation: those whose partners are here go on, the others wait."""
        wave = self.wave
        key = (id(group.frame), group.pc)
        step = wave.program.steps[group.pc]
        if not isinstance(step, CollectiveStep):
            raise TypeError(f"step {group.pc} is no warp-wide operation")
        parked = self.parked.pop(key, None)
        if parked is not None:
            group = self._join(group.frame, group.pc, [parked, group])
        lanes = group.lane_ids()
        bits = (np.uint64(1) << (lanes & 31).astype(np.uint64)).astype(np.float64)
        warps = wave.size // WARP
        present = np.bincount(lanes >> 5, bits, minlength=warps).astype(np.uint64)
        all_lanes = wave.all_lanes
        live_bits = np.where(wave.live, (np.uint64(1) << (all_lanes & 31).astype(np.uint64)).astype(np.float64), 0.0)
        live = np.bincount(all_lanes >> 5, live_bits, minlength=warps).astype(np.uint64)
        required = live[lanes >> 5]
        if step.members is not None:
            required = required & step.members(group).astype(np.uint64)
        ready = (required & ~present[lanes >> 5]) == 0
        if not ready.all():
            self.parked[key] = group.subset(~ready)
        if ready.any():
            going = group.subset(ready)
            if wave.counts is not None:
                wave.counts.executed(going.pc, going)
            step(going)
            going.pc += 1
            self._put_back(going)

    def _deadlock(self) -> EmulatedFault:
        wave = self.wave
        if self.parked:
            group = next(iter(self.parked.values()))
            return wave.fault(
                group,
                FaultKind.DEADLOCK,
                f"{group.n} threads wait for lanes of their warp that never come",
                int(group.lane_ids()[0]),
            )
        number, waiting = wave.barriers.waiting[0]
        return EmulatedFault(
            wave.make_fault(
                waiting.pc - 1,
                FaultKind.DEADLOCK,
                f"{waiting.lanes.size} threads wait at barrier {number} for threads that never come",
                int(waiting.lanes[0]),
            )
        )
