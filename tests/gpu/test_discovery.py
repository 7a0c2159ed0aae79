"""NVML's view of the machine against CUDA's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from attnprof.gpu.discovery import discover
from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.opening import match_bus_id

pytestmark = pytest.mark.gpu


def test_nvml_and_cuda_describe_the_same_gpu(executor: GpuExecutor) -> None:
    from cupy.cuda import runtime

    found = discover()
    assert found.driver_version
    gpu = match_bus_id(found, runtime.deviceGetPCIBusId(runtime.getDevice()))
    assert gpu is not None
    assert gpu.spec is not None
    cuda = executor.device
    assert gpu.spec.name == cuda.name
    assert gpu.spec.compute_capability == cuda.compute_capability
    assert gpu.spec.sm_count == cuda.sm_count
    assert gpu.spec.max_clock_hz == cuda.max_clock_hz
    assert gpu.spec.hbm_bytes_per_s_at_max_clock() == cuda.hbm_bytes_per_s_at_max_clock()
    assert gpu.spec.smem_per_block_bytes == cuda.smem_per_block_bytes
    total = runtime.memGetInfo()[1]
    assert gpu.spec.hbm_bytes == pytest.approx(total, rel=0.03)


def test_a_hidden_gpu_is_one_line() -> None:
    program = (
        "from attnprof.gpu.opening import open_executor\n"
        "from attnprof.model.errors import EnvironmentProblem\n"
        "try: open_executor()\n"
        "except EnvironmentProblem as problem: print(problem.message); print(problem.hint)\n"
    )
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True)
    message, hint = result.stdout.splitlines()
    assert message == "no GPU: CUDA_VISIBLE_DEVICES='-1' hides every GPU"
    assert "attnprof roofline --gpu NAME" in hint
