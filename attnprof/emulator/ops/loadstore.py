"""ld, st, ldu, prefetch and the parameters of kernels and calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.access import Access, address_of, forbid_write, gather, observe, resolve, scatter, space_of
from attnprof.emulator.ops.registry import Step, op
from attnprof.emulator.program import Address, Immediate, Instruction, Register, Symbol, Vector
from attnprof.emulator.types import TYPES, PtxType

# Cache operators and eviction hints change where a line stays, never what is read.
_HINTS = (
    "ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "weak", "volatile", "relaxed", "acquire", "release", "mmio",
    "cta", "gpu", "sys", "cluster", "v2", "v4", "v8", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
    "L1::evict_last", "L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::cache_hint",
    "L2::64B", "L2::128B", "L2::256B", "unified",
)  # fmt: skip
_SPACE_MODS = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry", "param::func")
_SYNC = ("volatile", "relaxed", "acquire", "release", "mmio")


def _vector_length(i: Instruction) -> int:
    return next((int(m[1:]) for m in i.mods if m in ("v2", "v4", "v8")), 1)


def _register_type(kind: PtxType) -> PtxType:
    """How a loaded value sits in a register: as bits, but signed integers extend their sign."""
    return kind if kind.kind in "us" else TYPES[f"b{kind.bits}"]


@op("ld", "ldu")
def _load(d: Decoder, i: Instruction) -> Step:
    d.allow(i, *_HINTS, *_SPACE_MODS)
    kind = d.types(i)[-1]
    operands = d.args(i, 2, 3)
    count = _vector_length(i)
    dests = d.items(operands[0])
    if len(dests) != count or kind.bits == 1:
        raise d.malformed(i, f"{len(dests)} destinations for {count} elements")
    puts = [d.lane_put(i, dest, _register_type(kind)) for dest in dests]
    space = space_of(i)
    if space == "param":
        step = _load_param(d, i, kind, puts)
        if step is not None:
            return step
    address = address_of(d, i, operands[1])
    access = Access("load", kind.nbytes * count, sync=any(m in _SYNC for m in i.mods))
    width, nbytes = kind.nbytes, kind.nbytes * count
    watched = d.watch.counts or d.watch.checks
    dtype = kind.dtype if kind.kind in "us" else kind.storage
    put = puts[0]

    def run(x: Active) -> None:
        chunks = resolve(x, space, address(x), nbytes, "reads")
        if watched:
            observe(x.wave, x, access, chunks)
        values = gather(x, chunks, width, count)
        if count == 1:
            put(x, values.view(dtype))
        else:
            for at, put_element in enumerate(puts):
                put_element(x, values[:, at].copy().view(dtype))

    return run


def _load_param(d: Decoder, i: Instruction, kind: PtxType, puts: list[Any]) -> Step | None:
    """A kernel parameter is the same for every lane; a call's parameter is a row a lane of the frame."""
    address = i.operands[1]
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        return None
    name, offset = address.base.name, address.offset
    width, count = kind.nbytes, len(puts)
    dtype = kind.dtype if kind.kind in "us" else kind.storage
    layout = d.layout
    if layout.function is layout.entry and name in layout.entry.param_offsets:
        at = layout.entry.param_offsets[name] + offset
        if at < 0 or at + width * count > layout.entry.param_offsets[""]:
            raise d.malformed(i, f"offset {offset} lies outside the kernel's parameters")

        def run_entry(x: Active) -> None:
            block = x.wave.param_bytes
            for n, put in enumerate(puts):
                start = at + n * width
                put(x, np.frombuffer(block, dtype, 1, start) if x.lanes is None else _repeat(block, dtype, start, x.n))

        return run_entry
    if layout.param_slot(name):
        _check_slot(d, i, name, offset, width * count)

        def run_slot(x: Active) -> None:
            rows = x.frame.params[name]
            rows = rows if x.lanes is None else rows[x.lanes]
            for n, put in enumerate(puts):
                start = offset + n * width
                put(x, np.ascontiguousarray(rows[:, start : start + width]).reshape(-1).view(dtype))

        return run_slot
    raise d.malformed(i, f"{name} is no parameter")


def _repeat(block: bytes, dtype: Any, start: int, n: int) -> Any:
    return np.full(n, np.frombuffer(block, dtype, 1, start)[0])


def _check_slot(d: Decoder, i: Instruction, name: str, offset: int, nbytes: int) -> None:
    size = d.layout.codes[d.layout.function.name].param_sizes[name]
    if offset < 0 or offset + nbytes > -(-size // 16) * 16:
        raise d.malformed(i, f"offset {offset} lies outside the parameter {name}")


@op("st")
def _store(d: Decoder, i: Instruction) -> Step:
    d.allow(i, *_HINTS, *_SPACE_MODS)
    kind = d.types(i)[-1]
    operands = d.args(i, 2, 3)
    count = _vector_length(i)
    sources = operands[1].items if isinstance(operands[1], Vector) else (operands[1],)
    if len(sources) != count or kind.bits == 1:
        raise d.malformed(i, f"{len(sources)} sources for {count} elements")
    values = [d.lane(i, s, _source_type(kind, s)) for s in sources]
    space = space_of(i)
    width, nbytes = kind.nbytes, kind.nbytes * count
    if space == "param":
        return _store_param(d, i, kind, values)
    address = address_of(d, i, operands[0])
    access = Access("store", nbytes, sync=any(m in _SYNC for m in i.mods))
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        chunks = resolve(x, space, address(x), nbytes, "writes")
        forbid_write(x, chunks)
        if count == 1:
            data = values[0](x).view(kind.storage)
            if data.size != x.n:
                data = np.full(x.n, data[0])
        else:
            data = np.empty((x.n, count), kind.storage)
            for at, value in enumerate(values):
                data[:, at] = value(x).view(kind.storage)
        if watched:
            observe(x.wave, x, access, chunks)
            if x.wave.checks is not None:
                x.wave.checks.store(x, access, chunks, width, count, data)
        scatter(chunks, width, count, data)

    return run


def _source_type(kind: PtxType, operand: object) -> PtxType:
    """Registers are stored as bits; a constant is converted to the type it is stored as."""
    if isinstance(operand, Register):
        return TYPES[f"b{kind.bits}"]
    if isinstance(operand, Immediate) and kind.kind == "b" and not isinstance(operand.value, float):
        return TYPES[f"b{kind.bits}"]
    return kind


def _store_param(d: Decoder, i: Instruction, kind: PtxType, values: list[Any]) -> Step:
    address = i.operands[0]
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        raise d.unsupported(i, "a parameter at a computed address")
    name, offset, width = address.base.name, address.offset, kind.nbytes
    if not d.layout.param_slot(name):
        raise d.malformed(i, f"{name} is no parameter that can be written")
    _check_slot(d, i, name, offset, width * len(values))

    def run(x: Active) -> None:
        rows = x.frame.params[name]
        for n, value in enumerate(values):
            start = offset + n * width
            data = value(x).view(kind.storage)
            if data.size != x.n:
                data = np.full(x.n, data[0])
            part = np.ascontiguousarray(data).view(np.uint8).reshape(-1, width)
            if x.lanes is None:
                rows[:, start : start + width] = part
            else:
                rows[x.lanes, start : start + width] = part

    return run


@op("prefetch", "prefetchu", "discard", "applypriority", "createpolicy", "griddepcontrol")
def _hint(d: Decoder, i: Instruction) -> Step:
    """Hints about caches; createpolicy leaves an opaque value."""
    if i.op == "createpolicy":
        put = d.lane_put(i, i.operands[0], TYPES["b64"])
        return lambda x: put(x, np.zeros(x.n, np.uint64))
    if i.op == "discard":
        raise d.unsupported(i)
    return lambda _x: None
