"""The clock against kernels whose time is known, the datasheet, and Triton's do_bench."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import pytest

from attnprof.gpu.executor import GpuExecutor, GpuRun
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload

pytestmark = pytest.mark.gpu

Make = Callable[[str], Build]
MIB = 2**20
# Spins on the device's own nanosecond clock.
SPIN = """
extern "C" __global__ void spin(float* o, int ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
    if (ns < 0) o[0] = now;
}
extern "C" __global__ void nothing(float* o) {}
extern "C" __global__ void __launch_bounds__(1024) sum(float* o, const float4* x, int n) {
    float s = 0;
    for (int i = blockIdx.x * 1024 + threadIdx.x; i < n; i += gridDim.x * 1024) {
        float4 v = __ldcg(x + i);
        s += v.x + v.y + v.z + v.w;
    }
    if (s == 1.2345f) o[threadIdx.x] = s;
}
"""


def spins(build: Build, *microseconds: int) -> LaunchPlan:
    launches = tuple(
        Launch(f"spin{i}", build, "spin", (1, 1, 1), (1, 1, 1), 0, (Pointer("o"), Scalar("i32", 1000 * us)))
        for i, us in enumerate(microseconds)
    )
    return LaunchPlan((TensorSpec("o", (32,), Dtype.FP32, "out"),), launches)


def reading(build: Build, mib: int, blocks: int) -> LaunchPlan:
    """Reads ``mib`` MiB once."""
    elements = mib * MIB // 4
    args = (Pointer("o"), Pointer("x"), Scalar("i32", elements // 4))
    launch = Launch("sum", build, "sum", (blocks, 1, 1), (1024, 1, 1), 0, args)
    tensors = (TensorSpec("x", (elements,), Dtype.FP32, "in"), TensorSpec("o", (1024,), Dtype.FP32, "out"))
    return LaunchPlan(tensors, (launch,))


def median_s(run: GpuRun, launches: int, *, cold: bool, samples: int = 9) -> float:
    return median(run.time(launches, cold_l2=cold).time_s for _ in range(samples))


@pytest.fixture
def kernels(build: Make) -> Build:
    return build(SPIN)


@pytest.fixture
def large(executor: GpuExecutor, kernels: Build) -> Iterator[GpuRun]:
    with executor.prepare(reading(kernels, 4096, 4 * executor.device.sm_count)) as run:
        yield run


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("launches", [1, 10, 100])
def test_a_kernel_of_known_length(executor: GpuExecutor, kernels: Build, cold: bool, launches: int) -> None:
    with executor.prepare(spins(kernels, 200)) as run:
        run.time(1, cold_l2=cold)
        time_s = median_s(run, launches, cold=cold)
    # The kernel starts and ends in a few µs, and its clock ticks in steps of up to 1 µs.
    assert 199e-6 <= time_s < 212e-6


@pytest.mark.parametrize("cold", [True, False])
def test_three_kernels_in_a_row_leave_no_launch_gaps(executor: GpuExecutor, kernels: Build, cold: bool) -> None:
    with executor.prepare(spins(kernels, 60, 30, 60)) as run:
        run.time(1, cold_l2=cold)
        time_s = median_s(run, 10, cold=cold)
    assert 149e-6 <= time_s < 168e-6


def test_an_empty_kernel_takes_microseconds_and_never_nothing(executor: GpuExecutor, kernels: Build) -> None:
    launch = Launch("nothing", kernels, "nothing", (1, 1, 1), (1, 1, 1), 0, (Pointer("o"),))
    plan = LaunchPlan((TensorSpec("o", (32,), Dtype.FP32, "out"),), (launch,))
    with executor.prepare(plan) as run:
        for cold in (True, False):
            assert 0.0 < median_s(run, 100, cold=cold) < 10e-6


def test_cold_is_slower_where_the_data_fit_the_l2_cache(executor: GpuExecutor, kernels: Build) -> None:
    l2_bytes = executor.device.l2_bytes
    assert l2_bytes is not None
    with executor.prepare(reading(kernels, max(1, l2_bytes // MIB // 4), 2 * executor.device.sm_count)) as run:
        cold, warm = median_s(run, 50, cold=True), median_s(run, 50, cold=False)
    assert cold > 1.2 * warm


def test_cold_and_warm_agree_where_they_do_not(large: GpuRun) -> None:
    cold, warm = median_s(large, 3, cold=True), median_s(large, 3, cold=False)
    assert cold == pytest.approx(warm, rel=0.05)


def test_a_sample_of_many_launches_gives_the_time_of_one(large: GpuRun) -> None:
    for cold in (True, False):
        assert median_s(large, 1, cold=cold) == pytest.approx(median_s(large, 8, cold=cold), rel=0.03)


def test_the_device_is_read_while_it_works(executor: GpuExecutor, large: GpuRun) -> None:
    sample = large.time(200, cold_l2=False)
    assert sample.launches == 200
    assert sample.sm_clock_hz is not None
    assert 200e6 < sample.sm_clock_hz <= (executor.device.max_clock_hz or 4e9)
    assert sample.temperature_c is not None
    assert 10 < sample.temperature_c < 110
    assert sample.power_w is not None
    assert sample.power_w > 10


@pytest.mark.parametrize("cold", [True, False])
def test_copy_bandwidth_is_within_the_datasheet(executor: GpuExecutor, cold: bool) -> None:
    limit = executor.device.hbm_bytes_per_s or executor.device.hbm_bytes_per_s_at_max_clock()
    assert limit is not None
    with executor.peer("copy", Workload.of(128)) as copy:
        rate = copy.bytes / median(copy.time(3, cold_l2=cold).time_s for _ in range(9))
    assert 0.5 * limit < rate <= limit


def test_reading_is_within_the_datasheet(executor: GpuExecutor, large: GpuRun) -> None:
    limit = executor.device.hbm_bytes_per_s or executor.device.hbm_bytes_per_s_at_max_clock()
    assert limit is not None
    assert 0.5 * limit < 4096 * MIB / median_s(large, 3, cold=True) <= limit


def test_tritons_do_bench_agrees_within_1_percent(executor: GpuExecutor, large: GpuRun) -> None:
    torch = pytest.importorskip("torch")
    testing = pytest.importorskip("triton.testing")
    stream = torch.cuda.ExternalStream(executor.stream.ptr)
    ours, theirs = [], []
    # Taken in turns, so that both meet the same clocks.
    for _ in range(5):
        ours.append(median_s(large, 5, cold=True, samples=5))
        with torch.cuda.stream(stream):
            theirs.append(testing.do_bench(large.enqueue, warmup=5, rep=60, return_mode="median") * 1e-3)
    assert median(ours) == pytest.approx(median(theirs), rel=0.01)
