"""atom and red: read-modify-write, one lane after another where addresses coincide."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active, AnyArray
from attnprof.emulator.ops.access import Access, Chunk, address_of, forbid_write, observe, resolve, space_of
from attnprof.emulator.ops.packed import pack, unpack
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES, PtxType

_OPERATIONS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
_MODS = (
    *_OPERATIONS, "relaxed", "acquire", "release", "acq_rel", "gpu", "cta", "sys", "cluster", "noftz", "global",
    "shared", "shared::cta", "L2::cache_hint", "v2", "v4",
)  # fmt: skip


def _combine(operation: str, kind: PtxType) -> Any:
    """New = combine(old, operand), on values of the type."""
    if operation == "add" and kind.name in ("f16", "f16x2", "bf16", "bf16x2"):
        return lambda old, v: pack(unpack(old, kind) + unpack(v, kind), kind)
    table: dict[str, Any] = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda _old, v: v,
        # inc wraps to 0 past the operand, dec to the operand below 0 (PTX ISA, atom).
        "inc": lambda old, v: np.where(old >= v, 0, old + 1).astype(old.dtype),
        "dec": lambda old, v: np.where((old == 0) | (old > v), v, old - 1).astype(old.dtype),
    }
    return table[operation]


@op("atom", "red")
def _atomic(d: Decoder, i: Instruction) -> Step:
    d.allow(i, *_MODS)
    operation = next((m for m in i.mods if m in _OPERATIONS), None)
    if operation is None:
        raise d.malformed(i, "no operation")
    kind = d.types(i)[-1]
    returns = i.op == "atom"
    if "v2" in i.mods or "v4" in i.mods:
        return _vector(d, i, kind, operation)
    operands = i.operands if returns else (None, *i.operands)
    cas = operation == "cas"
    wanted = 4 if cas else 3
    if len(operands) not in (wanted, wanted + ("L2::cache_hint" in i.mods)):
        raise d.malformed(i, f"{len(i.operands)} operands")
    if kind.kind == "f" and kind.bits > 16 and operation not in ("add", "exch"):
        raise d.unsupported(i)
    if kind.bits not in (16, 32, 64):
        raise d.unsupported(i)
    dest, where, first = operands[0], operands[1], operands[2]
    if where is None or first is None:
        raise d.malformed(i, "its operands are missing")
    bits = TYPES[f"b{kind.bits}"]
    put = d.lane_put(i, dest, bits) if dest is not None else None
    address = address_of(d, i, where)
    value = d.lane(i, first, kind)
    swap = d.lane(i, operands[3], kind) if cas and operands[3] is not None else None
    combine = None if cas else _combine(operation, kind)
    space, width = space_of(i), kind.nbytes
    access = Access("atomic", width, sync=True)
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        chunks = resolve(x, space, address(x), width, "updates")
        forbid_write(x, chunks)
        if watched:
            observe(x.wave, x, access, chunks)
        operand = np.ascontiguousarray(np.broadcast_to(value(x), (x.n,)))
        swaps = None if swap is None else np.broadcast_to(swap(x), (x.n,))
        olds = np.zeros(x.n, kind.dtype)
        for chunk in chunks:
            select: Any = slice(None) if chunk.where is None else chunk.where
            olds[select] = _rounds(
                chunk, width, kind, combine, operand[select], None if swaps is None else swaps[select]
            )
        if put is not None:
            put(x, olds.view(kind.storage))

    return run


def _vector(d: Decoder, i: Instruction, kind: PtxType, operation: str) -> Step:
    """red.v2 and .v4 in global memory (sm_90): each element for itself, the whole aligned to its size."""
    count = 4 if "v4" in i.mods else 2
    where, first = d.args(i, 2, 3)[:2]
    sources = d.items(first)
    if i.op != "red" or operation != "add" or kind.name != "f32" or space_of(i) != "global":
        raise d.unsupported(i)
    if len(sources) != count:
        raise d.malformed(i, f"{len(sources)} sources for {count} elements")
    address = address_of(d, i, where)
    values = [d.lane(i, source, kind) for source in sources]
    combine = _combine(operation, kind)
    width, nbytes = kind.nbytes, kind.nbytes * count
    access = Access("atomic", nbytes, sync=True)
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        chunks = resolve(x, "global", address(x), nbytes, "updates")
        forbid_write(x, chunks)
        if watched:
            observe(x.wave, x, access, chunks)
        for at, value in enumerate(values):
            operand = np.ascontiguousarray(np.broadcast_to(value(x), (x.n,)))
            for chunk in chunks:
                select: Any = slice(None) if chunk.where is None else chunk.where
                one = Chunk(chunk.storage, chunk.offsets + at * width, chunk.lanes, chunk.where)
                _rounds(one, width, kind, combine, operand[select], None)

    return run


def _rounds(chunk: Chunk, width: int, kind: PtxType, combine: Any, operand: AnyArray, swaps: Any) -> AnyArray:
    """Apply lane after lane to each address: as many vector rounds as the busiest address has lanes."""
    view = chunk.storage.view(chunk.storage.data, width).view(kind.dtype)
    at = chunk.offsets // width
    order = np.argsort(at, kind="stable")
    sorted_at = at[order]
    starts = np.flatnonzero(np.concatenate(([True], sorted_at[1:] != sorted_at[:-1])))
    counts = np.diff(np.append(starts, at.size))
    olds = np.empty(at.size, kind.dtype)
    for turn in range(int(counts.max())):
        lanes = order[starts[counts > turn] + turn]
        where = at[lanes]
        old = view[where]
        olds[lanes] = old
        if combine is None:
            view[where] = np.where(old == operand[lanes], swaps[lanes], old)
        else:
            view[where] = combine(old, operand[lanes])
    return olds
