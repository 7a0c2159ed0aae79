"""The state of a wave: its blocks and lanes, memory, copies in flight; and how its faults are located."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.barriers import Barriers
from attnprof.emulator.copies import PendingCopy
from attnprof.emulator.faults import EmulatedFault, Fault, FaultKind
from attnprof.emulator.lanes import WARP, Active, Frame, Lanes
from attnprof.emulator.memory import BadAccess, GlobalSpace, RowSpace, Storage, padded

if TYPE_CHECKING:
    from attnprof.emulator.checks import Checks
    from attnprof.emulator.counts import Counts
    from attnprof.emulator.link import Code, Program

MAX_CALL_DEPTH = 64
MAX_LOCAL_BYTES = 512 * 1024  # a thread: CUDA C++ Programming Guide, technical specifications

_VERBS = {"bounds": FaultKind.OUT_OF_BOUNDS, "alignment": FaultKind.MISALIGNED}
Coordinates = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]
_COPY_SLOT = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A launch's shape: grid and block extents, dynamic shared memory, SMs of the device it stands for."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int
    sm_count: int

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


class Wave:
    """Consecutive blocks of a grid, executed together.

    Attributes:
        size: lanes, padding included; ``blocks`` rows of ``size / blocks``.
        live: which lanes have a thread that has not exited; live_count, live_per_warp and live_per_block count them.
    """

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        first_block: int,
        blocks: int,
        memory: GlobalSpace,
        param_bytes: bytes,
        counts: Counts | None = None,
        checks: Checks | None = None,
        printed: list[str] | None = None,
    ) -> None:
        self.program = program
        self.blocks = blocks
        self.memory = memory
        self.param_bytes = param_bytes
        self.counts = counts
        self.checks = checks
        self.steps: int = 0
        self.arrivals: int = 0
        self.block_shape, self.grid_shape = geometry.block, geometry.grid
        self.dynamic_smem_bytes: int = geometry.dynamic_smem_bytes
        self.sm_count: int = geometry.sm_count
        threads = geometry.threads
        per_block = padded(threads, WARP)
        self.warps_per_block: int = per_block // WARP
        self.size = blocks * per_block
        self.all_lanes: Lanes = np.arange(self.size)
        self.block_row: Lanes = self.all_lanes // per_block
        thread = (self.all_lanes % per_block).astype(np.uint64)
        self.thread_linear: NDArray[np.uint64] = thread
        self.lane_in_warp: NDArray[np.uint64] = thread & np.uint64(31)
        self.thread_index = _coordinates(thread, geometry.block)
        self.block_linear: NDArray[np.uint64] = self.block_row.astype(np.uint64) + np.uint64(first_block)
        self.block_index = _coordinates(self.block_linear, geometry.grid)
        self.live: NDArray[np.bool_] = thread < threads
        self._recount()
        self.launched_per_warp = self.live_per_warp.copy()
        self.shared: RowSpace = RowSpace(
            "shared memory", "shared", program.static_smem_bytes + geometry.dynamic_smem_bytes, blocks
        )
        entry = program.codes[program.entry.name]
        self.local = RowSpace("local memory", "local", entry.local_bytes, self.size)
        self.barriers = Barriers(self)
        self.pending: list[PendingCopy] = []
        self.printed: list[str] = [] if printed is None else printed
        self.copy_group: Lanes = np.zeros(self.size, np.int64)
        self.first = Active(
            self,
            Frame(entry, self.size, None, -1, 0),
            entry.start,
            None if self.live_count == self.size else np.flatnonzero(self.live),
        )
        self.copy_out: dict[tuple[int, str], list[_COPY_SLOT]] = {}
        if checks is not None:
            checks.start_wave(self)

    def _recount(self) -> None:
        per_warp = self.live.reshape(-1, WARP).sum(axis=1)
        self.live_per_warp = per_warp
        self.live_per_block = per_warp.reshape(self.blocks, -1).sum(axis=1)
        self.live_count = int(per_warp.sum())

    def blocks_of(self, lanes: Lanes) -> Lanes:
        """The distinct blocks (rows of the wave) of some lanes."""
        return np.unique(self.block_row[lanes])

    # -- control -------------------------------------------------------------------------------------------------

    def diverged(self, x: Active, taken: NDArray[np.bool_]) -> None:
        """A branch that some lanes take and others don't."""
        if self.counts is not None:
            self.counts.divergence(x, taken)

    def retire(self, x: Active) -> None:
        """Threads exit."""
        self.live[x.lane_ids()] = False
        self._recount()

    def enter(self, x: Active, code: Code, copies_in: Sequence[_COPY_SLOT], copies_out: Sequence[_COPY_SLOT]) -> Active:
        """Call a function: parameters are copied into the frame of this call site."""
        key = (x.pc, code.function.name)
        frame = x.frame.children.get(key)
        if frame is None:
            if x.frame.depth >= MAX_CALL_DEPTH:
                raise self.fault(x, FaultKind.STACK, f"calls nested {MAX_CALL_DEPTH} deep", self._lane(x))
            base = x.frame.local_base + x.frame.code.local_bytes
            if base + code.local_bytes > MAX_LOCAL_BYTES:
                raise self.fault(
                    x, FaultKind.STACK, f"more than {MAX_LOCAL_BYTES} bytes of local memory", self._lane(x)
                )
            frame = Frame(code, self.size, x.frame, x.pc + 1, base)
            self.local.grow(base + code.local_bytes)
            x.frame.children[key] = frame
            self.copy_out[key] = list(copies_out)
        lanes = x.lane_ids()
        for source, target, size in copies_in:
            frame.params[target][lanes, :size] = x.frame.params[source][lanes, :size]
        return Active(self, frame, code.start, x.lanes)

    def leave(self, x: Active) -> list[Active]:
        """Return to the caller; from the kernel itself that is exit."""
        frame = x.frame
        if frame.parent is None:
            self.retire(x)
            return []
        lanes = x.lane_ids()
        for target, source, size in self.copy_out[frame.return_pc - 1, frame.code.function.name]:
            frame.parent.params[target][lanes, :size] = frame.params[source][lanes, :size]
        return [Active(self, frame.parent, frame.return_pc, x.lanes)]

    # -- asynchronous copies -------------------------------------------------------------------------------------

    def add_copy(self, copy: PendingCopy, x: Active) -> None:
        """A copy is issued: it stays pending until a wait covers it."""
        self.pending.append(copy)
        if self.checks is not None:
            self.checks.copy_issued(x, copy)

    def commit_copies(self, x: Active) -> None:
        """cp.async.commit_group."""
        if x.lanes is None:
            self.copy_group += 1
        else:
            self.copy_group[x.lanes] += 1

    def wait_copies(self, x: Active, pending: int | None) -> None:
        """cp.async.wait_group ``pending``, or wait_all for None: write what must have arrived."""
        waiting = np.zeros(self.size, np.bool_)
        waiting[x.lane_ids()] = True
        newest = self.copy_group - pending if pending is not None else self.copy_group + 1
        rest: list[PendingCopy] = []
        for copy in self.pending:
            done = waiting[copy.lanes] & (copy.group < newest[copy.lanes])
            if not done.any():
                rest.append(copy)
                continue
            arrived, left = copy.split(done)
            if left is not None:
                rest.append(left)
            nbytes = arrived.data.shape[1]
            rows = arrived.data.view(np.uint32)
            self.shared.view(self.shared.data, 4, nbytes // 4)[arrived.offsets // nbytes] = (
                rows if nbytes > 4 else rows[:, 0]
            )
            if self.checks is not None:
                self.checks.copy_arrived(x, arrived)
        self.pending = rest

    # -- faults --------------------------------------------------------------------------------------------------

    @staticmethod
    def _lane(x: Active) -> int:
        return int(x.lane_ids()[0])

    def make_fault(
        self, pc: int, kind: FaultKind, message: str, lane: int | None = None, address: int | None = None
    ) -> Fault:
        """A fault at an instruction, with the lane's block and thread."""
        i = self.program.instructions[pc]
        at = i.position
        block = thread = None
        if lane is not None:
            block = _index(self.block_index, lane)
            thread = _index(self.thread_index, lane)
        return Fault(
            kind, message, self.program.entry.name, at.file, at.line, i.opcode, block, thread, address, at.inner
        )

    def fault(
        self, x: Active, kind: FaultKind, message: str, lane: int | None = None, address: int | None = None
    ) -> EmulatedFault:
        """The exception for a fault at a group's instruction."""
        return EmulatedFault(self.make_fault(x.pc, kind, message, lane, address))

    def bad_access(self, x: Active, bad: BadAccess, verb: str, lane: int) -> EmulatedFault:
        """An access out of bounds or misaligned."""
        return self.fault(x, _VERBS[bad.kind], f"{verb} {bad.message}", lane, bad.address & 0xFFFFFFFFFFFFFFFF)

    def read_only(self, x: Active, storage: Storage, lane: int) -> EmulatedFault:
        """A write to memory that kernels can only read."""
        return self.fault(x, FaultKind.READ_ONLY, f"writes to {storage.name}", lane)

    def too_many_arrivals(self, x: Active, lane: int, total: int, missing: int) -> EmulatedFault:
        """More threads at an mbarrier than its phase expects."""
        message = f"{total} arrivals at an mbarrier whose phase waits for {missing}"
        return self.fault(x, FaultKind.DIVERGENT_BARRIER, message, lane)

    def stop(self, x: Active, message: str) -> EmulatedFault:
        """An operand that has no meaning."""
        return self.fault(x, FaultKind.TRAP, message, self._lane(x))

    def trap(self, x: Active) -> EmulatedFault:
        """The kernel stopped itself."""
        return self.fault(x, FaultKind.TRAP, "the kernel executed trap", self._lane(x))

    def partial_collective(self, x: Active) -> EmulatedFault:
        """A tensor-core operation with part of a warp."""
        lanes = x.lane_ids()
        per_warp = np.bincount(lanes >> 5, minlength=self.size // WARP)
        warp = int(np.flatnonzero((per_warp > 0) & (per_warp < WARP))[0])
        return self.fault(
            x,
            FaultKind.DIVERGENT_COLLECTIVE,
            f"executed by {int(per_warp[warp])} of a warp's 32 lanes",
            int(lanes[lanes >> 5 == warp][0]),
        )

    def divergent_barrier(self, pc: int, lane: int, other_pc: int | None) -> EmulatedFault:
        """Lanes of one warp at different barriers, or only part of a warp at one."""
        if other_pc is None:
            message = "only part of a warp reaches this barrier"
        else:
            other = self.program.instructions[other_pc].position
            message = f"lanes of the same warp wait at another barrier (line {other.line or '?'})"
        return EmulatedFault(self.make_fault(pc, FaultKind.DIVERGENT_BARRIER, message, lane))


def _index(axes: Coordinates, lane: int) -> tuple[int, int, int]:
    return int(axes[0][lane]), int(axes[1][lane]), int(axes[2][lane])


def _coordinates(linear: NDArray[np.uint64], shape: tuple[int, int, int]) -> Coordinates:
    x, y = np.uint64(shape[0]), np.uint64(shape[1])
    return linear % x, linear // x % y, linear // (x * y)
