"""cp.async: copies that stay pending until the wait that covers them, so that a missing wait shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.copies import PendingCopy
from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.access import Access, address_of, gather, observe, resolve
from attnprof.emulator.ops.mbarrier import arrive, barrier_word
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Immediate, Instruction, Register
from attnprof.emulator.types import TYPES

_MODS = (
    "async", "ca", "cg", "shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint",
)  # fmt: skip


@op("cp")
def _copy(d: Decoder, i: Instruction) -> Step:
    if i.mods[:1] != ("async",) or "bulk" in i.mods:
        raise d.unsupported(i)
    if i.mods[1:3] == ("mbarrier", "arrive"):
        return _arrive_on_completion(d, i)
    if i.mods[1:] == ("commit_group",):
        return lambda x: x.wave.commit_copies(x)
    if i.mods[1:] == ("wait_all",):
        return lambda x: x.wave.wait_copies(x, None)
    if i.mods[1:] == ("wait_group",):
        (count,) = d.args(i, 1)
        if not isinstance(count, Immediate) or not isinstance(count.value, int) or count.value < 0:
            raise d.malformed(i, "the number of groups must be a constant")
        pending = count.value
        return lambda x: x.wave.wait_copies(x, pending)
    d.allow(i, *_MODS)
    operands = d.args(i, 3, 4, 5)
    to, source = address_of(d, i, operands[0]), address_of(d, i, operands[1])
    size = operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16):
        raise d.malformed(i, "the size must be 4, 8 or 16")
    nbytes = int(size.value)
    if "cg" in i.mods and nbytes != 16:
        raise d.malformed(i, ".cg copies 16 bytes")
    # A fourth operand is the number of bytes really read (the rest is zeros), or a predicate that reads none.
    length = None
    ignore = None
    has_policy = "L2::cache_hint" in i.mods
    if len(operands) - has_policy == 4:
        fourth = operands[3]
        if isinstance(fourth, Register) and fourth.type.kind == "p":
            ignore = d.lane(i, fourth, TYPES["pred"])
        else:
            length = d.lane(i, fourth, TYPES["u32"])
    read, write = Access("copy-read", nbytes), Access("copy-write", nbytes)
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        wave = x.wave
        targets = resolve(x, "shared", to(x), nbytes, "copies to")
        addresses = source(x)
        if length is not None:
            taken = np.minimum(np.broadcast_to(length(x), (x.n,)).astype(np.int64), nbytes)
        elif ignore is not None:
            taken = np.where(ignore(x), 0, nbytes)
        else:
            taken = np.full(x.n, nbytes, np.int64)
        whole = taken == nbytes
        if whole.all():
            data = _read(x, addresses, nbytes, read, watched)
        else:
            data = np.zeros((x.n, nbytes), np.uint8)
            if whole.any():
                data[whole] = _read(x.subset(whole), addresses[whole], nbytes, read, watched)
            for byte in range(int(taken[~whole].max())):
                # The end of a tensor: only the bytes that are read need to exist.
                there = ~whole & (taken > byte)
                one = Access("copy-read", 1)
                data[there, byte] = _read(x.subset(there), addresses[there] + np.uint64(byte), 1, one, watched)[:, 0]
        if watched:
            observe(wave, x, write, targets)
        wave.add_copy(PendingCopy(targets[0].lanes, targets[0].offsets, data, wave.copy_group[targets[0].lanes]), x)

    return run


def _arrive_on_completion(d: Decoder, i: Instruction) -> Step:
    """cp.async.mbarrier.arrive: an arrival once this thread's copies are done, which here is at once.

    Without .noinc the arrival is expected on top of the others, so that their number stays the same.
    """
    d.allow(i, "async", "mbarrier", "arrive", "noinc", "shared", "shared::cta")
    address = address_of(d, i, d.args(i, 1)[0])
    counted = "noinc" in i.mods

    def run(x: Active) -> None:
        x.wave.wait_copies(x, None)
        words, at = barrier_word(x, address(x), "arrives at")
        arrive(x, words, at, np.full(x.n, int(counted), np.int64))

    return run


def _read(x: Active, addresses: Any, nbytes: int, access: Access, watched: bool) -> Any:
    """The bytes at each address, a row a lane."""
    chunks = resolve(x, "global", addresses, nbytes, "copies")
    if watched:
        observe(x.wave, x, access, chunks)
    width = min(nbytes, 4)
    return gather(x, chunks, width, nbytes // width).reshape(x.n, -1).view(np.uint8)
