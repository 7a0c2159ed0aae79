"""Compiled images on the device: modules, their kernels, and what can go wrong in loading them."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from attnprof.compiler.ahead import Target
from attnprof.gpu.faults import cuda_errors
from attnprof.kernels.executor import Compiled, EntryResources
from attnprof.kernels.plan import Launch
from attnprof.model.errors import AttnprofError, CompileError, EnvironmentProblem

# CUresult of loading a module and finding a kernel in it: the cubin is for another GPU; the PTX is too new for the
# driver's own compiler; there is no such entry point.
_NO_BINARY_FOR_GPU = 209
_UNSUPPORTED_PTX_VERSION = 222
_NOT_FOUND = 500


class Images:
    """Loads images through CuPy, each kernel once.

    Args:
        target: what the images are.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        # CuPy loads images from files. They go when this does, or when the process ends.
        self._folder = Path(tempfile.mkdtemp(prefix="attnprof-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._kernels: dict[tuple[str, str], Any] = {}

    def kernel(self, launch: Launch, compiled: Compiled) -> Any:
        """The loaded kernel that a launch is of.

        Raises:
            CompileError: the image has no such entry point.
            EnvironmentProblem: the driver cannot load the image.
        """
        import cupy

        # CuPy remembers modules by path, so the path must change with the content.
        digest = hashlib.sha256(compiled.image).hexdigest()
        key = (digest, launch.entry)
        if key not in self._kernels:
            path = self._folder / f"{digest}.{self._target}"
            if not path.exists():
                path.write_bytes(compiled.image)
            try:
                kernel = cupy.RawModule(path=str(path)).get_function(launch.entry)
                # Loads the module now rather than in the middle of the first sample.
                _ = kernel.num_regs
            except cuda_errors() as error:
                problem = _load_problem(error, launch, compiled)
                if problem is None:
                    raise
                raise problem from error
            self._kernels[key] = kernel
        return self._kernels[key]


def resources_of(kernel: Any, entry: str) -> EntryResources:
    """What the driver says of a kernel that it compiled from PTX itself, as far as a launch depends on it."""
    return EntryResources(
        entry=entry,
        registers=int(kernel.num_regs),
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=int(kernel.local_size_bytes),
        static_smem_bytes=int(kernel.shared_size_bytes),
    )


def no_entry(launch: Launch, known: str) -> CompileError:
    """The error for a launch of what the source does not declare; ``known``: what it does."""
    return CompileError(
        f"{launch.build.file.name} has no entry point {launch.entry!r}; it has {known or 'none'}",
        'declare it extern "C" __global__',
    )


def _load_problem(error: Exception, launch: Launch, compiled: Compiled) -> AttnprofError | None:
    status = getattr(error, "status", None)
    if status == _NOT_FOUND:
        return no_entry(launch, "others")
    if status in (_NO_BINARY_FOR_GPU, _UNSUPPORTED_PTX_VERSION):
        return EnvironmentProblem(
            f"the driver cannot load {launch.build.file.name} compiled for {compiled.arch}: {error}",
            "update the NVIDIA driver, or install the NVRTC of its own CUDA version",
        )
    return None
