"""ldmatrix, stmatrix and every mma shape against a matrix product whose fragments are laid out lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnprof.emulator import EmulatedFault, Mode, UnsupportedPtx
from attnprof.emulator.formats import fp8_values, tf32_values
from tests.unit.emulator.emulator_harness import Bench, apply_op

RNG = np.random.default_rng(5)
LANES = 32


def decode(bits: np.ndarray, name: str) -> np.ndarray:
    """Values of elements of a type."""
    if name == "f16":
        return bits.view("f2").astype("f8")
    if name == "bf16":
        return (bits.astype("u4") << 16).view("f4").astype("f8")
    if name == "tf32":
        return tf32_values(bits).astype("f8")
    if name in ("e4m3", "e5m2"):
        return fp8_values(bits, name).astype("f8")
    return bits.view("i1" if name == "s8" else "u1").astype("f8")


def random_bits(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = RNG.standard_normal(shape).astype("f4")
    if name == "f16":
        return values.astype("f2").view("u2")
    if name == "bf16":
        return (values.view("u4") >> 16).astype("u2")
    if name == "tf32":
        return values.view("u4")
    if name in ("e4m3", "e5m2"):
        return RNG.integers(0, 0x70, shape).astype("u1") | (RNG.integers(0, 2, shape).astype("u1") << 7)
    return RNG.integers(0, 256, shape).astype("u1")


def a_fragment(a: np.ndarray, elements: int) -> np.ndarray:
    """(32, registers) of a 16 × k matrix, written out from the PTX ISA's figures, one element at a time."""
    k = a.shape[1]
    fragment = np.zeros((LANES, 2 * k // (4 * elements), elements), a.dtype)
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        for r in range(fragment.shape[1]):
            for e in range(elements):
                fragment[lane, r, e] = a[g + 8 * (r % 2), (r // 2) * 4 * elements + t * elements + e]
    return fragment.reshape(LANES, -1).view("u4")


def b_fragment(b: np.ndarray, elements: int) -> np.ndarray:
    k = b.shape[0]
    fragment = np.zeros((LANES, k // (4 * elements), elements), b.dtype)
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        for r in range(fragment.shape[1]):
            for e in range(elements):
                fragment[lane, r, e] = b[r * 4 * elements + t * elements + e, g]
    return fragment.reshape(LANES, -1).view("u4")


def mma_kernel(instruction: str, a: int, b: int, c: int) -> str:
    """Loads a, b and c registers a lane, executes the instruction and stores its result."""
    load, registers = [], []
    for letter, count, param in (("a", a, 0), ("b", b, 1), ("c", c, 2)):
        load.append(f"ld.param.u64 %rd, [p{param}]; mad.wide.u32 %rd, %t, {4 * count}, %rd;")
        load += [f".reg .b32 %{letter}{n}; ld.global.b32 %{letter}{n}, [%rd+{4 * n}];" for n in range(count)]
        registers.append("{" + ", ".join(f"%{letter}{n}" for n in range(count)) + "}")
    store = ["ld.param.u64 %rd, [p3];", f"mad.wide.u32 %rd, %t, {4 * c}, %rd;"]
    store += [f"st.global.b32 [%rd+{4 * n}], %c{n};" for n in range(c)]
    return f""".version 8.4
.target sm_89
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)
{{
.reg .u64 %rd; .reg .u32 %t;
mov.u32 %t, %tid.x;
{" ".join(load)}
{instruction} {registers[2]}, {registers[0]}, {registers[1]}, {registers[2]};
{" ".join(store)}
ret;
}}
"""


SHAPES = [
    ("m16n8k16.row.col.f32.f16.f16.f32", "f16", 16),
    ("m16n8k8.row.col.f32.f16.f16.f32", "f16", 8),
    ("m16n8k16.row.col.f32.bf16.bf16.f32", "bf16", 16),
    ("m16n8k8.row.col.f32.bf16.bf16.f32", "bf16", 8),
    ("m16n8k8.row.col.f32.tf32.tf32.f32", "tf32", 8),
    ("m16n8k4.row.col.f32.tf32.tf32.f32", "tf32", 4),
    ("m16n8k32.row.col.f32.e4m3.e4m3.f32", "e4m3", 32),
    ("m16n8k32.row.col.f32.e5m2.e5m2.f32", "e5m2", 32),
    ("m16n8k32.row.col.s32.s8.s8.s32", "s8", 32),
    ("m16n8k16.row.col.s32.u8.u8.s32", "u8", 16),
]


@pytest.mark.parametrize(("shape", "name", "k"), SHAPES)
def test_mma(bench: Bench, shape: str, name: str, k: int) -> None:
    a, b = random_bits(name, (16, k)), random_bits(name, (k, 8))
    elements = 4 // a.itemsize
    integer = name in ("s8", "u8")
    c = RNG.integers(-9, 9, (16, 8)).astype("i4" if integer else "f4")
    c_fragment = np.zeros((LANES, 4), c.dtype)
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        c_fragment[lane] = [c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1]]
    fa, fb = a_fragment(a, elements), b_fragment(b, elements)
    source = mma_kernel(f"mma.sync.aligned.{shape}", fa.shape[1], fb.shape[1], 4)
    outcome = bench.run(
        source, "k", {"a": fa, "b": fb, "c": c_fragment, "d": np.zeros((LANES, 4), c.dtype)},
        outputs=("d",), ptx=True, mode=Mode.ALL,
    )  # fmt: skip
    exact = decode(a, name) @ decode(b, name) + c
    got = outcome.outputs["d"]
    scale = np.abs(decode(a, name)) @ np.abs(decode(b, name)) + np.abs(c)
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        for r, (row, column) in enumerate([(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)]):
            tolerance = 0 if integer else 2.0**-21 * scale[row, column]
            assert abs(float(got[lane, r]) - exact[row, column]) <= tolerance, (lane, r)
    assert outcome.trace.counters.matrix_flops == 2 * 16 * 8 * k


def test_mma_with_half_accumulators(bench: Bench) -> None:
    a, b = random_bits("f16", (16, 16)), random_bits("f16", (16, 8))
    c = RNG.standard_normal((16, 8)).astype("f2")
    c_fragment = np.zeros((LANES, 2, 2), "f2")
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        c_fragment[lane] = [c[g, 2 * t : 2 * t + 2], c[g + 8, 2 * t : 2 * t + 2]]
    source = mma_kernel("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 4, 2, 2)
    arrays = {"a": a_fragment(a, 2), "b": b_fragment(b, 2), "c": c_fragment.view("u4")}
    outcome = bench.run(source, "k", {**arrays, "d": np.zeros((LANES, 2), "u4")}, outputs=("d",), ptx=True)
    exact = decode(a, "f16") @ decode(b, "f16") + c.astype("f8")
    got = outcome.outputs["d"].view("f2").reshape(LANES, 2, 2).astype("f8")
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        for half in range(2):
            np.testing.assert_allclose(got[lane, half], exact[g + 8 * half, 2 * t : 2 * t + 2], rtol=2e-3, atol=2e-3)


def test_mma_by_part_of_a_warp_is_a_fault(bench: Bench) -> None:
    source = mma_kernel("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4)
    source = source.replace("mma.sync", ".reg .pred %p; setp.lt.u32 %p, %t, 20; @%p mma.sync")
    arrays = {n: np.zeros((LANES, c), "u4") for n, c in (("a", 4), ("b", 2), ("c", 4), ("d", 4))}
    with pytest.raises(EmulatedFault, match="executed by 20 of a warp's 32 lanes"):
        bench.run(source, "k", arrays, outputs=("d",), ptx=True)


def test_other_shapes_are_refused_by_name(bench: Bench) -> None:
    source = mma_kernel("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", 4, 2, 4)
    arrays = {n: np.zeros((LANES, c), "u4") for n, c in (("a", 4), ("b", 2), ("c", 4), ("d", 4))}
    with pytest.raises(UnsupportedPtx, match=r"PTX line \d+.*mma\.sync\.aligned\.m8n8k4"):
        bench.run(source, "k", arrays, outputs=("d",), ptx=True)


LDMATRIX = """
extern "C" __global__ void k(const uint4* in, unsigned* out) {
    __shared__ uint4 tile[32];
    tile[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    unsigned p = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]), r0 = 0, r1 = 0, r2 = 0, r3 = 0;
    asm volatile("%s" : %s : "r"(p) : "memory");
    uint4 v = make_uint4(r0, r1, r2, r3);
    reinterpret_cast<uint4*>(out)[threadIdx.x] = v;
}"""


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(bench: Bench, count: int, trans: str) -> None:
    registers = ", ".join(f"%{n}" for n in range(count))
    outputs = ", ".join(f'"=r"(r{n})' for n in range(count))
    asm = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%{count}];"
    rows = RNG.integers(0, 2**16, (32, 8)).astype("u2")
    outcome = bench.run(
        LDMATRIX % (asm, outputs), "k", {"in": rows, "out": np.zeros((32, 4), "u4")}, outputs=("out",), mode=Mode.ALL
    )
    got = outcome.outputs["out"].view("u2").reshape(32, 4, 2)
    for lane in range(32):
        for matrix in range(count):
            m = rows[8 * matrix : 8 * matrix + 8]
            m = m.T if trans else m
            assert got[lane, matrix].tolist() == m[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2].tolist()
    kind = outcome.trace.kernels[0].kinds["ldmatrix.sync.shared"]
    assert (kind.shared_wavefronts, kind.bank_conflicts) == (count, 0)


def test_stmatrix_undoes_ldmatrix(bench: Bench) -> None:
    body = """.shared .align 16 .b8 tile[512];
    .reg .b32 %r<8>;
    mov.u32 %r0, tile; mad.lo.u32 %r0, %tid1, 16, %r0;
    mov.u32 %r1, %a; add.u32 %r2, %a, 1; add.u32 %r3, %a, 2; add.u32 %r4, %a, 3;
    stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r0], {%r1, %r2, %r3, %r4};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1, %r2, %r3, %r4}, [%r0];
    add.u32 %d, %r1, %r4;"""
    a = (np.arange(32) * 1000).astype("u4")
    assert np.array_equal(apply_op(bench, body, a, output="u4"), 2 * a + 3)


def test_movmatrix_transposes(bench: Bench) -> None:
    matrix = RNG.integers(0, 2**16, (8, 8)).astype("u2")
    got: Any = apply_op(
        bench, "movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;", matrix.reshape(-1).view("u4"), output="u4"
    )
    assert np.array_equal(got.view("u2").reshape(8, 8), matrix.T)
