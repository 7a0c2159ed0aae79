"""The executor's own logic on a stand-in for CuPy; tests/gpu runs the same on a real device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnprof.compiler import Compiler
from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.limits import DeviceLimits
from attnprof.kernels.plan import Arg, Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.model import devices
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import CompileError, ContextLost, KernelFault, LaunchLimitError, OutOfMemory
from tests.unit.gpu import fake_cupy
from tests.unit.gpu.fake_cupy import LAUNCH_MS, TOTAL_BYTES, FakeGpu

SOURCE = """
extern "C" __global__ void first(float* x, int n) { x[threadIdx.x] = n; }
extern "C" __global__ void second(float* x, int n, long long m, float f) {
    __shared__ volatile float s[1]; s[0] = f; x[threadIdx.x] = s[0] + n + m;
}
"""
LIMITS = DeviceLimits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 232_448, 65_536)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return fake_cupy.install(monkeypatch)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    file = tmp_path_factory.mktemp("source") / "k.cu"
    file.write_text(SOURCE)
    return Build(file)


def make(compiler: Compiler, *, native: bool = True) -> GpuExecutor:
    spec = devices.find("H200")
    small = devices.from_facts(spec.name, spec.compute_capability, l2_bytes=2**20)
    return GpuExecutor(small, LIMITS, "sm_90a" if native else "sm_90", native=native, compiler=compiler, sensors=None)


@pytest.fixture
def executor(gpu: FakeGpu, compiler: Compiler) -> GpuExecutor:
    return make(compiler)


def launch(
    build: Build, entry: str = "first", *, smem: int = 0, threads: int = 32, args: tuple[Arg, ...] = ()
) -> Launch:
    return Launch(entry, build, entry, (1, 1, 1), (threads, 1, 1), smem, args or (Pointer("x"), Scalar("i32", 5)))


def plan(*launches: Launch, elements: int = 64, dtype: Dtype = Dtype.FP32) -> LaunchPlan:
    tensors = (
        TensorSpec("x", (elements,), dtype, "in"),
        TensorSpec("o", (2, elements // 2), dtype, "out"),
        TensorSpec("s", (8,), Dtype.FP32, "scratch"),
    )
    return LaunchPlan(tensors, launches)


def test_arguments_have_exactly_the_width_that_they_name(gpu: FakeGpu, executor: GpuExecutor, build: Build) -> None:
    args = (Pointer("x"), Scalar("i32", -1), Scalar("i64", 2**40), Scalar("f32", 0.125))
    with executor.prepare(plan(launch(build, "second", args=args))) as run:
        run.launch()
    ((entry, passed),) = gpu.launched
    assert entry == "second"
    assert [type(value) for value in passed] == [np.uint64, np.int32, np.int64, np.float32]
    assert passed[1:] == (-1, 2**40, 0.125)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_what_is_written_is_read_back(executor: GpuExecutor, build: Build, dtype: Dtype) -> None:
    from attnprof.model.rounding import encode

    # Three chunks and a bit, so that both pinned buffers are used again.
    elements = 3 * 2**20 * 2 + 6
    values = encode(np.random.default_rng(1).standard_normal(elements), dtype)
    with executor.prepare(plan(launch(build), elements=elements, dtype=dtype)) as run:
        run.write("x", values)
        assert np.array_equal(run.read("x"), values)
        assert run.read("o").shape == (2, elements // 2)


def test_a_write_of_the_wrong_shape_or_type_is_a_mistake_of_the_caller(executor: GpuExecutor, build: Build) -> None:
    with executor.prepare(plan(launch(build))) as run:
        for values in (np.zeros(63, np.float32), np.zeros(64, np.float16)):
            with pytest.raises(ValueError, match=r"x is fp32 \(64,\), not"):
                run.write("x", values)


def test_poison_reaches_outputs_and_scratch_and_no_input(executor: GpuExecutor, build: Build) -> None:
    with executor.prepare(plan(launch(build))) as run:
        run.write("x", np.ones(64, np.float32))
        run.poison()
        assert np.array_equal(run.read("x"), np.ones(64, np.float32))
        assert np.isnan(run.read("o")).all()
        assert np.isnan(run.read("s")).all()


def test_launches_run_in_order_and_really_touch_the_memory(gpu: FakeGpu, executor: GpuExecutor, build: Build) -> None:
    def first(x: np.uint64, n: np.int32) -> None:
        gpu.view(x, np.float32)[:] = n

    def second(x: np.uint64, n: np.int32) -> None:
        gpu.view(x, np.float32)[:] *= 2

    gpu.behaviour = {"first": first, "second": second}
    with executor.prepare(plan(launch(build, "first"), launch(build, "second"))) as run:
        run.launch()
        assert (run.read("x") == 10).all()
        assert len(run.compiled) == 1


def test_memory_is_given_back(gpu: FakeGpu, executor: GpuExecutor, build: Build) -> None:
    before = gpu.used
    with executor.prepare(plan(launch(build))):
        assert gpu.used == before + 64 * 4 * 2 + 32
    assert gpu.used == before
    with pytest.raises(ZeroDivisionError), executor.prepare(plan(launch(build))):
        raise ZeroDivisionError
    assert gpu.used == before


def test_out_of_memory_names_both_sizes_whatever_came_before(gpu: FakeGpu, executor: GpuExecutor, build: Build) -> None:
    rows = {"small": 2**10, "large": 2**24, "middle": 2**20}
    outcomes = []
    for order in (["small", "large", "middle"], ["large", "middle", "small"], ["middle", "small", "large"]):
        seen = {}
        for name in order:
            try:
                with executor.prepare(plan(launch(build), elements=rows[name])) as run:
                    run.launch()
                    seen[name] = "ok"
            except OutOfMemory as error:
                seen[name] = (error.needed_bytes, error.free_bytes)
        outcomes.append(seen)
    free = TOTAL_BYTES - 2 * 2**20
    assert outcomes[0] == {"small": "ok", "large": (2 * 4 * 2**24 + 32, free), "middle": "ok"}
    assert outcomes[1] == outcomes[2] == outcomes[0]


def test_an_allocation_that_fails_half_way_frees_the_first_half(
    gpu: FakeGpu, executor: GpuExecutor, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gpu.used
    # As much free memory as needed, but in pieces.
    monkeypatch.setattr(fake_cupy, "TOTAL_BYTES", before + 300)
    monkeypatch.setattr("attnprof.gpu.executor.free_bytes", lambda: 2**20)
    with pytest.raises(OutOfMemory) as caught:
        executor.prepare(plan(launch(build)))
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (544, 2**20)
    assert gpu.used == before


def test_49152_dynamic_bytes_and_a_static_one_are_opted_in_to(
    gpu: FakeGpu, executor: GpuExecutor, build: Build
) -> None:
    args = (Pointer("x"), Scalar("i32", 1), Scalar("i64", 1), Scalar("f32", 1.0))
    for smem in (98_304, 49_152):
        with executor.prepare(plan(launch(build, "second", smem=smem, args=args))) as run:
            run.launch()
    # Not lowered by the second: the first run could still be in use.
    assert [kernel.max_dynamic_shared_size_bytes for kernel in gpu.kernels.values()] == [98_304]


def test_a_launch_over_the_limit_never_reaches_the_device(gpu: FakeGpu, executor: GpuExecutor, build: Build) -> None:
    before = gpu.used
    with pytest.raises(LaunchLimitError, match=r"232,452 B .*\(232,448 dynamic \+ 4 static\), 232,448 B available"):
        executor.prepare(plan(launch(build, "second", smem=232_448)))
    with pytest.raises(LaunchLimitError, match=r"block\.x is 2,048"):
        executor.prepare(plan(launch(build, threads=2048)))
    assert gpu.launched == []
    assert gpu.used == before


def test_an_entry_point_that_is_not_there_is_named_with_those_that_are(executor: GpuExecutor, build: Build) -> None:
    with pytest.raises(CompileError, match=r"k\.cu has no entry point 'third'; it has (first, second|second, first)"):
        executor.prepare(plan(launch(build, "third")))


def test_without_a_native_image_the_driver_compiles_ptx(gpu: FakeGpu, compiler: Compiler, build: Build) -> None:
    executor = make(compiler, native=False)
    with executor.prepare(plan(launch(build))) as run:
        run.launch()
        assert b".target sm_90" in run.compiled[0].image
    ((path, _),) = gpu.kernels
    assert Path(path).suffix == ".ptx"
    # The limits are checked against what the driver says.
    next(iter(gpu.kernels.values())).num_regs = 162
    with pytest.raises(LaunchLimitError, match="86,016 registers"):
        executor.prepare(plan(launch(build, threads=512)))


@pytest.mark.parametrize("how", ["launch", "time"])
def test_a_fault_names_the_kernel_and_ends_the_process_use_of_the_gpu(
    gpu: FakeGpu, executor: GpuExecutor, build: Build, how: str
) -> None:
    gpu.faults["second"] = 700
    with (
        pytest.raises(ContextLost, match=r"^second: illegal memory access \(CUDA error 700\)"),
        executor.prepare(plan(launch(build, "first"), launch(build, "second"))) as run,
    ):
        run.launch() if how == "launch" else run.time(1, cold_l2=True)
    with pytest.raises(ContextLost, match=r"nothing more can run in this process: second: illegal"):
        executor.prepare(plan(launch(build)))


def test_a_fault_that_leaves_the_context_alive(gpu: FakeGpu, executor: GpuExecutor, build: Build) -> None:
    with executor.prepare(plan(launch(build))) as run:
        gpu.faults["first"] = 1
        with pytest.raises(KernelFault, match=r"^first: ") as caught:
            run.launch()
        assert not isinstance(caught.value, ContextLost)
        gpu.pending, gpu.faults, gpu.lost = None, {}, False
        run.launch()


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("capturable", [True, False])
def test_time_is_that_of_one_run_of_the_plan(
    gpu: FakeGpu, executor: GpuExecutor, build: Build, cold: bool, capturable: bool
) -> None:
    gpu.capturable = capturable
    with executor.prepare(plan(launch(build, "first"), launch(build, "second"))) as run:
        sample = run.time(3, cold_l2=cold)
    assert sample.time_s == pytest.approx(2 * LAUNCH_MS * 1e-3)
    assert sample.launches == 3
    launched = [entry for entry, _ in gpu.launched]
    entries = [entry for entry in launched if entry != "read_all"]
    # Once before the first sample, then at least the three.
    assert len(entries) >= 8
    assert entries == ["first", "second"] * (len(entries) // 2)
    # Every timed run stands behind a flush, and none falls between its kernels.
    assert launched[-9:] == ["read_all", "first", "second"] * 3 if cold else "read_all" not in launched


def test_the_copy_peer_moves_its_bytes(gpu: FakeGpu, executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.gpu import peers
    from attnprof.model.workload import Workload

    workload = Workload.of(128)
    before = gpu.used
    with pytest.raises(OutOfMemory), executor.peer("copy", workload):
        pass
    monkeypatch.setattr(peers, "_COPY_BYTES", 2**20)
    with executor.peer("copy", workload) as copy:
        source, target = list(gpu.allocated.values())[-2:]
        assert source.any()
        assert np.array_equal(source, target)
        assert copy.bytes == 2 * 2**20
        assert copy.time(1, cold_l2=True).launches == 1
    assert gpu.used == before
