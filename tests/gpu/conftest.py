"""The device, opened once, and small kernels to run on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.opening import open_executor
from attnprof.kernels.plan import Build


@pytest.fixture(scope="session")
def executor(tmp_path_factory: pytest.TempPathFactory) -> GpuExecutor:
    return open_executor(cache_dir=tmp_path_factory.mktemp("kernel-cache"))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Build]:
    def make(source: str) -> Build:
        file = tmp_path / "k.cu"
        file.write_text(source)
        return Build(file)

    return make
