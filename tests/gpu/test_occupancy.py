"""Blocks per SM by the model, against what CUDA's own occupancy call returns, for every launch of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.executor import EntryResources
from attnprof.kernels.plan import Build, Launch
from attnprof.kernels.spec import KernelSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.occupancy import occupancy
from attnprof.model.workload import Workload

pytestmark = pytest.mark.gpu

KIB = 1024


def launches(spec: KernelSpec, executor: GpuExecutor) -> Iterator[Launch]:
    """Each different launch of a kernel: short and long rows, every type, every head dim, with and without a mask.

    A kernel for few queries gets one query and as many keys.
    """
    seen: set[tuple[Build, str, int, int]] = set()
    for seq, head_dim, dtype, causal in product(
        (64, 1024, 4096, 40_000, 80_000, 300_000), (64, 128, 256), Dtype, (False, True)
    ):
        workload = Workload.of(
            1 if spec.niche else seq,
            seq_kv=seq,
            heads=8,
            head_dim=head_dim,
            dtype=dtype,
            causal=causal,
            direction=spec.direction,
        )
        if spec.unsupported(workload) is not None:
            continue
        for launch in spec.plan(workload, executor.device).launches:
            key = (launch.build, launch.entry, launch.threads, launch.smem_bytes)
            if key not in seen:
                seen.add(key)
                yield launch


def cuda_blocks(executor: GpuExecutor, launch: Launch) -> tuple[int, EntryResources]:
    """What the CUDA driver says of a launch, and what ptxas said of the kernel."""
    from cupy.cuda import driver

    compiled = executor.compile(launch.build)
    kernel: Any = executor._checked_kernel(launch, compiled)
    blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, launch.threads, launch.smem_bytes)
    return int(blocks), compiled.resources[launch.entry]


def model_blocks(executor: GpuExecutor, threads: int, registers: int, smem_bytes: int) -> int:
    facts = executor.device.architecture
    assert facts is not None
    return occupancy(
        facts,
        threads=threads,
        registers=registers,
        smem_bytes=smem_bytes,
        smem_per_sm_bytes=executor.device.smem_per_sm_bytes,
    ).blocks_per_sm


@pytest.mark.parametrize("spec", builtin(), ids=lambda spec: spec.name)
def test_every_kernel_of_the_catalogue(executor: GpuExecutor, spec: KernelSpec) -> None:
    reason = spec.runs_on(executor.device.compute_capability)
    if reason is not None:
        pytest.skip(reason)
    compared = 0
    for launch in launches(spec, executor):
        blocks, found = cuda_blocks(executor, launch)
        expected = model_blocks(executor, launch.threads, found.registers, found.static_smem_bytes + launch.smem_bytes)
        assert expected == blocks, f"{launch.entry} {dict(launch.build.defines)}: {launch.threads} threads, {found}"
        compared += 1
    assert compared


def test_any_block_of_a_small_kernel(executor: GpuExecutor, build: Any) -> None:
    small = build('extern "C" __global__ void few(float* o) { o[threadIdx.x] = 1; }\n')
    sizes = [0, 1, 1024, 16 * KIB, 31 * KIB, 48 * KIB, 75 * KIB, 99 * KIB, executor.device.smem_per_block_bytes]
    for threads, smem_bytes in product((1, 32, 33, 96, 128, 192, 256, 320, 512, 736, 1024), sizes):
        launch = Launch("few", small, "few", (1, 1, 1), (threads, 1, 1), smem_bytes, ())
        blocks, found = cuda_blocks(executor, launch)
        assert model_blocks(executor, threads, found.registers, smem_bytes) == blocks, (threads, smem_bytes)


HOARDER = """
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) hoard(float* x, int n) {
    float held[200];
#pragma unroll
    for (int i = 0; i < 200; ++i) held[i] = x[(i * 1024 + threadIdx.x) % n];
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 200; ++i) sum += held[i] * held[(i * 7 + 3) % 200];
    x[threadIdx.x] = sum;
}
"""


@pytest.mark.parametrize(
    ("threads", "blocks"), [(64, 1), (128, 1), (128, 2), (128, 3), (128, 5), (192, 2), (256, 2), (352, 1), (512, 2)]
)
def test_kernels_that_registers_limit(executor: GpuExecutor, build: Any, threads: int, blocks: int) -> None:
    kernel = build(HOARDER.replace("THREADS", str(threads)).replace("BLOCKS", str(blocks)))
    seen = set()
    for extra in (0, 32, 64):  # and blocks smaller than the kernel was compiled for
        if threads - extra < 32:
            continue
        launch = Launch("hoard", kernel, "hoard", (1, 1, 1), (threads - extra, 1, 1), 0, ())
        allowed, found = cuda_blocks(executor, launch)
        assert model_blocks(executor, threads - extra, found.registers, found.static_smem_bytes) == allowed
        seen.add(found.registers)
    assert max(seen) > 48


def test_the_tile_command_says_what_cuda_says(executor: GpuExecutor) -> None:
    """``attnprof tile --kernel NAME`` on this GPU, launch by launch."""
    from attnprof.cli.compiled import compiled_report
    from attnprof.cli.environment import Environment
    from attnprof.cli.gpus import Target

    specs = [spec for spec in builtin() if spec.runs_on(executor.device.compute_capability) is None]
    environment = Environment.of_process()
    report, code = compiled_report(
        environment, specs, [Target(executor.device, "test")], seq=4096, head_dim=128, dtype=Dtype.FP16, causal=False
    )
    assert code == 0
    rows = {(row["kernel"], row["entry"]): row for row in report.rows if row["status"] == "ok"}
    assert rows
    for spec in specs:
        workload = Workload.of(4096, heads=32, head_dim=128, dtype=Dtype.FP16, direction=spec.direction)
        if spec.unsupported(workload) is not None:
            continue
        for launch in spec.plan(workload, executor.device).launches:
            blocks, _ = cuda_blocks(executor, launch)
            assert rows[spec.name, launch.entry]["blocks_per_sm"] == blocks
