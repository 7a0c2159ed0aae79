"""The software that a run's figures depend on: the driver, CUDA, the compiler, and the libraries in the same loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from attnprof.compiler import nvrtc
from attnprof.gpu.nvml import open_nvml, text
from attnprof.model.errors import EnvironmentProblem


def software(api: Any = None, modules: Mapping[str, Any] | None = None) -> dict[str, str | None]:
    """Versions by name, None where one is unknown or took no part.

    Keys: ``driver``; ``cuda_driver``, the newest CUDA that the driver supports; ``cuda_runtime``, which CuPy uses;
    ``nvrtc``, ``cupy``, ``torch`` and ``cudnn``, which PyTorch uses. The last two only once PyTorch has been imported,
    since a run that has not imported it has measured nothing of it.

    Args:
        api: the module ``pynvml``, or a test's stand-in; None imports it if there is a driver.
        modules: the imported modules; None takes the process's.
    """
    import cupy
    from cupy.cuda import runtime

    torch = (sys.modules if modules is None else modules).get("torch")
    cudnn = _number(torch.backends.cudnn.version) if torch is not None else None
    driver, used = _number(runtime.driverGetVersion), _number(runtime.runtimeGetVersion)
    return {
        "driver": _driver(api),
        "cuda_driver": cuda_version(driver) if driver is not None else None,
        "cuda_runtime": cuda_version(used) if used is not None else None,
        "nvrtc": ".".join(map(str, nvrtc.version())),
        "cupy": str(cupy.__version__),
        "torch": str(torch.__version__) if torch is not None else None,
        "cudnn": cudnn_version(cudnn) if cudnn is not None else None,
    }


def cuda_version(number: int) -> str:
    """CUDA's own number, 1000 · major + 10 · minor: ``13.0`` of 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cudnn_version(number: int) -> str:
    """The version of cuDNN's own number, whose base changed with 9: ``9.19.0`` of 91900, ``8.9.2`` of 8902."""
    base = 10_000 if number >= 90_000 else 1000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def _number(ask: Callable[[], int | None]) -> int | None:
    """A library's answer. None if it raises: after a crash on the GPU, say, or PyTorch of a cuDNN that is not its own.

    What is known of a run must not be lost for the want of a version. CuPy and PyTorch raise RuntimeErrors.
    """
    try:
        return ask()
    except RuntimeError:
        return None


def _driver(api: Any) -> str | None:
    try:
        nvml = open_nvml(api)
    except EnvironmentProblem:
        return None
    version, _ = nvml.attempt(nvml.api.nvmlSystemGetDriverVersion)
    return text(version) if version is not None else None
