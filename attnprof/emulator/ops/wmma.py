"""wmma.load, wmma.mma and wmma.store: what ``nvcuda::wmma`` compiles to.

PTX leaves the layout of these fragments open, so the emulator uses one of its own: elements in row-major order, lane
after lane, repeated where the fragment has more room than the matrix has elements. Results don't depend on it. Their
memory traffic is counted element by element, where hardware would load several at once.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder, Put, Source
from attnprof.emulator.formats import bf16_values, tf32_values
from attnprof.emulator.lanes import WARP, Active
from attnprof.emulator.ops.access import Access, address_of, gather, observe, resolve, scatter, space_of
from attnprof.emulator.ops.matrix import fragment_source, require_warps
from attnprof.emulator.ops.registry import CollectiveStep, Flow, Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES, PtxType

B32 = TYPES["b32"]
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$", re.ASCII)
_LAYOUTS = ("row", "col")
_SPACES = ("global", "shared", "shared::cta")
_INPUTS = ("f16", "bf16", "tf32", "s8", "u8")
_SHAPES = {(16, 16, 16), (8, 32, 16), (32, 8, 16), (16, 16, 8)}


@op("wmma", flow=Flow.COLLECTIVE)
def _wmma(d: Decoder, i: Instruction) -> Step:
    shape = next((m for m in map(_SHAPE.match, i.mods) if m is not None), None)
    if shape is None or not i.mods or i.mods[0] not in ("load", "store", "mma"):
        raise d.malformed(i, "its shape or operation is missing")
    m, n, k = (int(v) for v in shape.groups())
    if (m, n, k) not in _SHAPES:
        raise d.unsupported(i)
    d.allow(i, "load", "store", "mma", "a", "b", "c", "d", "sync", "aligned", *_LAYOUTS, *_SPACES, shape.group(),
            "satfinite")  # fmt: skip
    if i.mods[0] == "mma":
        return _multiply(d, i, m, n, k)
    which = next((mod for mod in i.mods[1:] if mod in ("a", "b", "c", "d")), "")
    rows_columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    return _move(d, i, rows_columns, load=i.mods[0] == "load")


def _element(kind: PtxType) -> np.dtype[Any]:
    """How an element sits in a fragment: fp16, bf16 and bytes packed, 32-bit types alone."""
    return np.dtype(f"u{kind.nbytes}")


def _move(d: Decoder, i: Instruction, extent: tuple[int, int], *, load: bool) -> Step:
    rows, columns = extent
    kind = d.types(i)[-1]
    operands = d.args(i, 2, 3)
    fragment, memory = (operands[0], operands[1]) if load else (operands[1], operands[0])
    registers = d.items(fragment)
    address = address_of(d, i, memory)
    by_row = next((mod for mod in i.mods if mod in _LAYOUTS), "row") == "row"
    stride = d.lane(i, operands[2], TYPES["u32"]) if len(operands) == 3 else None
    element = _element(kind)
    per_lane = len(registers) * 4 // element.itemsize
    if rows * columns > WARP * per_lane:
        raise d.malformed(i, "the fragment has too few registers")
    puts: list[Put] = [d.lane_put(i, r, B32) for r in registers] if load else []
    sources: list[Source] = [] if load else [fragment_source(d, i, r) for r in registers]
    space, access = space_of(i), Access("load" if load else "store", element.itemsize)
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        require_warps(x)
        lane = x.lane_ids() & 31
        base = address(x)
        leading: Any = (columns if by_row else rows) if stride is None else stride(x).astype(np.int64)
        data = np.empty((x.n, per_lane), element)
        if not load:
            words = np.stack([source(x) for source in sources], axis=1)
            data = np.ascontiguousarray(words).view(element)
        for slot in range(per_lane):
            linear = (lane * per_lane + slot) % (rows * columns)
            row, column = linear // columns, linear % columns
            offset = (row * leading + column if by_row else column * leading + row) * element.itemsize
            at = base + offset.astype(np.int64).view(np.uint64)
            chunks = resolve(x, space, at, element.itemsize, "reads" if load else "writes")
            if watched:
                observe(x.wave, x, access, chunks)
                if not load and x.wave.checks is not None:
                    x.wave.checks.store(x, access, chunks, element.itemsize, 1, data[:, slot])
            if load:
                data[:, slot] = gather(x, chunks, element.itemsize, 1)
            else:
                scatter(chunks, element.itemsize, 1, data[:, slot])
        for register, put in enumerate(puts):
            put(x, np.ascontiguousarray(data.view(np.uint32)[:, register]))

    return CollectiveStep(run)


def _multiply(d: Decoder, i: Instruction, m: int, n: int, k: int) -> Step:
    kinds = d.types(i, 2)
    out, acc = kinds[0], kinds[-1]
    left = kinds[1] if len(kinds) == 4 else TYPES["f16"]
    right = kinds[2] if len(kinds) == 4 else TYPES["f16"]
    if left.name not in _INPUTS or out.name not in ("f16", "f32", "s32") or acc.name not in ("f16", "f32", "s32"):
        raise d.unsupported(i)
    dest, a, b, c = d.args(i, 4)
    # The layouts say how the fragments were loaded; elements are held by row and column, so they change nothing here.
    read_a, read_b = _matrix(d, i, a, left, (m, k)), _matrix(d, i, b, right, (k, n))
    read_c = _matrix(d, i, c, acc, (m, n))
    puts = [d.lane_put(i, r, B32) for r in d.items(dest)]

    def run(x: Active) -> None:
        require_warps(x)
        product = np.matmul(read_a(x), read_b(x)) + read_c(x)
        if out.name == "s32":
            product = product.astype(np.int64).astype(np.int32)
        words = np.ascontiguousarray(product.astype(out.dtype)).reshape(x.n, -1).view(np.uint32)
        for register, put in enumerate(puts):
            put(x, np.ascontiguousarray(words[:, register]))
        if x.wave.counts is not None:
            x.wave.counts.matrix(x, 2 * m * n * k * (x.n // WARP))

    return CollectiveStep(run)


def _matrix(d: Decoder, i: Instruction, operand: Any, kind: PtxType, extent: tuple[int, int]) -> Any:
    """A fragment as (warps, rows, columns) of fp32, or fp64 for 32-bit integers, which fp32 cannot hold."""
    sources = [fragment_source(d, i, r) for r in d.items(operand)]
    rows, columns = extent
    element = _element(kind)
    if len(sources) * 4 // element.itemsize * WARP < rows * columns:
        raise d.malformed(i, "a fragment has too few registers")

    def read(x: Active) -> Any:
        words = np.ascontiguousarray(np.stack([source(x) for source in sources], axis=1))
        bits = words.view(element).reshape(x.n // WARP, -1)[:, : rows * columns].reshape(-1, rows, columns)
        if kind.name == "bf16":
            return bf16_values(bits)
        if kind.name == "tf32":
            return tf32_values(bits).reshape(-1, rows, columns)
        values = bits.view(kind.dtype)
        return values.astype(np.float64 if kind.name == "s32" else np.float32)

    return read
