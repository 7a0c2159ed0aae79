"""Small CUDA kernels, compiled and run: each exercises one part of the machine against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnprof.emulator import Mode
from attnprof.kernels.plan import Scalar
from attnprof.model.errors import CompileError, KernelFault, LaunchLimitError, OutOfMemory, UsageError
from tests.unit.emulator.emulator_harness import Bench

RNG = np.random.default_rng(11)


def test_divergence_loops_and_a_switch(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const int* a, int* out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        int v = a[i], steps = 0;
        while (v != 1 && steps < 1000) { v = v % 2 ? 3 * v + 1 : v / 2; steps++; }
        switch (i % 7) {
            case 0: steps += 100; break;
            case 1: steps *= 2; break;
            case 2: steps -= 7;
            case 3: steps ^= 5; break;
            case 5: for (int j = 0; j < i; ++j) if (j % 3 == 0) continue; else steps++; break;
        }
        out[i] = steps;
    }"""
    n = 200
    a = RNG.integers(1, 500, n).astype("i4")

    def expected(i: int, v: int) -> int:
        steps = 0
        while v != 1 and steps < 1000:
            v = 3 * v + 1 if v % 2 else v // 2
            steps += 1
        case = i % 7
        if case == 0:
            steps += 100
        elif case == 1:
            steps *= 2
        elif case in (2, 3):
            steps = (steps - 7 if case == 2 else steps) ^ 5
        elif case == 5:
            steps += sum(1 for j in range(i) if j % 3)
        return steps

    outcome = bench.run(
        source,
        "k",
        {"a": a, "out": np.zeros(n, "i4")},
        [Scalar("i32", n)],
        outputs=("out",),
        grid=(3, 1, 1),
        block=(96, 1, 1),
        mode=Mode.ALL,
    )
    assert outcome.outputs["out"].tolist() == [expected(i, int(v)) for i, v in enumerate(a)]
    assert outcome.trace.counters.divergent_branches > 0


def test_recursion_and_stack_arrays(bench: Bench) -> None:
    source = """
    __device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    __device__ __noinline__ float4 twice(float4 v, int by) { return make_float4(v.x*by, v.y*by, v.z*by, v.w*by); }
    extern "C" __global__ void k(int* out, float* vectors) {
        int scratch[16];
        for (int j = 0; j < 16; ++j) scratch[(j * 5 + threadIdx.x) % 16] = j;
        out[threadIdx.x] = fib(threadIdx.x % 12) * 100 + scratch[threadIdx.x % 16];
        float4 r = twice(make_float4(threadIdx.x, 1, 2, 3), 3);
        vectors[threadIdx.x] = r.x + r.y + r.z + r.w;
    }"""
    outcome = bench.run(
        source,
        "k",
        {"out": np.zeros(64, "i4"), "vectors": np.zeros(64, "f4")},
        outputs=("out", "vectors"),
        block=(64, 1, 1),
    )
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    expected = []
    for t in range(64):
        scratch = [0] * 16
        for j in range(16):
            scratch[(j * 5 + t) % 16] = j
        expected.append(fib[t % 12] * 100 + scratch[t % 16])
    assert outcome.outputs["out"].tolist() == expected
    assert outcome.outputs["vectors"].tolist() == [3 * (t + 6) for t in range(64)]


def test_block_reduction_with_shared_memory_and_shuffles(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* a, float* sums, int n) {
        extern __shared__ float partial[];
        float v = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) v += a[blockIdx.x * n + i];
        for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
        __syncthreads();
        if (threadIdx.x < 32) {
            v = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
            for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
            if (threadIdx.x == 0) sums[blockIdx.x] = v;
        }
    }"""
    a = RNG.integers(-50, 50, (5, 333)).astype("f4")
    outcome = bench.run(
        source,
        "k",
        {"a": a, "sums": np.zeros(5, "f4")},
        [Scalar("i32", 333)],
        outputs=("sums",),
        grid=(5, 1, 1),
        block=(128, 1, 1),
        smem_bytes=16,
        mode=Mode.CHECKS,
    )
    assert np.array_equal(outcome.outputs["sums"], a.sum(axis=1))


def test_shuffles_and_votes(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const int* a, int* out) {
        int t = threadIdx.x, v = a[t];
        unsigned all = ~0u;
        int r[12];
        r[0] = __shfl_up_sync(all, v, 3);
        r[1] = __shfl_down_sync(all, v, 5, 16);
        r[2] = __shfl_sync(all, v, t * 7, 8);
        r[3] = __shfl_xor_sync(all, v, 9);
        r[4] = __ballot_sync(all, v > 0);
        r[5] = __any_sync(all, v > 90) + 2 * __all_sync(all, v > -200);
        r[6] = __match_any_sync(all, v % 3);
        r[7] = __reduce_add_sync(all, v);
        r[8] = __reduce_max_sync(all, v);
        int pred; r[9] = __match_all_sync(all, t / 32, &pred); r[9] += pred;
        r[10] = t % 32 < 16 ? __ballot_sync(0xffff, v & 1) : __ballot_sync(0xffff0000, v & 2);
        r[11] = __activemask();
        for (int j = 0; j < 12; ++j) out[t * 12 + j] = r[j];
    }"""
    a = RNG.integers(-100, 100, 64).astype("i4")
    outcome = bench.run(source, "k", {"a": a, "out": np.zeros(64 * 12, "i4")}, outputs=("out",), block=(64, 1, 1))
    got = outcome.outputs["out"].reshape(2, 32, 12)
    for warp in range(2):
        v = a[32 * warp : 32 * warp + 32].astype(int)
        lane = np.arange(32)
        rows = got[warp]
        assert rows[:, 0].tolist() == [v[i - 3] if i >= 3 else v[i] for i in lane]
        assert rows[:, 1].tolist() == [v[i + 5] if i % 16 + 5 < 16 else v[i] for i in lane]
        assert rows[:, 2].tolist() == [v[i // 8 * 8 + (i + 32 * warp) * 7 % 8] for i in lane]
        assert rows[:, 3].tolist() == [v[i ^ 9] for i in lane]
        bits = lambda flags: sum(1 << int(i) for i in np.flatnonzero(flags))  # noqa: E731
        unsigned = rows.view("u4")
        assert set(unsigned[:, 4]) == {bits(v > 0)}
        assert set(rows[:, 5]) == {int((v > 90).any()) + 2}
        c_mod = np.fmod(v, 3)
        assert unsigned[:, 6].tolist() == [bits(c_mod == m) for m in c_mod]
        assert set(rows[:, 7]) == {v.sum()}
        assert set(rows[:, 8]) == {v.max()}
        assert set(rows[:, 9]) == {0}  # a full mask plus one
        low, high = bits((v[:16] & 1) != 0), bits((v[16:] & 2) != 0) << 16
        assert unsigned[:, 10].tolist() == [low] * 16 + [high] * 16
        assert set(unsigned[:, 11]) == {0xFFFFFFFF}


def test_atomics(bench: Bench) -> None:
    source = """
    #include <cuda_fp16.h>
    extern "C" __global__ void k(unsigned* out, float* sum, unsigned* order) {
        __shared__ unsigned counter;
        int t = blockIdx.x * blockDim.x + threadIdx.x;
        if (threadIdx.x == 0) counter = 0;
        __syncthreads();
        atomicAdd(&out[0], t); atomicMax(&out[1], t); atomicMin(&out[2], t + 5); atomicOr(&out[3], 1u << (t % 32));
        atomicAnd(&out[4], ~(1u << (t % 8))); atomicXor(&out[5], t); atomicInc(&out[6], 9); atomicDec(&out[7], 4);
        atomicAdd(sum, 0.5f * t);
        atomicAdd(reinterpret_cast<__half2*>(sum + 1), __floats2half2_rn(1.0f, 2.0f));
        atomicAdd(&counter, 1u);
        unsigned ticket = atomicAdd(&out[8], 1u);
        order[ticket] = t;
        unsigned old = out[9], assumed;
        do { assumed = old; old = atomicCAS(&out[9], assumed, assumed + 2); } while (old != assumed);
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(&out[10 + blockIdx.x], counter);
    }"""
    n = 96
    out = np.zeros(16, "u4")
    out[2], out[4] = 1 << 30, 0xFFFFFFFF
    outcome = bench.run(
        source.replace('extern "C"', "__device__ unsigned unused;\n" + 'extern "C"'),
        "k",
        {"out_in": out, "sum": np.zeros(2, "f4"), "order": np.zeros(n, "u4")},
        outputs=("order",),
        grid=(2, 1, 1),
        block=(48, 1, 1),
    )
    got = outcome.run.read("out_in").view("u4")
    t = np.arange(n)
    assert got[0] == t.sum()
    assert got[1] == n - 1
    assert got[2] == 5
    assert got[3] == 0xFFFFFFFF
    assert got[4] == 0xFFFFFF00
    assert got[5] == np.bitwise_xor.reduce(t)
    assert got[6] == n % 10
    assert got[8] == n
    assert got[9] == 2 * n
    assert got[10:12].tolist() == [48, 48]
    assert outcome.run.read("sum")[0] == 0.5 * t.sum()
    assert outcome.run.read("sum")[1:].view("f2").tolist() == [n, 2 * n]
    assert sorted(outcome.outputs["order"].tolist()) == t.tolist()


def test_constants_parameters_by_value_and_generic_pointers(bench: Bench) -> None:
    source = """
    __constant__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
    __device__ int offset = 40;
    __device__ __noinline__ float pick(const float* p, int i) { return p[i]; }
    extern "C" __global__ void k(float* out, int which) {
        __shared__ float s[32];
        float local[4] = {10, 20, 30, 40};
        s[threadIdx.x] = threadIdx.x;
        __syncwarp();
        local[which] = 7;
        const float* p = threadIdx.x % 3 == 0 ? s : threadIdx.x % 3 == 1 ? local : out;
        float a = pick(p, threadIdx.x % 4);
        out[threadIdx.x + 32] = a + table[threadIdx.x % 4] + offset;
    }"""
    given = np.arange(64).astype("f4") * 100
    outcome = bench.run(source, "k", {"out_in": given}, [Scalar("i32", 2)])
    t = np.arange(32)
    local = np.array([10, 20, 7, 40])
    base = np.where(t % 3 == 0, t % 4, np.where(t % 3 == 1, local[t % 4], (t % 4) * 100))
    assert np.array_equal(outcome.run.read("out_in")[32:], base + np.array([1.5, 2.5, 3.5, 4.5])[t % 4] + 40)


def test_math_library(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* a, const double* d, float* out, double* wide) {
        int t = threadIdx.x;
        float x = a[t];
        float r[8] = {expf(x), logf(fabsf(x)), sinf(x), tanhf(x), erff(x), __expf(x),
                      __fdividef(1.0f, x), powf(2.5f, x)};
        for (int j = 0; j < 8; ++j) out[t * 8 + j] = r[j];
        double y = d[t];
        wide[t * 3] = exp(y); wide[t * 3 + 1] = sin(y) / y; wide[t * 3 + 2] = sqrt(fabs(y));
    }"""
    a = RNG.uniform(-3, 3, 32).astype("f4")
    d = RNG.uniform(-3, 3, 32)
    outcome = bench.run(
        source,
        "k",
        {"a": a, "d": d, "out": np.zeros(256, "f4"), "wide": np.zeros(96)},
        outputs=("out", "wide"),
    )
    x = a.astype("f8")
    expected = np.stack(
        [
            np.exp(x),
            np.log(np.abs(x)),
            np.sin(x),
            np.tanh(x),
            np.array([math.erf(v) for v in x]),
            np.exp(x),
            1 / x,
            2.5**x,
        ],
        axis=1,
    )
    np.testing.assert_allclose(outcome.outputs["out"].reshape(32, 8), expected, rtol=3e-6, atol=1e-7)
    wide = np.stack([np.exp(d), np.sin(d) / d, np.sqrt(np.abs(d))], axis=1)
    np.testing.assert_allclose(outcome.outputs["wide"].reshape(32, 3), wide, rtol=1e-14)


def test_vector_accesses_and_narrow_elements(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const uint4* a, unsigned char* bytes, short* shorts, ulonglong2* wide) {
        uint4 v = a[threadIdx.x];
        bytes[threadIdx.x] = v.x; shorts[threadIdx.x] = -(short)v.y;
        wide[threadIdx.x] = make_ulonglong2(v.x * 3ull, ~(unsigned long long)v.w);
    }"""
    a = RNG.integers(0, 2**32, 128, dtype="u4")
    outcome = bench.run(
        source,
        "k",
        {"a": a, "bytes": np.zeros(32, "u1"), "shorts": np.zeros(32, "i2"), "wide": np.zeros(64, "u8")},
        outputs=("bytes", "shorts", "wide"),
    )
    rows = a.reshape(32, 4)
    assert np.array_equal(outcome.outputs["bytes"], rows[:, 0].astype("u1"))
    assert np.array_equal(outcome.outputs["shorts"], -rows[:, 1].astype("i2"))
    assert np.array_equal(outcome.outputs["wide"].reshape(32, 2)[:, 0], rows[:, 0].astype("u8") * 3)
    assert np.array_equal(outcome.outputs["wide"].reshape(32, 2)[:, 1], ~rows[:, 3].astype("u8"))


def test_named_barriers_between_warps(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        __shared__ int box[32];
        int lane = threadIdx.x % 32;
        if (threadIdx.x < 32) {  // producer
            for (int round = 0; round < 3; ++round) {
                asm volatile("bar.sync 1, 64;" ::: "memory");
                box[lane] = lane * 10 + round;
                asm volatile("bar.arrive 2, 64;" ::: "memory");
            }
        } else {
            for (int round = 0; round < 3; ++round) {
                asm volatile("bar.arrive 1, 64;" ::: "memory");
                asm volatile("bar.sync 2, 64;" ::: "memory");
                out[round * 32 + lane] = box[31 - lane];
            }
        }
    }"""
    outcome = bench.run(source, "k", {"out": np.zeros(96, "i4")}, outputs=("out",), block=(64, 1, 1), mode=Mode.CHECKS)
    assert outcome.outputs["out"].reshape(3, 32).tolist() == [
        [(31 - lane) * 10 + r for lane in range(32)] for r in range(3)
    ]


def test_barrier_reductions(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        int t = threadIdx.x;
        out[t * 3] = __syncthreads_count(t % 3 == 0);
        out[t * 3 + 1] = __syncthreads_and(t < 1000);
        out[t * 3 + 2] = __syncthreads_or(t == blockDim.x);
    }"""
    outcome = bench.run(source, "k", {"out": np.zeros(300, "i4")}, outputs=("out",), block=(100, 1, 1))
    rows = outcome.outputs["out"].reshape(100, 3)
    assert set(rows[:, 0]) == {34}
    assert np.all(rows[:, 1] != 0)
    assert not rows[:, 2].any()


def test_a_spinning_thread_lets_the_others_write_its_flag(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(volatile int* flag, int* out) {
        if (threadIdx.x < 32) { while (*flag == 0) {} out[threadIdx.x] = *flag; }
        else if (threadIdx.x == 40) { for (int i = 0; i < 10; ++i) out[32] = i; *flag = 5; }
    }"""
    outcome = bench.run(
        source,
        "k",
        {"flag": np.zeros(1, "i4"), "out": np.zeros(33, "i4")},
        outputs=("out",),
        block=(64, 1, 1),
        budget=400_000,
    )
    assert outcome.outputs["out"].tolist() == [5] * 32 + [9]


def test_many_waves_give_what_one_gives(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
    extern "C" __global__ void k(int* out) {
        int i = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        out[i * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x]
            = i * 1000 + threadIdx.y * 10 + threadIdx.x;
    }"""
    shape = {"grid": (5, 3, 2), "block": (5, 7, 1)}
    outputs = []
    for lanes in (8192, 64):
        monkeypatch.setattr("attnprof.emulator.launch.WAVE_LANES", lanes)
        outcome = bench.run(source, "k", {"out": np.zeros(30 * 35, "i4")}, outputs=("out",), **shape)
        outputs.append(outcome.outputs["out"])
    t = np.arange(35)
    assert np.array_equal(outputs[0].reshape(30, 35), np.arange(30)[:, None] * 1000 + t // 5 * 10 + t % 5)
    assert np.array_equal(outputs[0], outputs[1])


def test_launch_limits(bench: Bench) -> None:
    source = 'extern "C" __global__ void __launch_bounds__(128) k(float* a) { a[threadIdx.x] = 1; }'
    arrays = {"a": np.zeros(2048, "f4")}
    for shape, words in (
        ({"block": (2048, 1, 1)}, "block.x is 2,048"),
        ({"block": (256, 1, 1)}, "__launch_bounds__ allow 128"),
        ({"grid": (1, 65536, 1)}, "grid.y is 65,536"),
        ({"grid": (0, 1, 1)}, "grid.x is 0"),
        ({"smem_bytes": 200_000}, "200,000 B of shared memory"),
    ):
        with pytest.raises(LaunchLimitError, match=words):
            bench.run(source, "k", arrays, **shape)
    with pytest.raises(UsageError, match="takes 1 arguments, the plan gives 2"):
        bench.run(source, "k", arrays, [Scalar("i32", 1)])


def test_a_compile_error_names_the_line(bench: Bench) -> None:
    with pytest.raises(CompileError, match=r":2: "):
        bench.run('\nextern "C" __global__ void k(float* a) { a[0] = nothing; }', "k", {"a": np.zeros(4, "f4")})


WMMA = """
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, %s* c) {
    __shared__ half tile[256];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, %s> fc;
    wmma::fill_fragment(fc, 1.0f);
    wmma::load_matrix_sync(fa, tile, 16);
    wmma::load_matrix_sync(fb, b, 24);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] = fc.x[i] * (%s)2.0f;
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}"""


@pytest.mark.parametrize(("kind", "dtype"), [("float", "f4"), ("half", "f2")])
def test_wmma_fragments(bench: Bench, kind: str, dtype: str) -> None:
    a = RNG.integers(-4, 5, (16, 16)).astype("f2")
    b = RNG.integers(-4, 5, (16, 24)).astype("f2")  # 16 columns of 16, each followed by 8 more elements
    outcome = bench.run(
        WMMA % (kind, kind, kind),
        "k",
        {"a": a, "b": b, "c": np.zeros((16, 16), dtype)},
        outputs=("c",),
        mode=Mode.ALL,
    )
    expected = 2 * (a.astype("f8") @ b[:, :16].astype("f8").T + 1)
    assert np.array_equal(outcome.outputs["c"].astype("f8"), expected)
    assert outcome.trace.counters.matrix_flops == 2 * 16**3
    assert outcome.trace.faults == ()


def test_function_pointers_and_virtual_functions(bench: Bench) -> None:
    source = """
    struct Base { float k; virtual __device__ float f(float x) { return x * k; } };
    struct Derived : Base { __device__ float f(float x) override { return x + k; } };
    __device__ float twice(float x) { return x * 2; }
    __device__ float thrice(float x) { return x * 3; }
    extern "C" __global__ void k(const int* in, float* out) {
        int which = in[threadIdx.x];
        float (*function)(float) = which & 1 ? twice : thrice;
        Base base; Derived derived;
        base.k = 10; derived.k = 20;
        Base* object = which & 2 ? &base : &derived;
        out[threadIdx.x] = function(threadIdx.x) + object->f(5);
    }"""
    which = RNG.integers(0, 4, 64).astype("i4")
    outcome = bench.run(
        source, "k", {"in": which, "out": np.zeros(64, "f4")}, outputs=("out",), block=(64, 1, 1), mode=Mode.ALL
    )
    t = np.arange(64)
    expected = np.where(which & 1, 2 * t, 3 * t) + np.where(which & 2, 50, 25)
    assert np.array_equal(outcome.outputs["out"], expected)


def test_printf_is_kept(bench: Bench) -> None:
    source = r"""
    extern "C" __global__ void k(const float* in) {
        if (threadIdx.x % 16 == 1)
            printf("%d|%5.2f|%s|%llu|%%|%c|%x\n", -(int)threadIdx.x, in[threadIdx.x], "text", 123456789012ull, 65, 255);
    }"""
    trace = bench.run(source, "k", {"in": np.arange(32).astype("f4")}).trace
    assert trace.printed == "-1| 1.00|text|123456789012|%|A|ff\n-17|17.00|text|123456789012|%|A|ff\n"


def test_a_failed_assertion_is_a_fault(bench: Bench) -> None:
    source = 'extern "C" __global__ void k(const float* in) { assert(in[threadIdx.x] < 7); }'
    with pytest.raises(KernelFault, match=r"assertion failed: in\[threadIdx\.x\] < 7 at .* thread \(7, 0, 0\)"):
        bench.run(source, "k", {"in": np.arange(32).astype("f4")})


LIBRARY = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_scan.cuh>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const float* in, float* out) {
    __shared__ float staged[64];
    auto pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(&staged[threadIdx.x], &in[threadIdx.x], cuda::aligned_size_t<4>(4), pipe);
    pipe.producer_commit();
    pipe.consumer_wait();
    cg::this_thread_block().sync();
    auto tile = cg::tiled_partition<16>(cg::tiled_partition<32>(cg::this_thread_block()));
    float sum = cg::reduce(tile, staged[63 - threadIdx.x], cg::plus<float>());
    pipe.consumer_release();
    using Scan = cub::BlockScan<int, 64>;
    __shared__ typename Scan::TempStorage storage;
    int before;
    Scan(storage).ExclusiveSum((int)threadIdx.x, before);
    out[threadIdx.x] = sum + 1000 * before;
}"""


def test_cooperative_groups_cub_and_pipelines(bench: Bench) -> None:
    a = np.arange(64).astype("f4")
    outcome = bench.run(
        LIBRARY, "k", {"in": a, "out": np.zeros(64, "f4")}, outputs=("out",), block=(64, 1, 1), mode=Mode.ALL
    )
    sums = np.repeat(a[::-1].reshape(4, 16).sum(axis=1), 16)
    before = np.cumsum(np.arange(64)) - np.arange(64)
    assert np.array_equal(outcome.outputs["out"], sums + 1000 * before)
    assert outcome.trace.faults == ()


def test_block_barriers_in_shared_memory(bench: Bench) -> None:
    source = """
    #include <cooperative_groups.h>
    #include <cuda/barrier>
    #include <cuda/pipeline>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(const float* in, float* out) {
        __shared__ cuda::barrier<cuda::thread_scope_block> bar;
        __shared__ float s[64], p[2][64];
        __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
        auto block = cg::this_thread_block();
        if (threadIdx.x == 0) init(&bar, blockDim.x);
        block.sync();
        s[threadIdx.x] = in[threadIdx.x];
        bar.arrive_and_wait();
        float v = s[63 - threadIdx.x];
        auto token = bar.arrive();
        bar.wait(std::move(token));
        cuda::memcpy_async(block, s, in + 64, sizeof(float) * 64, bar);
        bar.arrive_and_wait();
        v += s[63 - threadIdx.x];
        auto pipe = cuda::make_pipeline(block, &state);
        for (int i = 0; i < 3; ++i) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, p[i % 2], in + 64 * i, sizeof(float) * 64, pipe);
            pipe.producer_commit();
            pipe.consumer_wait();
            v += p[i % 2][63 - threadIdx.x] * (i + 1);
            pipe.consumer_release();
        }
        out[threadIdx.x] = v;
    }"""
    a = RNG.integers(0, 100, 192).astype("f4")
    outcome = bench.run(
        source, "k", {"in": a, "out": np.zeros(64, "f4")}, outputs=("out",), block=(64, 1, 1), mode=Mode.ALL
    )
    rows = a.reshape(3, 64)[:, ::-1]
    expected = rows[0] + rows[1] + rows[0] + 2 * rows[1] + 3 * rows[2]
    assert np.array_equal(outcome.outputs["out"], expected)
    assert outcome.trace.faults == ()


MBARRIER = """
extern "C" __global__ void k(const float* in, float* out) {
    __shared__ unsigned long long full, empty;
    __shared__ float box[32];
    unsigned f = (unsigned)__cvta_generic_to_shared(&full), e = (unsigned)__cvta_generic_to_shared(&empty);
    int lane = threadIdx.x %% 32;
    auto arrive = [](unsigned b) {
        asm volatile("{.reg .b64 s; mbarrier.arrive.shared.b64 s, [%%0];}" :: "r"(b) : "memory");
    };
    auto wait = [](unsigned b, unsigned parity) {
        unsigned done = 0;
        while (!done)
            asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%%1], %%2; selp.u32 %%0, 1, 0, p;}"
                         : "=r"(done) : "r"(b), "r"(parity) : "memory");
    };
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%%0], %%1;" :: "r"(f), "r"(%d) : "memory");
        asm volatile("mbarrier.init.shared.b64 [%%0], %%1;" :: "r"(e), "r"(32) : "memory");
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < 8; ++i) {
            if (i) wait(e, (i - 1) & 1);
            box[lane] = in[i * 32 + lane];
            %s
        }
    } else {
        for (int i = 0; i < 8; ++i) {
            wait(f, i & 1);
            out[i * 32 + lane] = box[31 - lane];
            arrive(e);
        }
    }
}"""


def test_producer_and_consumer_warps_over_mbarriers(bench: Bench) -> None:
    a = RNG.standard_normal(256).astype("f4")
    arrays = {"in": a, "out": np.zeros(256, "f4")}
    outcome = bench.run(
        MBARRIER % (32, "arrive(f);"), "k", arrays, outputs=("out",), block=(64, 1, 1), mode=Mode.CHECKS
    )
    assert np.array_equal(outcome.outputs["out"].reshape(8, 32), a.reshape(8, 32)[:, ::-1])
    with pytest.raises(KernelFault, match=r"deadlock: .* threads wait at an mbarrier for arrivals that never come"):
        bench.run(MBARRIER % (32, ""), "k", arrays, outputs=("out",), block=(64, 1, 1))
    with pytest.raises(KernelFault, match="32 arrivals at an mbarrier whose phase waits for 16"):
        bench.run(MBARRIER % (16, "arrive(f);"), "k", arrays, outputs=("out",), block=(64, 1, 1))
    racing = "arrive(f); box[lane] = 5;"
    with pytest.raises(KernelFault, match=r"data-race: (reads|overwrites) what thread"):
        bench.run(MBARRIER % (32, racing), "k", arrays, outputs=("out",), block=(64, 1, 1), mode=Mode.CHECKS)


def test_tensors_that_do_not_fit_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] = 1; }'
    monkeypatch.setattr("attnprof.emulator.executor.available_bytes", lambda: 10_000)
    arrays = {"a": np.zeros(1024, "f4")}
    bench.run(source, "k", arrays)
    with pytest.raises(OutOfMemory) as caught:
        bench.run(source, "k", arrays, mode=Mode.CHECKS)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (int(4096 * (2 + 50 / 4)), 10_000)


def test_writing_and_reading_tensors_by_name(bench: Bench) -> None:
    source = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] += 1; }'
    outcome = bench.run(source, "k", {"a": np.zeros(32, "f4")})
    for _ in range(2):
        outcome.run.launch()
    assert np.array_equal(outcome.run.read("a"), np.full(32, 3, "f4"))
    with pytest.raises(UsageError, match="no tensor 'b'"):
        outcome.run.read("b")
    with pytest.raises(UsageError, match=r"tensor 'a' is \(32,\) float32, not \(31,\) float32"):
        outcome.run.write("a", np.zeros(31, "f4"))
