"""Options and fixtures for the whole suite."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import pytest

# Before NumPy is imported: the tests multiply small matrices, where BLAS threads that wait for one another on busy
# cores make the suite several times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu", action="store_true", help="fail where there is no GPU instead of skipping the tests marked gpu"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    problem = _gpu_problem()
    if problem is None:
        return
    if config.getoption("--require-gpu"):
        raise pytest.UsageError(f"--require-gpu: {problem}")
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason=problem))


@cache
def _gpu_problem() -> str | None:
    """Why the tests marked gpu cannot run here, or None. Makes no CUDA context: tests fork and spawn."""
    if sys.platform == "linux":
        # Much faster than importing CuPy to hear the same.
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no NVIDIA driver (libcuda.so.1 not found)"
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        return f"CuPy is missing ({error})"
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f"no GPU ({error})"
    return None if count else "CUDA finds no GPU"
