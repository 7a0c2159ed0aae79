"""Broken PTX ends in one clear error: never a hang, a crash or another exception."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnprof.emulator import EmulatorExecutor, Mode, PtxError, UnsupportedPtx
from attnprof.emulator.decoder import Watch
from attnprof.emulator.link import link
from attnprof.emulator.parser import parse
from attnprof.kernels.plan import Scalar
from attnprof.model.errors import AttnprofError
from tests.unit.emulator.emulator_harness import A100, Bench, TextCompiler, op_kernel

SOURCE = """
#include <cuda_fp16.h>
__device__ __noinline__ float helper(float x, int n) {
    float r = 0;
    for (int i = 0; i < n; ++i) r += __sinf(x * i);
    return r;
}
__constant__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void k(const float* in, float* out, int n) {
    __shared__ float4 s[32];
    int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]), r[4];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + t % 8 * 4) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(to) : "memory");
    float c[4] = {};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%4,%5}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
    float v = c[0] + __shfl_xor_sync(~0u, c[1], 1);
    switch (t % 5) { case 0: v = expf(v); break; case 1: v += helper(v, n); break; case 3: v = table[n & 3]; break; }
    __half2 h = __floats2half2_rn(v, v);
    h = __hfma2(h, h, h);
    atomicAdd(out + 32, v);
    out[t] = __low2float(h);
}"""


def listed(text: str) -> list[str]:
    return text.split()


OPCODES = listed(
    """add sub mul mad fma div rem min max abs neg sad and or xor not shl shr shf lop3 prmt bfe bfi popc clz brev bfind
selp setp set slct mov cvt cvta ld st atom red cp ldmatrix mma shfl vote match redux bar barrier bra call ret
exit membar ex2 lg2 rcp sqrt rsqrt sin cos tanh copysign testp dp4a addc subc madc brx movmatrix stmatrix
activemask mbarrier wmma elect fence isspacep"""
)
MODIFIERS = listed(
    """u8 s8 b8 u16 s16 b16 f16 bf16 u32 s32 b32 f32 u64 s64 b64 f64 f16x2 bf16x2 pred e4m3x2 tf32 lo hi wide rn rzi
ftz sat global shared local param const v2 v4 sync aligned approx eq lt ltu and cc x4 m8n8 bfly all any add cas
m16n8k16 row col relu async cg idx wrap l r arrive red popc wait_all commit_group wait_group warp to trans
init test_wait parity noinc load store mma m16n16k16"""
)
OPERANDS = listed(
    """%d %a %b %p %q %addr 0 1 -1 3 0x7fffffff 99999999999 1.5 0f3F800000 {%d,%a} {%d,_} [%addr] [%a] [%addr+4] [p0]
[p2+8] !%p %d|%p %tid.x %nothing L1 _ (%d) {%d,%d,%d,%d} [12345] %clock64 16"""
)


@pytest.fixture(scope="session")
def ptx(bench: Bench) -> str:
    image = bench.cuda.compile(bench.build(SOURCE, ".cu"), "sm_80", target="ptx").image
    return image.rstrip(b"\0").decode()


def attempt(folder: Path, text: str) -> bool:
    """Whether it ran; an AttnprofError is the only way in which it may not."""
    bench = Bench(folder, None)  # type: ignore[arg-type]
    path = folder / "fuzzed.ptx"
    path.write_text(text, encoding="utf-8", errors="replace")
    bench.files[text] = path
    arrays = {"in": np.ones(128, "f4"), "out": np.zeros(64, "f4")}
    plan = bench.plan(text, "k", arrays, [Scalar("i32", 3)], outputs=("out",), ptx=True)
    executor = EmulatorExecutor(TextCompiler(), A100, mode=Mode.ALL, budget=3000)
    try:
        with executor.prepare(plan) as run:
            run.write("in", arrays["in"])
            run.launch()
    except AttnprofError as error:
        return one_line(error)
    return True


def one_line(error: AttnprofError) -> bool:
    """False, once the message has been seen to be a line of text."""
    assert re.fullmatch(r".+", str(error))
    return False


def test_the_whole_text_runs(ptx: str, tmp_path: Path) -> None:
    with pytest.raises(AttnprofError, match="out that nothing wrote"):  # atomicAdd on an output nobody zeroed
        attempt_raising(tmp_path, ptx)


def attempt_raising(folder: Path, text: str) -> None:
    bench = Bench(folder, None)  # type: ignore[arg-type]
    bench.run(text, "k", {"in": np.ones(128, "f4"), "out": np.zeros(64, "f4")}, [Scalar("i32", 3)],
              outputs=("out",), ptx=True, mode=Mode.CHECKS)  # fmt: skip


def test_truncated_text(ptx: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    ends = [rng.randrange(len(ptx)) for _ in range(150)]
    results = [attempt(tmp_path, ptx[:end]) for end in ends]
    assert not any(results[i] for i, end in enumerate(ends) if end < ptx.index(".entry"))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_garbled_characters(ptx: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    text = list(ptx)
    for _ in range(rng.randrange(1, 12)):
        at = rng.randrange(len(text))
        choice = rng.random()
        if choice < 0.4:
            text[at] = rng.choice("abfrxyz0123456789.,;:%@{}[]()<>+-!|_$ \n\t\"'~é")
        elif choice < 0.7:
            del text[at]
        else:
            text.insert(at, rng.choice("0123456789.,;{}[]%"))
    attempt(tmp_path, "".join(text))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_swapped_tokens(ptx: str, tmp_path: Path, seed: int) -> None:
    """Words exchanged between statements: most of these parse, and many run."""
    rng = random.Random(seed)
    words = re.findall(r"\s+|[^\s,;]+|[,;]", ptx)
    body = [n for n, w in enumerate(words) if w.strip() and n > len(words) // 8]
    for _ in range(rng.randrange(1, 6)):
        a, b = rng.choice(body), rng.choice(body)
        words[a], words[b] = (words[b], words[a]) if rng.random() < 0.5 else (words[b], words[b])
    attempt(tmp_path, "".join(words))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200))
def test_any_text(tmp_path: Path, text: str) -> None:
    assert not attempt(tmp_path, text)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    op=st.sampled_from(OPCODES),
    mods=st.lists(st.sampled_from(MODIFIERS), max_size=5),
    operands=st.lists(st.sampled_from(OPERANDS), max_size=5),
)
def test_any_instruction(tmp_path: Path, op: str, mods: list[str], operands: list[str]) -> None:
    body = f"{'.'.join([op, *mods])} {', '.join(operands)};\nL1:"
    text = op_kernel(body, [np.dtype("u4"), np.dtype("u4")], np.dtype("u4"))
    text = text.replace(".param .u64 p2\n", ".param .u64 p2, .param .u32 p3\n")
    bench = Bench(tmp_path, None)  # type: ignore[arg-type]
    arrays = {"a": np.arange(32).astype("u4"), "b": np.arange(32).astype("u4"), "out": np.zeros(32, "u4")}
    try:
        bench.run(text, "k", arrays, [Scalar("i32", 3)], outputs=("out",), ptx=True, mode=Mode.ALL, budget=500)
    except AttnprofError as error:
        one_line(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no PTX"),
        ("\x7fELF\0\0", "unexpected"),
        (".version 8.0\n.target sm_80\n.address_size 32\n", "64-bit"),
        (".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 a)\n{ bra NOWHERE; }", "NOWHERE"),
        (".version 8.0\n.target sm_80\n.shared .b8 x[99999999999];", "takes 99999999999 bytes"),
        (".version 8.0\n.target sm_80\n.visible .entry k()\n{ " + "{" * 100, "nested too deeply"),
        (".version 8.0\n.target sm_80\n.visible .entry k()\n{ L: L: ret; }", "defined twice"),
        (".version 8.0\n.target sm_80\n.visible .entry k()\n{ .reg .u32 %r<9>; mov.u32 %r9, 1; ret; }", "no register"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(PtxError, match=words):
        link(parse(text), "k", Watch())


def test_a_missing_opcode_names_the_source_line() -> None:
    text = """.version 8.0
    .target sm_90a
    .address_size 64
    .visible .entry k()
    {
    .loc 1 12 3
    wgmma.fence.sync.aligned;
    ret;
    }
    .file 1 "kernel.cu"
    """
    with pytest.raises(
        UnsupportedPtx, match=r"kernel\.cu:12 \(PTX line 7\): the emulator does not execute wgmma\.fence"
    ):
        link(parse(text), "k", Watch())


def test_a_modifier_is_never_dropped_in_silence(bench: Bench) -> None:
    text = op_kernel("add.mystery.u32 %d, %a, %b;", [np.dtype("u4")] * 2, np.dtype("u4"))
    with pytest.raises(UnsupportedPtx, match=r"modifier \.mystery"):
        link(parse(text), "k", Watch())


def test_a_kernel_that_is_not_there(bench: Bench) -> None:
    text = op_kernel("mov.u32 %d, %a;", [np.dtype("u4")], np.dtype("u4"))
    with pytest.raises(PtxError, match="no kernel other"):
        link(parse(text), "other", Watch())


def test_huge_text_is_read_in_linear_time() -> None:
    body = "add.u32 %d, %a, 1;\n" * 20_000
    module = parse(op_kernel(body, [np.dtype("u4")], np.dtype("u4")))
    assert len(module.functions["k"].instructions) > 20_000
