"""Counts what a launch does: instructions, memory requests, bank conflicts, matrix FLOPs, exponentials, divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.lanes import WARP, Active
from attnprof.emulator.memory import Allocation, RowSpace
from attnprof.emulator.traffic import coalesce, wavefronts

if TYPE_CHECKING:
    from attnprof.emulator.link import Program
    from attnprof.emulator.ops.access import Access, Chunk

# Shared-memory access patterns whose wavefronts are remembered; a loop repeats a handful of them.
_REMEMBERED = 4096


class TensorTally:
    """Traffic of one tensor: what lanes asked for, and the sectors that it took."""

    __slots__ = ("read_bytes", "read_sectors", "write_bytes", "write_sectors")

    def __init__(self) -> None:
        self.read_bytes = self.write_bytes = self.read_sectors = self.write_sectors = 0


class Counts:
    """All counters of one launch."""

    def __init__(self, program: Program, allocations: Sequence[Allocation]) -> None:
        size = len(program.steps)
        self.allocations = tuple(allocations)
        for allocation in self.allocations:
            allocation.watch_touches()
        self.tensors = {id(allocation): TensorTally() for allocation in self.allocations}
        self.warps = [0] * size
        self.lanes = [0] * size
        self.global_requests = [0] * size
        self.global_sectors = [0] * size
        self.global_bytes = [0] * size
        self.global_useful_bytes = [0] * size
        self.local_requests = [0] * size
        self.shared_requests = [0] * size
        self.shared_wavefronts = [0] * size
        self.shared_ideal = [0] * size
        self.flops = [0] * size
        self.barriers = [0] * size
        self.divergent = [0] * size
        self._patterns: dict[tuple[int, bool, bool, bytes], tuple[int, int]] = {}

    def executed(self, pc: int, x: Active) -> None:
        """An instruction is issued for a group."""
        self.warps[pc] += x.warps
        self.lanes[pc] += x.n

    def predicated_off(self, x: Active, lanes: int) -> None:
        """Lanes whose guard is false."""
        self.lanes[x.pc] -= lanes

    def matrix(self, x: Active, flops: int) -> None:
        """A tensor-core product."""
        self.flops[x.pc] += flops

    def barrier(self, x: Active, blocks: int) -> None:
        """Blocks that passed a barrier."""
        self.barriers[x.pc] += blocks

    def divergence(self, x: Active, taken: NDArray[np.bool_]) -> None:
        """Warps whose lanes part ways at a branch."""
        warps = x.lane_ids() >> 5
        minlength = x.wave.size // WARP
        here = np.bincount(warps, minlength=minlength)
        went = np.bincount(warps[taken], minlength=minlength)
        self.divergent[x.pc] += int(np.count_nonzero((went > 0) & (went < here)))

    def access(self, x: Active, access: Access, chunks: list[Chunk]) -> None:
        """A load, store, atomic or copy."""
        for chunk in chunks:
            storage = chunk.storage
            if storage.space == "shared" and isinstance(storage, RowSpace):
                self._shared(x, access, chunk, storage)
            elif storage.space == "local":
                self.local_requests[x.pc] += np.unique(chunk.lanes >> 5).size
            elif storage.space == "global":
                self._global(x, access, chunk)

    def _global(self, x: Active, access: Access, chunk: Chunk) -> None:
        nbytes = access.nbytes
        requests, sectors, distinct = coalesce(chunk.lanes, chunk.offsets, nbytes)
        asked = int(chunk.offsets.size) * nbytes
        self.global_requests[x.pc] += requests
        self.global_sectors[x.pc] += sectors
        self.global_bytes[x.pc] += asked
        self.global_useful_bytes[x.pc] += distinct
        storage = chunk.storage
        tally = self.tensors.get(id(storage))
        reads = access.kind in ("load", "copy-read", "atomic")
        writes = access.kind in ("store", "atomic")
        # Marks stand in the widest elements that the access is made of.
        width = min(nbytes, 8)
        count = nbytes // width
        at = chunk.offsets // nbytes
        if reads and storage.reads is not None:
            storage.view(storage.reads, width, count)[at] = np.iinfo(f"u{width}").max
        if writes and storage.writes is not None:
            storage.view(storage.writes, width, count)[at] = np.iinfo(f"u{width}").max
        if tally is not None:
            if reads:
                tally.read_bytes += asked
                tally.read_sectors += sectors
            if writes:
                tally.write_bytes += asked
                tally.write_sectors += sectors

    def _shared(self, x: Active, access: Access, chunk: Chunk, storage: RowSpace) -> None:
        lanes = chunk.lanes
        if lanes.size == x.wave.size:
            addresses = chunk.offsets.reshape(-1, WARP)
        else:
            warps = lanes >> 5
            first = np.ones(warps.size, np.bool_)
            np.not_equal(warps[1:], warps[:-1], out=first[1:])
            row = np.cumsum(first) - 1
            addresses = np.full((int(row[-1]) + 1, WARP), -1, np.int64)
            addresses[row, lanes & 31] = chunk.offsets
        # Rows start at multiples of 16 bytes: take each block's start off, so that banks count from the block's own 0.
        start = (addresses.max(axis=1) // max(1, storage.stride)) * storage.stride
        addresses = np.where(addresses >= 0, addresses - start[:, None], -1)
        # Moving a pattern by a multiple of 128 bytes changes no bank: patterns that differ by that are one.
        least = np.where(addresses >= 0, addresses, np.int64(1) << 60).min(axis=1) & ~np.int64(127)
        addresses = np.where(addresses >= 0, addresses - least[:, None], -1).astype(np.int32)
        serialise = access.kind == "atomic"
        load = access.kind == "load" and not access.matrix
        key = (access.nbytes, load, serialise, addresses.tobytes())
        found = self._patterns.get(key)
        if found is None:
            if len(self._patterns) >= _REMEMBERED:
                self._patterns.clear()
            found = self._patterns[key] = wavefronts(addresses, access.nbytes, load=load, serialise=serialise)
        self.shared_requests[x.pc] += addresses.shape[0]
        self.shared_wavefronts[x.pc] += found[0]
        self.shared_ideal[x.pc] += found[1]
