"""cp.async: copies that stay pending until the wait that covers them, so that a missing wait shows."""

from __future__ import annotations

import numpy as np

from attnprof.emulator.copies import PendingCopy
from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.access import Access, address_of, gather, observe, resolve
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Immediate, Instruction, Register
from attnprof.emulator.types import TYPES

_MODS = (
    "async", "ca", "cg", "shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint",
)  # fmt: skip


@op("cp")
def _copy(d: Decoder, i: Instruction) -> Step:
    if i.mods[:1] != ("async",) or "bulk" in i.mods or "mbarrier" in i.mods:
        raise d.unsupported(i)
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
        taken = np.full(x.n, nbytes, np.int64)
        if length is not None:
            taken = np.minimum(np.broadcast_to(length(x), (x.n,)).astype(np.int64), nbytes)
        elif ignore is not None:
            taken = np.where(ignore(x), 0, nbytes)
        reading = taken > 0
        data = np.zeros((x.n, nbytes), np.uint8)
        if reading.all():
            chunks = resolve(x, "global", addresses, nbytes, "copies")
            if watched:
                observe(wave, x, read, chunks)
            data = gather(x, chunks, 4, nbytes // 4).view(np.uint8).reshape(x.n, nbytes)
            short = taken < nbytes
            if short.any():
                data[np.arange(nbytes) >= taken[:, None]] = 0
        elif reading.any():
            part = x.subset(reading)
            chunks = resolve(part, "global", addresses[reading], nbytes, "copies")
            if watched:
                observe(wave, part, read, chunks)
            rows = gather(part, chunks, 4, nbytes // 4).view(np.uint8).reshape(-1, nbytes)
            rows[np.arange(nbytes) >= taken[reading][:, None]] = 0
            data[reading] = rows
        if watched:
            observe(wave, x, write, targets)
        wave.add_copy(PendingCopy(targets[0].lanes, targets[0].offsets, data, wave.copy_group[targets[0].lanes]), x)

    return run
