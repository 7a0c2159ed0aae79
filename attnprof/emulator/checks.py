"""Finds what a correct result can hide: races, reads of nothing, copies that nobody waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.births import Births
from attnprof.emulator.copies import PendingCopy
from attnprof.emulator.faults import Fault, FaultKind
from attnprof.emulator.lanes import WARP, Active, Lanes
from attnprof.emulator.memory import Allocation, Storage
from attnprof.emulator.shadow import CLOCK, NOBODY, PC, SEQUENCE, THREAD, Records, Shadow, granules_of

if TYPE_CHECKING:
    from attnprof.emulator.link import Program
    from attnprof.emulator.ops.access import Access, Chunk
    from attnprof.emulator.wave import Geometry, Wave

# Different faults, by `Fault.key`, that one launch keeps.
MAX_FAULTS = 100


class Checks:
    """The checks of one launch; what they find is in ``faults``, the same kind at the same lines once, with its count.

    Two accesses are ordered when one thread makes both, or when a barrier that both warps pass lies between them
    (``__syncwarp`` for threads of one warp). Without one, and always between blocks, it takes a fence in the one that
    wrote and an atomic or volatile access after it in the other.
    """

    def __init__(self, program: Program, geometry: Geometry, allocations: Sequence[Allocation]) -> None:
        self.births = Births()
        self._found: dict[tuple[object, ...], Fault] = {}
        granules = granules_of(program)
        self._granule = granules["shared"]
        self._shadows = {id(a): Shadow(a, granules["global"]) for a in allocations}
        self._sequence = 0
        warps = -(-geometry.threads // WARP)
        # When a warp last fenced, and last made an atomic or volatile access: a row a block of the grid.
        self._fences = np.full((geometry.blocks, warps), -1, np.int64)
        self._syncs = np.full((geometry.blocks, warps), -1, np.int64)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What was found so far, in the order of first appearance."""
        return tuple(self._found.values())

    def start_wave(self, wave: Wave) -> None:
        """Fresh shared memory and clocks for the next blocks."""
        self.wave = wave
        self.births = Births()
        wave.shared.written = np.zeros(wave.shared.data.size, np.uint8)
        self._shared = Shadow(wave.shared, self._granule)
        self._mbarriers: dict[int, NDArray[np.int32]] = {}
        warps = wave.size // WARP
        self._clock = np.ones(warps, np.int32)
        # What each warp knows of the others of its block: accesses up to this clock are ordered before its own.
        self._known = np.zeros((warps, wave.warps_per_block), np.int32)
        per_block = wave.size // wave.blocks
        self._thread_ids = (wave.block_linear * np.uint64(per_block) + wave.thread_linear).astype(np.int64)

    # -- synchronisation -----------------------------------------------------------------------------------------

    def block_barrier(self, lanes: Lanes) -> None:
        """A barrier that these lanes pass together, block by block."""
        per_block = self.wave.warps_per_block
        warps = np.unique(lanes >> 5)
        if warps.size == self._clock.size:
            table = self._clock.reshape(-1, per_block)
            self._known[:] = np.repeat(table, per_block, axis=0)
        else:
            for block in np.unique(warps // per_block):
                members = warps[warps // per_block == block]
                known = self._known[members].max(axis=0)
                known[members % per_block] = self._clock[members]
                self._known[members] = known
        self._clock[warps] += 1

    def warp_barrier(self, x: Active) -> None:
        """__syncwarp."""
        warps = x.warp_ids
        self._known[warps, warps % self.wave.warps_per_block] = self._clock[warps]
        self._clock[warps] += 1

    def mbarrier_initialised(self, at: Lanes) -> None:
        """A new mbarrier orders nothing yet."""
        for where in np.unique(at):
            self._mbarriers.pop(int(where), None)

    def mbarrier_arrived(self, x: Active, at: Lanes) -> None:
        """What the arriving warps know, and what they did so far, passes to whoever waits."""
        per_block = self.wave.warps_per_block
        lanes = x.lane_ids()
        for where in np.unique(at):
            for warp in np.unique(lanes[at == where] >> 5):
                carried = self._mbarriers.setdefault(int(where), np.zeros(per_block, np.int32))
                np.maximum(carried, self._known[warp], out=carried)
                carried[warp % per_block] = self._clock[warp]
        self._clock[x.warp_ids] += 1

    def mbarrier_waited(self, x: Active, at: Lanes) -> None:
        """A wait that succeeded: the warps learn what the arrivals carried."""
        lanes = x.lane_ids()
        for where in np.unique(at):
            carried = self._mbarriers.get(int(where))
            if carried is not None:
                warps = np.unique(lanes[at == where] >> 5)
                self._known[warps] = np.maximum(self._known[warps], carried)

    def fence(self, x: Active) -> None:
        """__threadfence: what these warps wrote so far may be seen by others."""
        self._sequence += 1
        self._fences[self._places(x)] = self._sequence

    def _places(self, x: Active) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Block of the grid and warp of the block, for each warp of a group."""
        warps = x.warp_ids
        return self.wave.block_linear[warps * WARP].astype(np.int64), warps % self.wave.warps_per_block

    # -- accesses ------------------------------------------------------------------------------------------------

    def access(self, x: Active, access: Access, chunks: list[Chunk]) -> None:
        """A load, an atomic or the source of a copy; stores come through `store`."""
        self._sequence += 1
        if access.sync:
            self._syncs[self._places(x)] = self._sequence
        if access.kind in ("store", "copy-write"):
            return
        for chunk in chunks:
            shadow = self._shadow(chunk.storage)
            if shadow is None:
                continue
            self._initialised(x, chunk, access.nbytes)
            at, count = shadow.granules(chunk.offsets, access.nbytes)
            lanes = chunk.lanes if count == 1 else np.repeat(chunk.lanes, count)
            if access.kind == "atomic":
                rows = self._rows(x, shadow, lanes)
                self._check_pending(x, shadow, at, lanes)
                self._against(x, shadow, at, shadow.write[at], rows, lanes, ~shadow.atomic[at], "updates what", "wrote")
                self._against(x, shadow, at, shadow.read[at], rows, lanes, None, "updates what", "read")
                shadow.record_write(at, rows, atomic=True)
                self._mark(chunk, access.nbytes)
            elif not access.sync:
                rows = self._rows(x, shadow, lanes)
                self._check_pending(x, shadow, at, lanes)
                self._against(x, shadow, at, shadow.write[at], rows, lanes, None, "reads what", "wrote")
                shadow.record_read(at, rows)

    def store(self, x: Active, access: Access, chunks: list[Chunk], width: int, count: int, data: Any) -> None:
        """A store, before it changes memory. Writing the value that is there already races with no other write."""
        for chunk in chunks:
            shadow = self._shadow(chunk.storage)
            if shadow is None:
                continue
            values = data if chunk.where is None else data[chunk.where]
            at, per_access = shadow.granules(chunk.offsets, access.nbytes)
            lanes = chunk.lanes if per_access == 1 else np.repeat(chunk.lanes, per_access)
            rows = self._rows(x, shadow, lanes)
            if not access.sync:
                self._check_pending(x, shadow, at, lanes)
                view = chunk.storage.view(chunk.storage.data, width, count)
                same = view[chunk.offsets // access.nbytes] == values
                differs = ~(same if count == 1 else same.all(axis=1))
                if differs.any():
                    changed = np.repeat(differs, per_access)
                    self._against(x, shadow, at, shadow.write[at], rows, lanes, changed, "overwrites what", "wrote")
                for reads in (shadow.read, shadow.other_read):
                    self._against(x, shadow, at, reads[at], rows, lanes, None, "overwrites what", "read")
            shadow.record_write(at, rows, atomic=access.sync)
            self._collisions(x, shadow, chunk, at[::per_access], values, count)
            self._mark(chunk, access.nbytes)

    def copy_issued(self, x: Active, copy: PendingCopy) -> None:
        """The target of a copy belongs to the copy until it has arrived."""
        shadow = self._shared
        at, count = shadow.granules(copy.offsets, copy.data.shape[1])
        lanes = copy.lanes if count == 1 else np.repeat(copy.lanes, count)
        rows = self._rows(x, shadow, lanes)
        self._check_pending(x, shadow, at, lanes)
        self._against(x, shadow, at, shadow.write[at], rows, lanes, None, "copies over what", "wrote")
        for reads in (shadow.read, shadow.other_read):
            self._against(x, shadow, at, reads[at], rows, lanes, None, "copies over what", "read")
        shadow.pending[at] = True

    def copy_arrived(self, x: Active, copy: PendingCopy) -> None:
        """A wait of the issuing threads covers the copy: now it counts as their write."""
        shadow = self._shared
        nbytes = copy.data.shape[1]
        at, count = shadow.granules(copy.offsets, nbytes)
        lanes = copy.lanes if count == 1 else np.repeat(copy.lanes, count)
        shadow.pending[at] = False
        shadow.record_write(at, self._rows(x, shadow, lanes), atomic=False)
        if shadow.storage.written is not None:
            self._fill(shadow.storage, shadow.storage.written, copy.offsets, nbytes)

    def shuffle_sources(self, x: Active, sources: Lanes) -> None:
        """A shuffle must not read a lane that takes no part in it."""
        if x.full_warps:
            return
        taking_part = np.zeros(self.wave.size, np.bool_)
        taking_part[x.lane_ids()] = True
        absent = ~taking_part[sources]
        if absent.any():
            lane = int(x.lane_ids()[absent][0])
            self._report(x.pc, FaultKind.DIVERGENT_COLLECTIVE, "reads from a lane that takes no part", lane)

    def nan_born(self, pc: int, lanes: Lanes) -> None:
        """An instruction made a NaN out of numbers, and it matters."""
        self._report(pc, FaultKind.NAN_BORN, "makes a NaN out of numbers", int(lanes[0]))

    # -- details -------------------------------------------------------------------------------------------------

    def _shadow(self, storage: Storage) -> Shadow | None:
        return self._shared if storage is self.wave.shared else self._shadows.get(id(storage))

    def _rows(self, x: Active, shadow: Shadow, lanes: Lanes) -> Records:
        rows = np.empty((lanes.size, 4), np.int32)
        rows[:, THREAD] = lanes if shadow is self._shared else self._thread_ids[lanes]
        rows[:, CLOCK] = self._clock[lanes >> 5]
        rows[:, PC] = x.pc
        rows[:, SEQUENCE] = self._sequence
        return rows

    def _against(
        self,
        x: Active,
        shadow: Shadow,
        granules: NDArray[np.int64],
        before: Records,
        rows: Records,
        lanes: Lanes,
        only: NDArray[np.bool_] | None,
        verb: str,
        did: str,
    ) -> None:
        """Report an earlier access by another thread that nothing orders before this one."""
        other = before[:, THREAD]
        suspect = (other != NOBODY) & (other != rows[:, THREAD])
        if only is not None:
            suspect &= only
        if not suspect.any():
            return
        # Most suspects are ordered by a barrier: find the few that are not before looking at fences.
        wave = self.wave
        per_block = wave.size // wave.blocks
        at = np.flatnonzero(suspect)
        lanes, other, before = lanes[at], other[at], before[at]
        known = self._known[lanes >> 5, (other % per_block) >> 5] >= before[:, CLOCK]
        if shadow is not self._shared:
            known &= other // per_block == wave.block_linear[lanes].astype(np.int64)
        if known.all():
            return
        at, lanes, other, before = at[~known], lanes[~known], other[~known].astype(np.int64), before[~known]
        racing = ~self._published(shadow, lanes, other, before)
        if not racing.any():
            return
        first = int(np.flatnonzero(racing)[0])
        there = wave.program.instructions[int(before[first, PC])].position
        granule = int(granules[at[first]])
        thread = int(other[first])
        who = self._name(thread if shadow is not self._shared else int(self._thread_ids[thread]))
        message = f"{verb} {who} {did} at line {there.line or '?'} in {shadow.storage.name}, with no barrier in between"
        lane = int(lanes[first])
        other_place = (there.file, there.line) if there.line else None
        self._report(x.pc, FaultKind.RACE, message, lane, self._address(shadow, granule, lane), other_place)

    def _published(self, shadow: Shadow, lanes: Lanes, other: NDArray[np.int64], before: Records) -> NDArray[np.bool_]:
        """Whether a fence after the earlier access and a synchronising access after that order the two.

        Between blocks any warp of theirs may have fenced, and any of mine synchronised; within a block, where barriers
        are the rule, it must be the two warps themselves.
        """
        wave = self.wave
        per_block = wave.size // wave.blocks
        mine = wave.block_linear[lanes].astype(np.int64)
        theirs = mine if shadow is self._shared else other // per_block
        local = theirs == mine
        my_warp, other_warp = (lanes >> 5) % wave.warps_per_block, (other % per_block) >> 5
        fence = np.where(local, self._fences[theirs, other_warp], self._fences[theirs].max(axis=1))
        sync = np.where(local, self._syncs[mine, my_warp], self._syncs[mine].max(axis=1))
        ordered: NDArray[np.bool_] = (fence > before[:, SEQUENCE]) & (sync > fence)
        return ordered

    def _name(self, thread_id: int) -> str:
        per_block = self.wave.size // self.wave.blocks
        block, thread = divmod(thread_id, per_block)
        bx, by, _ = self.wave.block_shape
        gx, gy, _ = self.wave.grid_shape
        t = (thread % bx, thread // bx % by, thread // (bx * by))
        b = (block % gx, block // gx % gy, block // (gx * gy))
        return f"thread {t} of block {b}"

    def _check_pending(self, x: Active, shadow: Shadow, at: NDArray[np.int64], lanes: Lanes) -> None:
        if shadow is not self._shared:
            return
        pending = shadow.pending[at]
        if pending.any():
            index = int(np.flatnonzero(pending)[0])
            self._report(
                x.pc,
                FaultKind.ASYNC_UNWAITED,
                "touches shared memory that an asynchronous copy has not yet filled: no wait covers it",
                int(lanes[index]),
                self._address(shadow, int(at[index]), int(lanes[index])),
            )

    def _address(self, shadow: Shadow, granule: int, lane: int) -> int:
        offset = granule * shadow.granule
        if shadow is self._shared:
            return offset - int(self.wave.block_row[lane]) * self.wave.shared.stride
        storage = shadow.storage
        return offset + (storage.base if isinstance(storage, Allocation) else 0)

    def _initialised(self, x: Active, chunk: Chunk, nbytes: int) -> None:
        written = chunk.storage.written
        if written is None:
            return
        width = min(nbytes, 8)
        marks: Any = chunk.storage.view(written, width, nbytes // width).take(chunk.offsets // nbytes, axis=0)
        whole = marks == np.iinfo(marks.dtype).max
        if whole.all():
            return
        bad = ~(whole if whole.ndim == 1 else whole.all(axis=1))
        index = int(np.flatnonzero(bad)[0])
        lane = int(chunk.lanes[index])
        offset = int(chunk.offsets[index])
        base = chunk.storage.base if isinstance(chunk.storage, Allocation) else 0
        if chunk.storage is self.wave.shared:
            offset -= int(self.wave.block_row[lane]) * self.wave.shared.stride
            if self._shared.pending[self._shared.granules(chunk.offsets[index : index + 1], nbytes)[0]].any():
                return  # reported as an unwaited copy, which says more
        self._report(
            x.pc,
            FaultKind.UNINITIALISED,
            f"reads {nbytes} bytes of {chunk.storage.name} that nothing wrote",
            lane,
            base + offset,
        )

    def _collisions(
        self, x: Active, shadow: Shadow, chunk: Chunk, at: NDArray[np.int64], values: Any, count: int
    ) -> None:
        """Two lanes that store different values to one place in one instruction."""
        own = chunk.lanes if shadow is self._shared else self._thread_ids[chunk.lanes]
        winner = shadow.write[at, THREAD]
        lost = winner != own
        if not lost.any():
            return
        order = np.argsort(own)
        position = order[np.searchsorted(own[order], winner[lost])]
        same = values[lost] == values[position]
        differs = ~(same if count == 1 else same.all(axis=1))
        if differs.any():
            lane = int(chunk.lanes[lost][differs][0])
            message = (
                f"stores to a place of {shadow.storage.name} to which another thread stores a different value at once"
            )
            self._report(x.pc, FaultKind.RACE, message, lane)

    def _mark(self, chunk: Chunk, nbytes: int) -> None:
        if chunk.storage.written is not None:
            self._fill(chunk.storage, chunk.storage.written, chunk.offsets, nbytes)

    @staticmethod
    def _fill(storage: Storage, marks: NDArray[np.uint8], offsets: NDArray[np.int64], nbytes: int) -> None:
        width = min(nbytes, 8)
        view = storage.view(marks, width, nbytes // width)
        view[offsets // nbytes] = np.iinfo(view.dtype).max

    def _report(
        self,
        pc: int,
        kind: FaultKind,
        message: str,
        lane: int,
        address: int | None = None,
        other: tuple[str, int] | None = None,
    ) -> None:
        fault = replace(self.wave.make_fault(pc, kind, message, lane, address), other=other)
        first = self._found.get(fault.key)
        if first is not None:
            self._found[fault.key] = replace(first, count=first.count + 1)
        elif len(self._found) < MAX_FAULTS:
            self._found[fault.key] = fault
