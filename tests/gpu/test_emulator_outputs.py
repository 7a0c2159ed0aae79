"""The emulator computes what the GPU computes: outputs agree within twice the element type's rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.spec import KernelSpec
from tests.gpu.emulator_outputs import SPECS, compare, emulated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_outputs_agree_within_twice_the_rounding(spec: KernelSpec, executor: GpuExecutor, kernel_cache: Path) -> None:
    rows = compare(spec, executor, emulated(spec, executor.device, kernel_cache))
    assert rows
    assert [row for row in rows if not row.agrees] == []
