"""The NVRTC library behind four plain calls; it needs no driver."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from attnprof.model.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class Outcome:
    """One compilation: the image, or None when the source was refused, and the whole program log."""

    image: bytes | None
    log: str


@cache
def bindings() -> ModuleType:
    """The module ``cuda.bindings.nvrtc`` with its library loaded.

    Raises:
        EnvironmentProblem: the bindings or the NVRTC library are missing.
    """
    try:
        with warnings.catch_warnings():
            # cuda-bindings 12 warns of its own legacy module layout on import.
            warnings.simplefilter("ignore")
            from cuda.bindings import nvrtc
    except ImportError as error:
        raise EnvironmentProblem(
            f"the CUDA bindings are missing ({error})", "pip install 'attnprof[nvrtc]' (with CuPy: attnprof[cuda13])"
        ) from error
    try:
        # The library is loaded by the first call; a missing one is a RuntimeError (cuda-pathfinder's
        # DynamicLibNotFoundError among them), an old one that lacks a symbol likewise.
        nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentProblem(
            f"the NVRTC library is missing or does not load ({reason})",
            "pip install 'attnprof[nvrtc]' (with CuPy: attnprof[cuda13] or attnprof[cuda12])",
        ) from error
    module: ModuleType = nvrtc
    return module


def version() -> tuple[int, int]:
    """NVRTC's version, e.g. ``(13, 0)``."""
    major, minor = _checked(bindings().nvrtcVersion())
    return int(major), int(minor)


def supported_arches() -> tuple[int, ...]:
    """The compute capabilities NVRTC compiles for, e.g. ``(75, 80, 86, …)``, oldest first."""
    (arches,) = _checked(bindings().nvrtcGetSupportedArchs())
    return tuple(sorted(int(arch) for arch in arches))


def compile_source(source: bytes, name: str, options: tuple[str, ...], *, cubin: bool) -> Outcome:
    """Compile ``source``, which diagnostics and line information call ``name``, to a cubin or to PTX.

    Raises:
        EnvironmentProblem: NVRTC is missing or broke down for another reason than the source.
    """
    nvrtc = bindings()
    (program,) = _checked(nvrtc.nvrtcCreateProgram(source, _encoded(name), 0, [], []))
    try:
        encoded = [_encoded(option) for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        refusals = (nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION, nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION)
        if status in refusals:
            return Outcome(None, log)
        _checked((status,))
        if cubin:
            image = _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        else:
            # The size counts the NUL at the end of the text.
            image = _bytes(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0")
        return Outcome(image, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _encoded(text: str) -> bytes:
    # surrogateescape gives back the very bytes of a file name that was not UTF-8.
    return text.encode("utf-8", "surrogateescape")


def _bytes(size_of: Any, fetch: Any, program: Any) -> bytes:
    (size,) = _checked(size_of(program))
    buffer = bytes(size)  # The bindings fill the buffer in place, as they document.
    _checked(fetch(program, buffer))
    return buffer


def _text(size_of: Any, fetch: Any, program: Any) -> str:
    return _bytes(size_of, fetch, program).rstrip(b"\0").decode("utf-8", "replace").strip()


def _checked(result: Any) -> tuple[Any, ...]:
    """The values of a bindings call, which returns (status, value, …)."""
    status, *values = result
    if int(status) != 0:
        (_, text) = bindings().nvrtcGetErrorString(status)
        raise EnvironmentProblem(f"NVRTC failed: {text.decode()}")
    return tuple(values)
