"""Tensor-core operations: ldmatrix, stmatrix, movmatrix and mma.sync.

Lanes map to fragments by reshaping. With g = lane / 4 and t = lane % 4, and e elements to a 32-bit register, register
r of A (16 × k) holds A[g + 8·(r mod 2)][4e·(r div 2) + e·t …], register r of B (k × 8) holds B[4e·r + e·t …][g]: so a
register of 32 lanes, viewed as elements, *is* an 8 × 4e block of A, or of Bᵀ (PTX ISA, "Matrix Fragments").

Products are exact in fp32 (or fp64) and summed in fp32 by one NumPy matmul, then added to the accumulator; the order
of the sum inside a tensor core is not specified, and its truncation of low bits is not modelled.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder, Put, Source
from attnprof.emulator.formats import bf16_values, fp8_values, tf32_values
from attnprof.emulator.lanes import WARP, Active
from attnprof.emulator.ops.access import Access, address_of, gather, observe, resolve, scatter
from attnprof.emulator.ops.registry import CollectiveStep, Flow, Step, op
from attnprof.emulator.program import Instruction
from attnprof.emulator.types import TYPES, PtxType

B32 = TYPES["b32"]
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$", re.ASCII)
# (element type, k) of the 16 × 8 shapes: PTX ISA, mma.
_SHAPES = {
    ("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16), ("tf32", 4), ("tf32", 8), ("e4m3", 16), ("e4m3", 32),
    ("e5m2", 16), ("e5m2", 32), ("s8", 16), ("s8", 32), ("u8", 16), ("u8", 32),
}  # fmt: skip


def require_warps(x: Active) -> None:
    """A fault unless all lanes of every warp are here."""
    if not x.full_warps:
        raise x.wave.partial_collective(x)


def _values(bits: Any, kind: PtxType) -> Any:
    """A register of every lane as an (warps, 8, 4e) block of elements, in the type they are multiplied in."""
    if kind.name == "f16":
        return bits.view(np.float16).reshape(-1, 8, 8)
    if kind.name == "bf16":
        return bf16_values(bits.view(np.uint16)).reshape(-1, 8, 8)
    if kind.name == "tf32":
        return tf32_values(bits).reshape(-1, 8, 4)
    if kind.name in ("e4m3", "e5m2"):
        return fp8_values(bits.view(np.uint8), kind.name).reshape(-1, 8, 16)
    return bits.view(np.int8 if kind.name == "s8" else np.uint8).reshape(-1, 8, 16)


@op("mma", flow=Flow.COLLECTIVE)
def _mma(d: Decoder, i: Instruction) -> Step:
    shape = next((m for m in map(_SHAPE.match, i.mods) if m is not None), None)
    if shape is None:
        raise d.malformed(i, "its shape is missing")
    m, n, k = (int(v) for v in shape.groups())
    d.allow(i, "sync", "aligned", "row", "col", "satfinite", shape.group())
    kinds = d.types(i, 4)[:4]
    out, left, right, acc = kinds
    if left.name == "f64" and (m, n, k) == (8, 8, 4):
        return _mma_f64(d, i)
    if (
        (m, n) != (16, 8)
        or (left.name, k) not in _SHAPES
        or [t for t in i.mods if t in ("row", "col")] != ["row", "col"]
    ):
        raise d.unsupported(i)
    integer = left.kind in "us"
    results = {"f32", "f16"} if left.name in ("f16", "e4m3", "e5m2") else {"s32"} if integer else {"f32"}
    if out.name not in results or acc.name not in results or (right.bits != left.bits):
        raise d.unsupported(i)
    dest, a, b, c = d.args(i, 4)
    elements = 32 // left.bits
    a_regs = [fragment_source(d, i, v) for v in d.items(a)]
    b_regs = [fragment_source(d, i, v) for v in d.items(b)]
    c_items, d_items = d.items(c), d.items(dest)
    expected = (2 * k // (4 * elements), k // (4 * elements), 2 if acc.bits == 16 else 4, 2 if out.bits == 16 else 4)
    if (len(a_regs), len(b_regs), len(c_items), len(d_items)) != expected:
        raise d.malformed(i, "the fragments have the wrong number of registers")
    accumulate = _accumulator(d, i, c_items, acc)
    store = _result(d, i, d_items, out)
    flops = 2 * m * n * k
    saturate = "satfinite" in i.mods

    def run(x: Active) -> None:
        require_warps(x)
        warps = x.n // WARP
        a_matrix = np.empty((warps, 16, k), np.float32)
        width = 4 * elements
        for r, register in enumerate(a_regs):
            row, column = 8 * (r & 1), width * (r >> 1)
            a_matrix[:, row : row + 8, column : column + width] = _values(register(x), left)
        b_matrix = np.empty((warps, 8, k), np.float32)
        for r, register in enumerate(b_regs):
            b_matrix[:, :, width * r : width * (r + 1)] = _values(register(x), right)
        product = np.matmul(a_matrix, b_matrix.transpose(0, 2, 1))
        base = accumulate(x)
        if integer:
            # At most 32 products of 16 bits: exact in fp32.
            total = product.astype(np.int64) + base
            if saturate:
                total = np.clip(total, -(1 << 31), (1 << 31) - 1)
            store(x, total.astype(np.int32))
        else:
            product += base
            store(x, product)
        if x.wave.counts is not None:
            x.wave.counts.matrix(x, flops * warps)

    return CollectiveStep(run)


def fragment_source(d: Decoder, i: Instruction, operand: Any) -> Source:
    """A 32-bit register of a fragment, one word a lane."""
    source = d.lane(i, operand, B32)

    def read(x: Active) -> Any:
        bits = source(x)
        return bits if bits.size == x.n else np.full(x.n, bits[0])

    return read


def _accumulator(d: Decoder, i: Instruction, items: Any, kind: PtxType) -> Any:
    """The accumulator as (warps, 16, 8)."""
    if kind.bits == 16:
        halves = [fragment_source(d, i, v) for v in items]

        def read_half(x: Active) -> Any:
            matrix = np.empty((x.n // WARP, 16, 8), np.float32)
            for r, half in enumerate(halves):
                matrix[:, 8 * r : 8 * r + 8] = half(x).view(np.float16).reshape(-1, 8, 8)
            return matrix

        return read_half
    sources = [d.lane(i, v, kind) for v in items]

    def read(x: Active) -> Any:
        matrix = np.empty((x.n // WARP, 2, 8, 4, 2), kind.dtype)
        for r, source in enumerate(sources):
            value = source(x)
            matrix[:, r >> 1, :, :, r & 1] = value.reshape(-1, 8, 4) if value.size == x.n else value[0]
        return matrix.reshape(-1, 16, 8)

    return read


def _result(d: Decoder, i: Instruction, items: Any, kind: PtxType) -> Any:
    """Hand a (warps, 16, 8) matrix to the destination registers."""
    if kind.bits == 16:
        puts: list[Put] = [d.lane_put(i, v, B32) for v in items]

        def store_half(x: Active, matrix: Any) -> None:
            halves = matrix.astype(np.float16)
            for r, put in enumerate(puts):
                put(x, np.ascontiguousarray(halves[:, 8 * r : 8 * r + 8]).reshape(-1).view(np.uint32))

        return store_half
    wide: list[Put] = [d.lane_put(i, v, kind) for v in items]

    def store(x: Active, matrix: Any) -> None:
        parts = matrix.reshape(-1, 2, 32, 2)
        for r, put in enumerate(wide):
            put(x, parts[:, r >> 1, :, r & 1].reshape(-1))

    return store


def _mma_f64(d: Decoder, i: Instruction) -> Step:
    """m8n8k4: A[g][t], B[t][g], C[g][2t + r]."""
    dest, a, b, c = d.args(i, 4)
    kind = TYPES["f64"]
    left, right = d.lane(i, d.items(a)[0], kind), d.lane(i, d.items(b)[0], kind)
    sources = [d.lane(i, v, kind) for v in d.items(c)]
    puts = [d.lane_put(i, v, kind) for v in d.items(dest)]
    if len(sources) != 2 or len(puts) != 2:
        raise d.malformed(i, "the fragments have the wrong number of registers")

    def run(x: Active) -> None:
        require_warps(x)
        a_matrix = np.broadcast_to(left(x), (x.n,)).reshape(-1, 8, 4)
        b_matrix = np.broadcast_to(right(x), (x.n,)).reshape(-1, 8, 4)
        product = np.matmul(a_matrix, b_matrix.transpose(0, 2, 1)).reshape(-1, 32, 2)
        for r, (source, put) in enumerate(zip(sources, puts, strict=True)):
            put(x, product[:, :, r].reshape(-1) + source(x))
        if x.wave.counts is not None:
            x.wave.counts.matrix(x, 2 * 8 * 8 * 4 * (x.n // WARP))

    return CollectiveStep(run)


def _matrices(d: Decoder, i: Instruction) -> tuple[int, bool]:
    d.allow(i, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
    if "m8n8" not in i.mods or d.types(i)[-1].name != "b16":
        raise d.unsupported(i)
    return next((int(m[1]) for m in i.mods if m in ("x1", "x2", "x4")), 1), "trans" in i.mods


@op("ldmatrix", flow=Flow.COLLECTIVE)
def _load_matrix(d: Decoder, i: Instruction) -> Step:
    """Lane l gives the address of row l mod 8 of matrix l div 8, and receives two elements of each matrix."""
    count, transposed = _matrices(d, i)
    dest, source = d.args(i, 2)
    puts = [d.lane_put(i, v, B32) for v in d.items(dest)]
    if len(puts) != count:
        raise d.malformed(i, f"{len(puts)} destinations for {count} matrices")
    address = address_of(d, i, source)
    access = Access("load", 16, matrix=True)
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        require_warps(x)
        part = x if count == 4 else x.subset((x.lane_ids() & 31) < 8 * count)
        chunks = resolve(part, "shared", address(part), 16, "reads")
        if watched:
            observe(x.wave, part, access, chunks)
        rows = gather(part, chunks, 4, 4).reshape(-1, count, 8, 4)
        if transposed:
            elements = rows.view(np.uint16).reshape(-1, count, 8, 8).transpose(0, 1, 3, 2)
            rows = np.ascontiguousarray(elements).view(np.uint32)
        for matrix, put in enumerate(puts):
            put(x, rows[:, matrix].reshape(-1))

    return CollectiveStep(run)


@op("stmatrix", flow=Flow.COLLECTIVE)
def _store_matrix(d: Decoder, i: Instruction) -> Step:
    count, transposed = _matrices(d, i)
    dest, source = d.args(i, 2)
    address = address_of(d, i, dest)
    registers = [fragment_source(d, i, v) for v in d.items(source)]
    if len(registers) != count:
        raise d.malformed(i, f"{len(registers)} sources for {count} matrices")
    access = Access("store", 16, matrix=True)
    watched = d.watch.counts or d.watch.checks

    def run(x: Active) -> None:
        require_warps(x)
        part = x if count == 4 else x.subset((x.lane_ids() & 31) < 8 * count)
        chunks = resolve(part, "shared", address(part), 16, "writes")
        rows = np.empty((x.n // WARP, count, 8, 4), np.uint32)
        for matrix, register in enumerate(registers):
            rows[:, matrix] = register(x).reshape(-1, 8, 4)
        if transposed:
            elements = rows.view(np.uint16).reshape(-1, count, 8, 8).transpose(0, 1, 3, 2)
            rows = np.ascontiguousarray(elements).view(np.uint32)
        if watched:
            observe(x.wave, part, access, chunks)
            if x.wave.checks is not None:
                x.wave.checks.store(part, access, chunks, 4, 4, rows.reshape(-1, 4))
        scatter(chunks, 4, 4, rows.reshape(-1, 4))

    return CollectiveStep(run)


@op("movmatrix", flow=Flow.COLLECTIVE)
def _move_matrix(d: Decoder, i: Instruction) -> Step:
    """An 8 × 8 matrix of 16-bit elements transposed across a warp."""
    d.allow(i, "sync", "aligned", "m8n8", "trans")
    dest, source = d.args(i, 2)
    put, value = d.lane_put(i, dest, B32), fragment_source(d, i, source)

    def run(x: Active) -> None:
        require_warps(x)
        elements = value(x).view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
        put(x, np.ascontiguousarray(elements).reshape(-1).view(np.uint32))

    return CollectiveStep(run)
