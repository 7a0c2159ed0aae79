"""The flush reads every byte of its buffer and leaves nothing dirty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnprof.compiler import Compiler
from attnprof.emulator import EmulatorExecutor, Mode
from attnprof.gpu.flush import BUILD, read_all
from attnprof.kernels.plan import LaunchPlan, TensorSpec
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_it_compiles_for_every_architecture(arch: str, tmp_path: Path) -> None:
    resources = Compiler(tmp_path).compile(BUILD, arch).resources["read_all"]
    assert resources.registers <= 65_536 // 1024  # two blocks an SM, at least
    assert resources.spill_store_bytes == 0


@pytest.mark.parametrize("nbytes", [16, 80_000, 2**17])
def test_it_reads_each_byte_once_and_writes_none(nbytes: int, tmp_path: Path) -> None:
    executor = EmulatorExecutor(Compiler(tmp_path), find("A100-SXM4-80GB"), mode=Mode.ALL)
    plan = LaunchPlan((TensorSpec("x", (nbytes // 4,), Dtype.FP32, "in"),), (read_all(nbytes, sm_count=1),))
    with executor.prepare(plan) as run:
        run.write("x", np.zeros(nbytes // 4, np.float32))
        run.launch()
        (kernel,) = run.trace.kernels
    (tensor,) = kernel.tensors
    assert (tensor.unique_read_bytes, tensor.unique_write_bytes) == (nbytes, 0)
    assert tensor.read_bytes == nbytes
    assert tensor.read_sectors == max(1, nbytes // 32)
