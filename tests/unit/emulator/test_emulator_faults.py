"""One kernel for each kind of fault: found, named and located; and the right kernel beside it: silent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from attnprof.emulator import EmulatedFault, FaultKind, Mode
from attnprof.emulator.checks import MAX_FAULTS
from attnprof.emulator.faults import Fault, grouped
from attnprof.model.errors import KernelFault
from tests.unit.emulator.emulator_harness import Bench

HEAD = "#include <cuda_fp16.h>\n"


@dataclass(frozen=True)
class Seeded:
    """A kernel with one fault: the line that carries the comment ``// here`` is the place to report."""

    name: str
    kind: FaultKind
    body: str
    words: str
    repaired: tuple[str, str] | None = None
    block: tuple[int, int, int] | None = (0, 0, 0)
    thread: tuple[int, int, int] | None = None
    threads: int = 64
    grid: int = 1
    mode: Mode = Mode.CHECKS
    helpers: str = ""
    budget: int = 20_000
    find_nans: bool = False
    smem_bytes: int = 0
    outputs: tuple[str, ...] = field(default=("out",))

    @property
    def source(self) -> str:
        return (
            f"{HEAD}{self.helpers}\n"
            f'extern "C" __global__ void seeded(const float* in, float* out) {{\n{self.body}\n}}\n'
        )

    @property
    def line(self) -> int:
        return next(n for n, text in enumerate(self.source.splitlines(), 1) if "// here" in text)


SEEDED = [
    Seeded(
        "read past the end",
        FaultKind.OUT_OF_BOUNDS,
        """int i = blockIdx.x * blockDim.x + threadIdx.x;
        out[i] = in[i + 5];  // here""",
        r"reads 4 bytes, 0 bytes past the end of in \(512 bytes\)",
        repaired=("i + 5", "i"),
        block=(1, 0, 0),
        thread=(59, 0, 0),
        grid=2,
        mode=Mode.FAST,
    ),
    Seeded(
        "write before the start",
        FaultKind.OUT_OF_BOUNDS,
        "out[(int)threadIdx.x - 2] = 1.0f;  // here",
        r"writes 4 bytes, 8 bytes before the start of out",
        repaired=("- 2", ""),
        thread=(0, 0, 0),
        mode=Mode.FAST,
    ),
    Seeded(
        "a product of two ints that overflowed",
        FaultKind.OUT_OF_BOUNDS,
        "int big = 1 << 30; out[threadIdx.x] = in[big * 3ll + threadIdx.x];  // here",
        r"reads 4 bytes, 12884901632 bytes past the end of in",
        mode=Mode.FAST,
        thread=(0, 0, 0),
    ),
    Seeded(
        "shared memory past the end",
        FaultKind.OUT_OF_BOUNDS,
        """__shared__ float s[64];
        s[threadIdx.x] = 0; __syncthreads();
        float* p = s; asm volatile("" : "+l"(p));
        out[threadIdx.x] = p[threadIdx.x + 1];  // here""",
        r"reads 4 bytes, 0 bytes past the end of shared memory \(256 bytes\)",
        repaired=("x + 1", "x"),
        thread=(63, 0, 0),
        mode=Mode.FAST,
    ),
    Seeded(
        "a null pointer",
        FaultKind.OUT_OF_BOUNDS,
        """const float* p = nullptr; asm volatile("" : "+l"(p));
        out[threadIdx.x] = p[threadIdx.x];  // here""",
        r"the null pointer",
        thread=(0, 0, 0),
        mode=Mode.FAST,
    ),
    Seeded(
        "misaligned vector",
        FaultKind.MISALIGNED,
        """float4 v = *reinterpret_cast<const float4*>(in + threadIdx.x % 7);  // here
        out[threadIdx.x] = v.x + v.y + v.z + v.w;""",
        r"reads 16 bytes at an address that is no multiple of 16",
        repaired=("threadIdx.x % 7", "threadIdx.x % 7 * 4"),
        thread=(1, 0, 0),
        mode=Mode.FAST,
    ),
    Seeded(
        "uninitialised shared memory",
        FaultKind.UNINITIALISED,
        """__shared__ float s[64];
        if (threadIdx.x != 9) s[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x];  // here""",
        r"reads 4 bytes of shared memory that nothing wrote",
        repaired=("if (threadIdx.x != 9) ", ""),
        thread=(54, 0, 0),
    ),
    Seeded(
        "uninitialised output",
        FaultKind.UNINITIALISED,
        "out[threadIdx.x] += in[threadIdx.x];  // here",
        r"reads 4 bytes of out that nothing wrote",
        repaired=("+=", "="),
        thread=(0, 0, 0),
    ),
    Seeded(
        "missing barrier",
        FaultKind.RACE,
        """__shared__ float s[64];
        s[threadIdx.x] = in[threadIdx.x];
        /* missing */
        out[threadIdx.x] = s[63 - threadIdx.x];  // here""",
        r"reads what thread \(63, 0, 0\) of block \(0, 0, 0\) wrote at line 5 in shared memory, with no barrier",
        repaired=("/* missing */", "__syncthreads();"),
        thread=(0, 0, 0),
    ),
    Seeded(
        "a barrier too few before overwriting",
        FaultKind.RACE,
        """__shared__ float s[64];
        float sum = 0;
        for (int i = 0; i < 2; ++i) {
            s[threadIdx.x] = in[threadIdx.x] + i;  // here
            __syncthreads();
            sum += s[(threadIdx.x + 32) % 64];
            /* missing */
        }
        out[threadIdx.x] = sum;""",
        r"overwrites what thread \(32, 0, 0\) of block \(0, 0, 0\) read",
        repaired=("/* missing */", "__syncthreads();"),
        thread=(0, 0, 0),
    ),
    Seeded(
        "lanes of a warp without __syncwarp",
        FaultKind.RACE,
        """__shared__ float s[64];
        s[threadIdx.x] = in[threadIdx.x];
        /* missing */
        out[threadIdx.x] = s[threadIdx.x ^ 1];  // here""",
        r"reads what thread \(1, 0, 0\)",
        repaired=("/* missing */", "__syncwarp();"),
        thread=(0, 0, 0),
    ),
    Seeded(
        "two threads store different values",
        FaultKind.RACE,
        "out[threadIdx.x / 2] = threadIdx.x;  // here",
        r"another thread stores a different value at once",
        repaired=("threadIdx.x / 2", "threadIdx.x"),
        thread=(0, 0, 0),
    ),
    Seeded(
        "a race between blocks",
        FaultKind.RACE,
        """if (blockIdx.x == 0) out[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        if (blockIdx.x == 1) out[64 + threadIdx.x] = out[threadIdx.x];  // here""",
        r"reads what thread \(0, 0, 0\) of block \(0, 0, 0\) wrote at line 4 in out",
        repaired=("= out[threadIdx.x]", "= in[threadIdx.x]"),
        block=(1, 0, 0),
        thread=(0, 0, 0),
        grid=2,
    ),
    Seeded(
        "copy read before its wait",
        FaultKind.ASYNC_UNWAITED,
        """__shared__ float4 s[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + threadIdx.x % 16 * 4) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        /* missing */
        __syncthreads();
        out[threadIdx.x] = s[threadIdx.x].x;  // here""",
        r"an asynchronous copy has not yet filled",
        repaired=("/* missing */", 'asm volatile("cp.async.wait_group 0;" ::: "memory");'),
        thread=(0, 0, 0),
    ),
    Seeded(
        "wait for one group too few",
        FaultKind.ASYNC_UNWAITED,
        """__shared__ float4 s[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + threadIdx.x % 16 * 4) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        out[threadIdx.x] = s[threadIdx.x].x;  // here""",
        r"no wait covers it",
        repaired=("wait_group 1", "wait_group 0"),
        thread=(0, 0, 0),
    ),
    Seeded(
        "another thread's copy without a barrier",
        FaultKind.RACE,
        """__shared__ float4 s[64];
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + threadIdx.x % 16 * 4) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        /* missing */
        out[threadIdx.x] = s[63 - threadIdx.x].x;  // here""",
        r"reads what thread \(63, 0, 0\)",
        repaired=("/* missing */", "__syncthreads();"),
        thread=(0, 0, 0),
    ),
    Seeded(
        "barrier in a branch of a warp",
        FaultKind.DIVERGENT_BARRIER,
        """if (threadIdx.x % 32 < 16) {
            asm volatile("bar.sync 0;" ::: "memory");  // here
            out[threadIdx.x] = 1;
        } else {
            asm volatile("bar.sync 0;" ::: "memory");
            out[threadIdx.x] = 2;
        }""",
        r"lanes of the same warp wait at another barrier",
        mode=Mode.FAST,
        threads=32,
    ),
    Seeded(
        "barrier that half a warp skips",
        FaultKind.DIVERGENT_BARRIER,
        """if (threadIdx.x < 16) asm volatile("bar.sync 0;" ::: "memory");  // here
        out[threadIdx.x] = 1;""",
        r"only part of a warp reaches this barrier",
        threads=32,
        thread=(0, 0, 0),
    ),
    Seeded(
        "deadlock at a named barrier",
        FaultKind.DEADLOCK,
        """if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");  // here
        else asm volatile("bar.sync 2, 64;" ::: "memory");
        out[threadIdx.x] = 1;""",
        r"32 threads wait at barrier 1 for threads that never come",
        mode=Mode.FAST,
        thread=(0, 0, 0),
    ),
    Seeded(
        "a shuffle that waits for absent lanes",
        FaultKind.DEADLOCK,
        """if (threadIdx.x < 8) {
            out[threadIdx.x] = __shfl_xor_sync(0xffff, in[threadIdx.x], 1);  // here
        } else if (threadIdx.x < 16) {
            __syncwarp(0xffff); out[threadIdx.x] = 2;
        }""",
        r"wait for lanes of their warp that never come",
        mode=Mode.FAST,
        threads=32,
    ),
    Seeded(
        "an endless loop",
        FaultKind.BUDGET,
        """volatile float* v = out;
        while (v[0] != 12345.0f) v[1] = 1;  // here""",
        r"still running after 20000 steps",
        mode=Mode.FAST,
        thread=None,
    ),
    Seeded(
        "trap",
        FaultKind.TRAP,
        "if (threadIdx.x == 33) __trap();  // here",
        r"the kernel executed trap",
        mode=Mode.FAST,
        thread=(33, 0, 0),
    ),
    Seeded(
        "endless recursion",
        FaultKind.STACK,
        "out[threadIdx.x] = down(threadIdx.x);",
        r"calls nested 64 deep",
        mode=Mode.FAST,
        helpers="__device__ __noinline__ int down(int n) { return n < 0 ? n : down(n + 1) * 3; }  // here",
        thread=(0, 0, 0),
    ),
    Seeded(
        "NaN born",
        FaultKind.NAN_BORN,
        """float big = in[threadIdx.x] + __int_as_float(0x7f800000);
        float m = big;
        out[threadIdx.x] = big - m * 1.0f * (threadIdx.x == 40 ? 1 : 0);  // here""",
        r"makes a NaN out of numbers",
        find_nans=True,
    ),
    Seeded(
        "write to constant memory",
        FaultKind.READ_ONLY,
        """float* p = const_cast<float*>(&table[threadIdx.x % 4]); asm volatile("" : "+l"(p));
        *p = 1;  // here""",
        r"writes to const variable 'table'",
        helpers="__constant__ float table[4];",
        mode=Mode.FAST,
        thread=(0, 0, 0),
    ),
]


def _run(bench: Bench, seeded: Seeded, source: str, on_fault: str = "raise") -> list:
    n = seeded.threads * seeded.grid
    outcome = bench.run(
        source,
        "seeded",
        {"in": np.zeros(n, "f4"), "out": np.zeros(n, "f4")},
        outputs=seeded.outputs,
        block=(seeded.threads, 1, 1),
        grid=(seeded.grid, 1, 1),
        mode=seeded.mode,
        on_fault=on_fault,
        budget=seeded.budget,
        find_nans=seeded.find_nans,
    )
    return list(outcome.trace.faults)


@pytest.mark.parametrize("seeded", SEEDED, ids=lambda s: s.name.replace(" ", "-"))
def test_a_seeded_fault_is_found_named_and_located(bench: Bench, seeded: Seeded) -> None:
    with pytest.raises(KernelFault) as caught:
        _run(bench, seeded, seeded.source)
    assert isinstance(caught.value, EmulatedFault)
    fault = caught.value.fault
    assert fault.kind == seeded.kind
    assert re.search(seeded.words, fault.message), fault.message
    assert (fault.kernel, fault.line) == ("seeded", seeded.line)
    assert "// here" in fault.source
    assert fault.block == seeded.block
    if seeded.thread is not None:
        assert fault.thread == seeded.thread
    message = str(caught.value)
    assert "\n" not in message
    assert f":{seeded.line} `" in message
    assert f"block ({fault.block[0]}, 0, 0), thread (" in message if fault.block else True


@pytest.mark.parametrize(
    "seeded", [s for s in SEEDED if s.repaired is not None], ids=lambda s: s.name.replace(" ", "-")
)
def test_the_repaired_kernel_is_silent(bench: Bench, seeded: Seeded) -> None:
    assert seeded.repaired is not None
    old, new = seeded.repaired
    assert seeded.source.count(old) == 1
    repaired = seeded.source.replace(old, new)
    n = seeded.threads * seeded.grid
    outcome = bench.run(
        repaired,
        "seeded",
        {"in": np.zeros(n, "f4"), "out": np.zeros(n, "f4")},
        outputs=("out",),
        block=(seeded.threads, 1, 1),
        grid=(seeded.grid, 1, 1),
        mode=Mode.CHECKS,
        find_nans=True,
    )
    assert outcome.trace.faults == ()


def test_every_kind_of_fault_has_a_kernel() -> None:
    # A divergent warp-wide operation is in test_matrix_operations.
    assert {s.kind for s in SEEDED} | {FaultKind.DIVERGENT_COLLECTIVE} == set(FaultKind)


def test_recorded_faults_do_not_raise_and_come_as_json(bench: Bench) -> None:
    seeded = next(s for s in SEEDED if s.name == "missing barrier")
    (fault,) = _run(bench, seeded, seeded.source, on_fault="record")
    record = fault.as_json()
    assert record["kind"] == "data-race"
    assert record["line"] == seeded.line
    assert record["thread"] == (0, 0, 0)
    assert str(record["file"]).endswith(".cu")


@pytest.mark.parametrize(("name", "stopped"), [("missing barrier", False), ("read past the end", True)])
def test_a_trace_says_whether_a_fault_ended_the_run(bench: Bench, name: str, stopped: bool) -> None:
    seeded = next(s for s in SEEDED if s.name == name)
    n = seeded.threads * seeded.grid
    outcome = bench.run(
        seeded.source,
        "seeded",
        {"in": np.zeros(n, "f4"), "out": np.zeros(n, "f4")},
        outputs=("out",),
        block=(seeded.threads, 1, 1),
        grid=(seeded.grid, 1, 1),
        mode=Mode.ALL,
        on_fault="record",
    )
    assert outcome.trace.faults
    assert outcome.trace.stopped is stopped


@pytest.mark.parametrize("unroll", ["#pragma unroll", "#pragma unroll 1"])
def test_one_mistake_is_one_fault_with_its_count_unrolled_or_not(bench: Bench, unroll: str) -> None:
    source = f"""
    extern "C" __global__ void k(const float* in, float* out) {{
        __shared__ float row[64];
        row[threadIdx.x] = in[threadIdx.x];
        float sum = 0.0f;
        {unroll}
        for (int i = 0; i < 64; ++i) sum += row[(threadIdx.x * 5 + i) % 64];
        row[threadIdx.x] = sum;
        out[threadIdx.x] = sum;
    }}"""
    outcome = bench.run(
        source,
        "k",
        {"in": np.ones(64, "f4"), "out": np.zeros(64, "f4")},
        outputs=("out",),
        block=(64, 1, 1),
        mode=Mode.CHECKS,
        on_fault="record",
    )
    reads, overwrites = outcome.trace.faults
    assert (reads.line, reads.other[1], reads.count) == (7, 4, 64)
    assert (overwrites.line, overwrites.other[1]) == (8, 7)
    assert reads.thread == (1, 0, 0)  # thread 0 begins with what it wrote itself
    assert "reads what thread" in reads.message
    assert "overwrites what thread" in overwrites.message


def test_a_launch_keeps_a_hundred_faults_and_goes_on_counting_those(bench: Bench) -> None:
    lines = "\n".join(f"        sum += row[threadIdx.x + {i}];" for i in range(MAX_FAULTS + 20))
    source = f"""
    extern "C" __global__ void k(float* out) {{
        __shared__ volatile float row[256];
        float sum = 0.0f;
        for (int i = 0; i < 2; ++i) {{
{lines}
        }}
        out[threadIdx.x] = sum;
    }}"""
    outcome = bench.run(
        source,
        "k",
        {"out": np.zeros(32, "f4")},
        outputs=("out",),
        block=(32, 1, 1),
        mode=Mode.CHECKS,
        on_fault="record",
    )
    faults = outcome.trace.faults
    assert {fault.kind for fault in faults} == {FaultKind.UNINITIALISED}
    assert [fault.line for fault in faults] == [6 + i for i in range(MAX_FAULTS)]
    assert {fault.count for fault in faults} == {2}


def test_faults_are_grouped_by_kind_and_lines() -> None:
    race = Fault(FaultKind.RACE, "first", "k", "/a.cu", 5, "ld", (0, 0, 0), (1, 0, 0), 16, other=("/a.cu", 3), count=2)
    others = (
        replace(race, other=("/a.cu", 4)),
        replace(race, line=6),
        replace(race, kind=FaultKind.UNINITIALISED, other=None),
        replace(race, kernel="other"),
        replace(race, file="", line=0, opcode="st"),
        replace(race, file="", line=0, opcode="ld"),
    )
    again = replace(race, message="second", opcode="ld.v4", thread=(9, 0, 0), address=32, count=3)
    assert grouped((race, *others, again)) == (replace(race, count=5), *others)


def test_intended_infinities_make_no_nan(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* in, float* out) {
        float s = threadIdx.x < 7 ? __int_as_float(0xff800000) : in[threadIdx.x];
        float m = s;
        for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        float p = exp2f(s - m), sum = p;
        for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
        out[threadIdx.x] = p / sum;
    }"""
    outcome = bench.run(
        source,
        "k",
        {"in": np.ones(32, "f4"), "out": np.zeros(32, "f4")},
        outputs=("out",),
        mode=Mode.CHECKS,
        find_nans=True,
    )
    assert outcome.outputs["out"].sum() == 1
    assert outcome.trace.faults == ()


def test_the_last_block_pattern_is_no_race(bench: Bench) -> None:
    source = """
    __device__ unsigned done;
    extern "C" __global__ void k(const float* in, float* parts, float* out) {
        __shared__ bool last;
        if (threadIdx.x == 0) parts[blockIdx.x] = in[blockIdx.x] * 2;
        __threadfence();
        if (threadIdx.x == 0) last = atomicAdd(&done, 1u) == gridDim.x - 1;
        __syncthreads();
        if (last && threadIdx.x == 0) { float s = 0; for (int i = 0; i < gridDim.x; ++i) s += parts[i]; out[0] = s; }
    }"""
    arrays = {"in": np.arange(40).astype("f4"), "parts": np.zeros(40, "f4"), "out": np.zeros(1, "f4")}
    outcome = bench.run(source, "k", arrays, outputs=("parts", "out"), grid=(40, 1, 1), mode=Mode.CHECKS)
    assert outcome.outputs["out"][0] == 2 * sum(range(40))
    assert outcome.trace.faults == ()


NANS = """
#include <cuda_fp16.h>
extern "C" __global__ void k(const float* in, float* out) {
    float inf = in[threadIdx.x] + __int_as_float(0x7f800000), x = 0;
    %s
    out[threadIdx.x] = x;
}"""


@pytest.mark.parametrize(
    ("body", "born"),
    [
        ("if (inf - inf > 1) x = 5;", False),
        ("x = fmaxf(inf - inf, 3.0f);", False),
        ("float d = inf - inf; x = threadIdx.x < 99 ? 1.0f : d;", False),
        ("x = inf - inf;", True),
        ("x = (inf - inf) * in[3];", True),
        ("float d = inf - inf; for (int i = 0; i < in[2] + 3; ++i) { if (i == 2) x = d; }", True),
        ("__half2 h = __floats2half2_rn(inf * 0.0f, 1.0f); x = __low2float(h);", True),
        ("x = exp2f(__fsqrt_rn(in[0] - 1.0f));", True),
        ("x = __int_as_float(0x7fc00000) + in[0];", False),
        ("x = __logf(in[0] - 2.0f) + 1.0f;", True),
    ],
)
def test_a_nan_is_a_fault_where_it_matters(bench: Bench, body: str, born: bool) -> None:
    arrays = {"in": np.zeros(32, "f4"), "out": np.zeros(32, "f4")}
    outcome = bench.run(NANS % body, "k", arrays, outputs=("out",), mode=Mode.CHECKS, on_fault="record", find_nans=True)
    assert [fault.kind for fault in outcome.trace.faults] == [FaultKind.NAN_BORN] * born
    assert all(fault.line == 5 for fault in outcome.trace.faults)
    assert np.isnan(outcome.outputs["out"]).any() == (born or "7fc00000" in body)


def test_a_nan_born_in_a_tensor_core(bench: Bench) -> None:
    source = """
    extern "C" __global__ void k(const float* in, float* out) {
        float c[4] = {};
        unsigned inf = 0x7c007c00, zero = in[0];
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%5,%5}, {%5,%5}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(inf), "r"(zero));
        out[threadIdx.x] = c[0];
    }"""
    arrays = {"in": np.zeros(32, "f4"), "out": np.zeros(32, "f4")}
    with pytest.raises(EmulatedFault, match=r"nan-born: makes a NaN out of numbers at .*:5 "):
        bench.run(source, "k", arrays, outputs=("out",), mode=Mode.CHECKS, find_nans=True)


FLAG = """
extern "C" __global__ void k(const float* in, float* out) {
    __shared__ float box[32];
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        box[threadIdx.x] = in[threadIdx.x] + 1;
        %s
        __syncwarp();
        if (threadIdx.x == 0) ready = 1;
    } else {
        while (ready == 0) {}
        out[threadIdx.x - 32] = box[threadIdx.x - 32];
    }
}"""


@pytest.mark.parametrize(("fence", "kinds"), [("__threadfence_block();", []), ("", [FaultKind.RACE])])
def test_a_flag_behind_a_fence_orders_two_warps(bench: Bench, fence: str, kinds: list[FaultKind]) -> None:
    arrays = {"in": np.zeros(32, "f4"), "out": np.zeros(32, "f4")}
    outcome = bench.run(
        FLAG % fence, "k", arrays, outputs=("out",), block=(64, 1, 1), mode=Mode.CHECKS, on_fault="record"
    )
    assert [fault.kind for fault in outcome.trace.faults] == kinds
    assert np.all(outcome.outputs["out"] == 1)


def test_a_race_on_a_device_variable(bench: Bench) -> None:
    source = """
    __device__ int total;
    extern "C" __global__ void k(const float* in, float* out) {
        total += threadIdx.x;
        out[threadIdx.x] = in[threadIdx.x];
    }"""
    with pytest.raises(EmulatedFault, match=r"data-race: .*'total'"):
        bench.run(
            source, "k", {"in": np.zeros(32, "f4"), "out": np.zeros(32, "f4")}, outputs=("out",), mode=Mode.CHECKS
        )
