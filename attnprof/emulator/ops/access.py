"""How loads, stores, atomics and copies reach memory: addresses resolved, faults located, observers told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.decoder import Decoder, Source
from attnprof.emulator.lanes import Active, AnyArray, Lanes
from attnprof.emulator.memory import BadAccess, Offsets, Storage
from attnprof.emulator.program import Address, Immediate, Instruction, Operand, Register, Symbol
from attnprof.emulator.types import TYPES

if TYPE_CHECKING:
    from attnprof.emulator.wave import Wave

AddressOf = Callable[[Active], NDArray[np.uint64]]
SPACES = ("global", "shared", "local", "const", "param", "generic")


@dataclass(slots=True)
class Chunk:
    """Part of an access that one storage serves: which lanes, at which byte offsets of it.

    ``where`` picks the chunk out of the access's lanes; ``None`` means that it is all of them.
    """

    storage: Storage
    offsets: Offsets
    lanes: Lanes
    where: NDArray[np.bool_] | None


def space_of(i: Instruction) -> str:
    """The state space that an instruction names, ``generic`` if none."""
    for mod in i.mods:
        base = mod.partition("::")[0]
        if base in ("global", "shared", "local", "const", "param"):
            return base
    return "generic"


def address_of(d: Decoder, i: Instruction, operand: Operand) -> AddressOf:
    """The addresses that ``[…]`` gives, one a lane of the group."""
    if not isinstance(operand, Address):
        raise d.malformed(i, "an address in brackets is expected")
    base, offset = operand.base, operand.offset
    if isinstance(base, Register):
        wide = base.type.bits == 64
        if base.type.bits not in (32, 64):
            raise d.malformed(i, f"{base.name} is too narrow for an address")
        source: Source = d.lane(i, base, TYPES["u64" if wide else "u32"])
        # A 32-bit address may be formed with a negative offset: the sum wraps at 32 bits.
        if wide:
            step = np.uint64(offset & 0xFFFFFFFFFFFFFFFF)
            if not offset:
                return source
            return lambda x: source(x) + step
        step32 = np.uint32(offset & 0xFFFFFFFF)
        return lambda x: (source(x) + step32).astype(np.uint64)
    if isinstance(base, (Symbol, Immediate)):
        constant: Source
        if isinstance(base, Symbol):
            constant = d.lane(i, Address(base, offset) if offset else base, TYPES["u64"])
        else:
            constant = d.lane(i, Immediate((int(base.value) + offset) & 0xFFFFFFFFFFFFFFFF), TYPES["u64"])
        return lambda x: np.full(x.n, constant(x)[0], np.uint64)
    raise d.malformed(i, "an address of an unknown form")


def resolve(x: Active, space: str, addresses: NDArray[np.uint64], nbytes: int, verb: str) -> list[Chunk]:
    """The storage behind each address; a bad one ends the launch with a located fault."""
    wave = x.wave
    lanes = x.lane_ids()
    try:
        if space == "shared":
            offsets = wave.shared.locate(
                addresses, wave.block_row if x.lanes is None else wave.block_row[lanes], nbytes
            )
            return [Chunk(wave.shared, offsets, lanes, None)]
        if space == "local":
            return [Chunk(wave.local, wave.local.locate(addresses, lanes, nbytes), lanes, None)]
        if space == "generic":
            window = addresses >> np.uint64(56)
            if window.any():
                return _generic(x, addresses, window, nbytes, verb)
        return [
            Chunk(storage, offsets, lanes if where is None else lanes[where], where)
            for storage, offsets, where in wave.memory.locate(addresses, nbytes)
        ]
    except BadAccess as bad:
        raise wave.bad_access(x, bad, verb, int(lanes[bad.index])) from None


def _generic(
    x: Active, addresses: NDArray[np.uint64], window: NDArray[np.uint64], nbytes: int, verb: str
) -> list[Chunk]:
    chunks: list[Chunk] = []
    for value in np.unique(window):
        where = window == value
        part = x.subset(where)
        space = {0: "global", 1: "shared", 2: "local"}.get(int(value), "global")
        inner = addresses[where] - (value << np.uint64(56) if space != "global" else np.uint64(0))
        for chunk in resolve(part, space, inner, nbytes, verb):
            picked = where.copy()
            if chunk.where is not None:
                picked[where] = chunk.where
            whole = bool(picked.all())
            chunks.append(Chunk(chunk.storage, chunk.offsets, chunk.lanes, None if whole else picked))
    return chunks


def gather(x: Active, chunks: list[Chunk], width: int, count: int) -> AnyArray:
    """The elements at the chunks' offsets: shape (n,), or (n, count) for vectors."""
    if len(chunks) == 1:
        chunk = chunks[0]
        view = chunk.storage.view(chunk.storage.data, width, count)
        return view.take(chunk.offsets // (width * count), axis=0)
    shape = (x.n,) if count == 1 else (x.n, count)
    result = np.zeros(shape, f"u{width}")
    for chunk in chunks:
        view = chunk.storage.view(chunk.storage.data, width, count)
        result[chunk.where] = view.take(chunk.offsets // (width * count), axis=0)
    return result


def scatter(chunks: list[Chunk], width: int, count: int, values: AnyArray) -> None:
    """Write elements at the chunks' offsets; where lanes collide, the highest one wins."""
    for chunk in chunks:
        view = chunk.storage.view(chunk.storage.data, width, count)
        view[chunk.offsets // (width * count)] = values if chunk.where is None else values[chunk.where]


def forbid_write(x: Active, chunks: list[Chunk]) -> None:
    """Constant memory and kernel parameters cannot be written."""
    for chunk in chunks:
        if chunk.storage.read_only:
            raise x.wave.read_only(x, chunk.storage, int(chunk.lanes[0]))


@dataclass(slots=True)
class Access:
    """What the observers are told of an access.

    ``kind`` is ``load``, ``store``, ``atomic`` or ``copy``; ``sync`` marks volatile, relaxed and acquire/release
    accesses, which order others instead of racing with them; ``matrix`` marks ldmatrix and stmatrix.
    """

    kind: str
    nbytes: int
    sync: bool = False
    matrix: bool = False


def observe(wave: Wave, x: Active, access: Access, chunks: list[Chunk]) -> None:
    """Tell whoever watches. Called before a store or atomic changes memory, and after nothing else."""
    if wave.counts is not None:
        wave.counts.access(x, access, chunks)
    if wave.checks is not None:
        wave.checks.access(x, access, chunks)
