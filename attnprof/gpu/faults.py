"""CUDA's status codes, turned into the errors that a user can meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attnprof.model.errors import AttnprofError, ContextLost, KernelFault, LaunchLimitError

# cudaError_t / CUresult (the same numbers) that leave the context unusable: CUDA Runtime API, "the process must be
# terminated and relaunched".
_STICKY = {
    214: "uncorrectable ECC error",
    220: "uncorrectable NVLink error",
    226: "contained error",
    700: "illegal memory access",
    702: "launch timed out",
    709: "the context is destroyed",
    710: "device-side assertion failed",
    714: "hardware stack error",
    715: "illegal instruction or trap",
    716: "misaligned address",
    717: "invalid address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "contained error",
}
_OUT_OF_RESOURCES = 701
OUT_OF_MEMORY = 2


def fault(what: str, status: int, text: str) -> AttnprofError:
    """The error for a CUDA status that ``what`` (a kernel, or a list of them) ran into."""
    if status in _STICKY:
        return ContextLost(
            f"{what}: {_STICKY[status]} (CUDA error {status}); the GPU context is lost",
            "run it on its own under compute-sanitizer, or: attnprof check --backend emulator",
        )
    if status == _OUT_OF_RESOURCES:
        return LaunchLimitError(f"{what}: too many resources requested for launch (CUDA error {status})")
    return KernelFault(f"{what}: {' '.join(text.split())}")


def cuda_errors() -> tuple[type[Exception], ...]:
    """The exceptions that CuPy raises for a CUDA status, which they carry as ``status``."""
    from cupy.cuda import driver, runtime

    return (runtime.CUDARuntimeError, driver.CUDADriverError)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Run the body; a CUDA error in it becomes a KernelFault, ContextLost or LaunchLimitError that names ``what``."""
    errors = cuda_errors()
    try:
        yield
    except errors as error:
        raise fault(what, int(getattr(error, "status", 999)), str(error)) from error
