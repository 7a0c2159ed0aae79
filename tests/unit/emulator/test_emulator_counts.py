"""Counts of micro-kernels, one a memory pattern, against figures worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from attnprof.emulator import Counters, Mode
from attnprof.emulator.traffic import coalesce, wavefronts
from tests.unit.emulator.emulator_harness import Bench, Outcome


def copy_kernel(kind: str, index: str, body: str = "out[threadIdx.x] = v;") -> str:
    return f"""
    extern "C" __global__ void k(const {kind}* in, {kind}* out) {{
        int t = threadIdx.x;
        {kind} v = in[{index}];
        {body}
    }}"""


def run(bench: Bench, source: str, size: int = 1 << 16, **shape: Any) -> Outcome:
    arrays = {"in": np.zeros(size // 4, "f4"), "out": np.zeros(size // 4, "f4")}
    return bench.run(source, "k", arrays, outputs=("out",), mode=Mode.COUNTS, **shape)


@pytest.mark.parametrize(
    ("kind", "index", "sectors", "efficiency"),
    [
        ("float", "t", 4, 1.0),
        ("float", "t + 1", 5, 0.8),
        ("float", "31 - t", 4, 1.0),
        ("float", "2 * t", 8, 0.5),
        ("float", "8 * t", 32, 0.125),
        ("float", "32 * t", 32, 0.125),
        ("float", "0", 1, 0.125),
        ("float", "t / 8 * 8", 4, 0.125),
        ("short", "t", 2, 1.0),
        ("char", "t", 1, 1.0),
        ("float2", "t", 8, 1.0),
        ("float4", "t", 16, 1.0),
        ("float4", "2 * t", 32, 0.5),
    ],
)
def test_coalescing(bench: Bench, kind: str, index: str, sectors: int, efficiency: float) -> None:
    outcome = run(bench, copy_kernel(kind, index))
    (kernel,) = outcome.trace.kernels
    load = kernel.kinds["ld.global"]
    assert load.global_requests == 1
    assert load.global_sectors == sectors
    assert load.coalescing_efficiency == efficiency
    tensor = kernel.tensor("in")
    assert tensor.read_sectors == sectors
    assert tensor.unique_read_bytes == round(efficiency * 32 * sectors)
    assert tensor.unique_write_bytes == 0


SHARED = """
extern "C" __global__ void k(const float* in, float* out) {
    __shared__ __align__(16) unsigned char s[32 * 1024];
    int t = threadIdx.x;
    const %s* p = reinterpret_cast<const %s*>(s);
    asm volatile("" : "+l"(p));
    %s v = p[%s];
    reinterpret_cast<%s*>(out)[t] = v;
}"""


@pytest.mark.parametrize(
    ("kind", "index", "expected", "conflicts"),
    [
        ("float", "t", 1, 0),
        ("float", "0", 1, 0),
        ("float", "2 * t", 2, 1),
        ("float", "32 * t", 32, 31),
        ("float", "33 * t", 1, 0),
        ("float", "t % 2 * 32", 2, 1),
        ("float2", "t", 2, 0),
        ("float2", "2 * t", 4, 2),
        ("float2", "17 * t", 2, 0),
        ("float4", "t", 4, 0),
        ("float4", "8 * t", 32, 28),
        ("float4", "9 * t", 4, 0),
        ("float4", "8 * t + (t & 7)", 4, 0),
        ("short", "t", 1, 0),
        ("short", "64 * t", 32, 31),
    ],
)
def test_bank_conflicts(bench: Bench, kind: str, index: str, expected: int, conflicts: int) -> None:
    outcome = run(bench, SHARED % (kind, kind, kind, index, kind))
    counters = outcome.trace.counters
    assert (counters.shared_requests, counters.shared_wavefronts) == (1, expected)
    assert counters.bank_conflicts == conflicts


def test_ldmatrix_conflicts(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* in, float* out) {
        __shared__ __align__(128) unsigned char s[32 * 256];
        int t = threadIdx.x;
        unsigned base = (unsigned)__cvta_generic_to_shared(s), r[4], sum = 0;
        #define LOAD(at) asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \\
            : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(base + (at))); sum += r[0] ^ r[3];
        LOAD(t * 128)                       // plain: every row starts in bank 0
        LOAD(t * 144)                       // padded by 16 bytes
        LOAD(t * 128 + ((t & 7) * 16))      // swizzled
        out[t] = sum;
    }"""
    outcome = run(bench, source)
    lines = [line.counters for line in outcome.trace.kernels[0].lines if line.counters.shared_requests]
    assert [c.shared_wavefronts for c in lines] == [32, 4, 4]
    assert [c.bank_conflicts for c in lines] == [28, 0, 0]


def test_inactive_lanes_take_no_part(bench: Bench) -> None:
    outcome = run(bench, copy_kernel("float", "t", "").replace("float v", "if (t % 2 == 0) out[t]"), block=(48, 1, 1))
    load = outcome.trace.kernels[0].kinds["ld.global"]
    assert load.global_requests == 2
    assert load.global_sectors == 4 + 2
    assert load.global_bytes == 24 * 4
    assert load.thread_instructions == 24
    assert outcome.trace.counters.divergent_branches in (0, 2)


def test_instructions_divergence_and_barriers(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* in, float* out) {
        float v = in[threadIdx.x];
        if (threadIdx.x % 32 < 5) for (int i = 0; i < 3; ++i) v = sqrtf(v + 1) * out[i];
        __syncthreads();
        out[threadIdx.x] = exp2f(v);
    }"""
    outcome = run(bench, source, block=(64, 1, 1), grid=(3, 1, 1))
    kernel = outcome.trace.kernels[0]
    assert kernel.counters.divergent_branches == 6
    assert kernel.counters.barriers == 3
    assert kernel.kinds["bar.sync"].warp_instructions == 6
    roots = kernel.kinds["sqrt"]
    assert (roots.warp_instructions, roots.thread_instructions) == (18, 90)
    assert kernel.counters.exponentials == 64 * 3
    assert kernel.counters == Counters.total(line.counters for line in kernel.lines)
    assert kernel.counters == Counters.total(kernel.kinds.values())
    assert any(line.source == "out[threadIdx.x] = exp2f(v);" for line in kernel.lines)


def test_half_pair_exponentials_count_twice(bench: Bench) -> None:
    source = """#include <cuda_fp16.h>
    extern "C" __global__ void k(const __half2* in, __half2* out) {
        __half2 v = in[threadIdx.x];
        asm volatile("ex2.approx.f16x2 %0, %0;" : "+r"(reinterpret_cast<unsigned&>(v)));
        out[threadIdx.x] = v;
    }"""
    assert run(bench, source).trace.counters.exponentials == 64


def test_bytes_touched_count_once_however_often(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* in, float* out) {
        float s = 0;
        for (int i = 0; i < 8; ++i) s += in[threadIdx.x];
        for (int i = 0; i < 4; ++i) { s += in[100 + i]; }
        out[blockIdx.x % 2] = s; out[2] = 0;
    }"""
    outcome = run(bench, source, grid=(4, 1, 1))
    tensor = outcome.trace.kernels[0].tensor("in")
    assert tensor.unique_read_bytes == (32 + 4) * 4
    assert tensor.read_bytes == 4 * 32 * 4 * (1 + 4)  # the compiler hoists the repeated load
    assert outcome.trace.kernels[0].tensor("out").unique_write_bytes == 12


def test_the_trace_is_strict_json(bench: Bench) -> None:
    trace = run(bench, copy_kernel("float", "t")).trace
    text = json.dumps(trace.as_json(), allow_nan=False)
    record = json.loads(text)
    assert record["faults"] == []
    assert record["totals"]["global_sectors"] == 8
    assert record["kernels"][0]["kinds"]["ld.global"]["coalescing_efficiency"] == 1.0
    assert record["kernels"][0]["lines"][0]["file"].endswith(".cu")
    assert record["totals"]["bank_conflicts"] == 0


def test_copies_count_as_global_requests(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* in, float* out) {
        __shared__ float4 s[32];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        int bytes = threadIdx.x < 16 ? 16 : threadIdx.x < 24 ? 4 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(in + threadIdx.x * 4), "r"(bytes));
        asm volatile("cp.async.wait_all;" ::: "memory");
        float4 v = s[threadIdx.x];
        out[threadIdx.x] = v.x + 10 * v.y;
    }"""
    arrays = {"in": np.arange(1, 129).astype("f4"), "out": np.zeros(32, "f4")}
    outcome = bench.run(source, "k", arrays, outputs=("out",), mode=Mode.COUNTS)
    a = np.arange(1, 129).reshape(32, 4)
    expected = np.where(np.arange(32) < 16, a[:, 0] + 10 * a[:, 1], np.where(np.arange(32) < 24, a[:, 0], 0))
    assert np.array_equal(outcome.outputs["out"], expected)
    assert outcome.trace.kernels[0].tensor("in").unique_read_bytes == 16 * 16 + 8 * 4


def test_coalescing_of_random_addresses_equals_a_plain_count() -> None:
    rng = np.random.default_rng(3)
    for nbytes in (1, 4, 16):
        lanes = np.flatnonzero(rng.random(256) < 0.7)
        offsets = rng.integers(0, 4096 // nbytes, lanes.size) * nbytes
        pairs = {(lane // 32, offset // 32) for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True)}
        unique = {(lane // 32, offset) for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True)}
        assert coalesce(lanes, offsets, nbytes) == (len(set(lanes // 32)), len(pairs), len(unique) * nbytes)


def test_wavefronts_of_random_addresses_equal_a_plain_count() -> None:
    rng = np.random.default_rng(4)
    for nbytes, lanes_at_once in ((4, 32), (8, 16), (16, 8)):
        addresses = rng.integers(0, 2048 // nbytes, (6, 32)) * nbytes
        addresses[3] = addresses[3, np.arange(32) & ~1]
        addresses[4] = addresses[4, np.arange(32) & ~2]
        addresses[rng.random((6, 32)) < 0.2] = -1
        total = ideal = 0
        for row in addresses:
            paired = any(all(row[t] == row[t ^ d] or row[t] < 0 or row[t ^ d] < 0 for t in range(32)) for d in (1, 2))
            at_once = lanes_at_once * 2 if paired and nbytes > 4 else lanes_at_once
            for start in range(0, 32, at_once):
                words = {int(a) // 4 + w for a in row[start : start + at_once] if a >= 0 for w in range(nbytes // 4)}
                banks = [w % 32 for w in words]
                total += max((banks.count(b) for b in banks), default=0)
                ideal += bool(banks)
        assert wavefronts(addresses, nbytes) == (total, ideal)
