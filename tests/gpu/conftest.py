"""The device, opened once, and small kernels to run on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.opening import open_executor
from attnprof.kernels.plan import Build


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's own compile cache, which all workers of pytest-xdist share; each worker's base lies in the run's."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernel-cache"
    cache.mkdir(exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def executor(kernel_cache: Path) -> GpuExecutor:
    return open_executor(cache_dir=kernel_cache)


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Build]:
    def make(source: str) -> Build:
        file = tmp_path / "k.cu"
        file.write_text(source)
        return Build(file)

    return make
