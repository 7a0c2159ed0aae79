"""Plans on a real device: arguments, memory, limits and faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnprof.compiler import Compiler
from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.memory import free_bytes
from attnprof.kernels.plan import Arg, Build, Dim3, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, LaunchLimitError, OutOfMemory
from attnprof.model.rounding import encode

pytestmark = pytest.mark.gpu

Make = Callable[[str], Build]


def plan_of(
    build: Build,
    entry: str,
    *args: Arg,
    elements: int = 1024,
    dtype: Dtype = Dtype.FP32,
    smem: int = 0,
    block: Dim3 = (32, 1, 1),
    grid: Dim3 = (1, 1, 1),
) -> LaunchPlan:
    tensors = (TensorSpec("x", (elements,), dtype, "in"), TensorSpec("o", (elements,), dtype, "out"))
    return LaunchPlan(tensors, (Launch(entry, build, entry, grid, block, smem, args),))


def outcome(executor: GpuExecutor, plan: LaunchPlan) -> AttnprofError | None:
    """None where the plan runs, else the refusal."""
    try:
        with executor.prepare(plan) as run:
            run.launch()
    except (LaunchLimitError, OutOfMemory) as refusal:
        return refusal
    return None


def test_arguments_arrive_as_declared(executor: GpuExecutor, build: Make) -> None:
    kernel = build(
        'extern "C" __global__ void k(float* o, int i, long long l, float f, int last) {\n'
        "    if (threadIdx.x == 0) { o[0] = i; o[1] = (float)(l >> 30); o[2] = f; o[3] = last; }\n}\n"
    )
    args = (Pointer("o"), Scalar("i32", -7), Scalar("i64", 5 << 40), Scalar("f32", 0.08838835), Scalar("i32", 9))
    with executor.prepare(plan_of(kernel, "k", *args)) as run:
        run.poison()
        run.launch()
        result = run.read("o")
    assert result[:4].tolist() == [-7.0, 5.0 * 1024, np.float32(0.08838835), 9.0]
    assert np.isnan(result[4:]).all()


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("elements", [1, 1023, 3 * 2**24 + 5])
def test_what_is_uploaded_comes_back_through_a_kernel(
    executor: GpuExecutor, build: Make, dtype: Dtype, elements: int
) -> None:
    kernel = build(
        'extern "C" __global__ void copy(char* o, const char* x, long long n) {\n'
        "    long long i = blockIdx.x * 256ll + threadIdx.x;\n    if (i < n) o[i] = x[i];\n}\n"
    )
    values = encode(np.random.default_rng(elements).standard_normal(elements), dtype)
    args = (Pointer("o"), Pointer("x"), Scalar("i64", values.nbytes))
    grid = (-(-values.nbytes // 256), 1, 1)
    plan = plan_of(kernel, "copy", *args, elements=elements, dtype=dtype, block=(256, 1, 1), grid=grid)
    with executor.prepare(plan) as run:
        run.write("x", values)
        run.poison()
        run.launch()
        assert np.array_equal(run.read("o"), values)


SHARED = """
extern "C" __global__ void shared(float* o, int floats) {
    extern __shared__ float dynamic[];
    __shared__ volatile char one[STATIC];
    one[threadIdx.x % STATIC] = 1;
    dynamic[threadIdx.x == 0 ? floats - 1 : 0] = threadIdx.x;
    __syncthreads();
    o[threadIdx.x] = dynamic[0] + one[0];
}
"""


def shared_plan(make: Make, smem: int, static: int) -> LaunchPlan:
    kernel = replace(make(SHARED), defines=(("STATIC", str(static)),))
    return plan_of(kernel, "shared", Pointer("o"), Scalar("i32", smem // 4), smem=smem)


@pytest.mark.parametrize(("smem", "static"), [(49_152, 1), (98_304, 1), (1024, 1), (49_152, 4096)])
def test_dynamic_shared_memory_past_48_kb(executor: GpuExecutor, build: Make, smem: int, static: int) -> None:
    if smem + static > executor.device.smem_per_block_bytes:
        pytest.skip("this GPU has less shared memory")
    with executor.prepare(shared_plan(build, smem, static)) as run:
        assert run.compiled[0].resources["shared"].static_smem_bytes >= static
        run.poison()
        run.launch()
        assert np.all(np.greater_equal(run.read("o")[:32], 1))


def test_all_shared_memory_of_a_block_and_not_a_byte_more(executor: GpuExecutor, build: Make) -> None:
    most = executor.device.smem_per_block_bytes
    with executor.prepare(shared_plan(build, most - 16, 16)) as run:
        run.launch()
    with pytest.raises(LaunchLimitError, match=rf"{most:,} B available"):
        executor.prepare(shared_plan(build, most, 16))


GREEDY = """
extern "C" __global__ void greedy(float* x, int n) {
    float held[160];
#pragma unroll
    for (int i = 0; i < 160; ++i) held[i] = x[(i * 1024 + threadIdx.x) % n];
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 160; ++i) sum += held[i] * held[(i * 7 + 3) % 160];
    x[threadIdx.x] = sum;
}
"""


def test_the_register_limit_is_the_drivers_own(executor: GpuExecutor, build: Make) -> None:
    kernel = build(GREEDY)
    compiled = executor.compile(kernel)
    assert compiled.resources["greedy"].registers > 64
    refusals = {}
    for threads in range(32, 1025, 32):
        plan = plan_of(kernel, "greedy", Pointer("x"), Scalar("i32", 1024), block=(threads, 1, 1))
        refusals[threads] = outcome(executor, plan)
    largest = max(threads for threads, refusal in refusals.items() if refusal is None)
    assert all("registers a block" in str(refusals[threads]) for threads in refusals if threads > largest)
    assert largest < 1024
    (loaded,) = (kernel for (_, entry), kernel in executor._images._kernels.items() if entry == "greedy")
    assert largest <= loaded.max_threads_per_block < largest + 32


@pytest.mark.parametrize(
    ("grid", "block"), [((1, 65536, 1), (1, 1, 1)), ((1, 1, 1), (1025, 1, 1)), ((0, 1, 1), (1, 1, 1))]
)
def test_dimensions_are_checked_before_launching(executor: GpuExecutor, build: Make, grid: Dim3, block: Dim3) -> None:
    kernel = build('extern "C" __global__ void k(float* o) { o[0] = 1; }')
    with pytest.raises(LaunchLimitError, match="this GPU allows 1 to"):
        executor.prepare(plan_of(kernel, "k", Pointer("o"), grid=grid, block=block))


def test_a_large_grid_in_x_runs(executor: GpuExecutor, build: Make) -> None:
    kernel = build('extern "C" __global__ void k(int* o) { if (threadIdx.x == 0) atomicAdd(o, 1); }')
    with executor.prepare(plan_of(kernel, "k", Pointer("o"), grid=(100_000, 1, 1))) as run:
        run.write("x", np.zeros(1024, np.float32))
        run.poison()
        run.launch()
        # 0xFFFFFFFF is −1.
        assert run.read("o").view(np.int32)[0] == 99_999


def test_out_of_memory_is_the_same_in_any_order(executor: GpuExecutor, build: Make) -> None:
    kernel = build('extern "C" __global__ void k(float* o) { o[0] = 1; }')
    total = executor.device.hbm_bytes
    assert total is not None
    rows = {"small": 2**18, "too large": total // 4, "most of it": total // 16, "middle": 2**26}
    before = free_bytes()
    orders = [list(rows), list(reversed(rows)), ["most of it", "too large", "middle", "small"]]
    for order in orders:
        seen = {name: outcome(executor, plan_of(kernel, "k", Pointer("o"), elements=rows[name])) for name in order}
        refused = seen.pop("too large")
        assert seen == dict.fromkeys(seen)
        assert isinstance(refused, OutOfMemory)
        assert refused.needed_bytes == 2 * 4 * (total // 4)
        # The context itself may take a little more as modules are loaded.
        assert refused.free_bytes == pytest.approx(before, abs=64 * 2**20)
        assert free_bytes() == pytest.approx(before, abs=64 * 2**20)


def test_ptx_that_the_driver_compiles_gives_the_same(
    executor: GpuExecutor, build: Make, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kernel = build('extern "C" __global__ void k(float* o) { o[threadIdx.x] = 3.0f * threadIdx.x; }')
    compiler = Compiler(tmp_path_factory.mktemp("ptx-cache"))
    older = GpuExecutor(
        executor.device, executor._limits, "sm_80", native=False, compiler=compiler, sensors=executor.sensors
    )
    results = []
    for one in (executor, older):
        with one.prepare(plan_of(kernel, "k", Pointer("o"))) as run:
            run.poison()
            run.launch()
            results.append(run.read("o")[:32])
    assert np.array_equal(results[0], results[1])
    assert results[1][31] == 93.0


def test_a_second_compilation_comes_from_the_cache(executor: GpuExecutor, build: Make) -> None:
    kernel = build('extern "C" __global__ void once(float* o) { o[0] = 1.25f; }')
    assert not executor.compile(kernel).cached
    again = executor.compile(kernel)
    assert again.cached
    assert again.compile_time_s == 0.0
    assert again.arch == executor.arch


FAULTY = """
import sys
from pathlib import Path
from attnprof.gpu.opening import open_executor
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, TensorSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError

folder, bad, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
file = folder / "faulty.cu"
executor = open_executor(cache_dir=folder / "cache")

def plan(*entries):
    launches = tuple(
        Launch(e, Build(file), e, (1, 1, 1), (32, 1, 1), 0, (Pointer("o"),)) for e in entries
    )
    return LaunchPlan((TensorSpec("o", (1024,), Dtype.FP32, "out"),), launches)

with executor.prepare(plan("good")) as run:
    run.launch()
    print("good ran")
for entries in (("good", bad), ("good",)):
    try:
        with executor.prepare(plan(*entries)) as run:
            run.launch() if how == "launch" else run.time(3, cold_l2=how == "cold")
            print("ran")
    except AttnprofError as error:
        print(type(error).__name__, "|", error.message)
"""
FAULTY_CU = """
extern "C" __global__ void good(float* o) { o[threadIdx.x] = 1; }
extern "C" __global__ void wild(float* o) { o[threadIdx.x + (1ll << 40)] = 1; }
extern "C" __global__ void crooked(float* o) { *(float*)((char*)o + 1 + threadIdx.x) = 1; }
extern "C" __global__ void trapped(float* o) { if (threadIdx.x == 3) asm volatile("trap;"); o[0] = 1; }
"""


@pytest.mark.parametrize(
    ("bad", "words"),
    [("wild", "illegal memory access"), ("crooked", "misaligned address"), ("trapped", "CUDA error 7")],
)
@pytest.mark.parametrize("how", ["launch", "cold", "warm"])
def test_a_faulting_kernel_is_named_and_nothing_runs_after_it(tmp_path: Path, bad: str, words: str, how: str) -> None:
    (tmp_path / "faulty.cu").write_text(FAULTY_CU)
    command = [sys.executable, "-c", FAULTY, str(tmp_path), bad, how]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    first, second, third = result.stdout.splitlines()
    assert first == "good ran"
    assert second.startswith(f"ContextLost | {bad}: ")
    assert words in second
    assert third.startswith(f"ContextLost | nothing more can run in this process: {bad}: ")
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
