"""Where CUDA's own headers lie: NVRTC brings none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnprof.model.errors import EnvironmentProblem

_PROBE = "cuda_fp16.h"
_SYSTEM_ROOTS = ("/usr/local/cuda", "/opt/cuda", "/usr")
# CUDA's headers by how their names begin, each with the wheels that bring them (CUDA 13, CUDA 12).
_RUNTIME = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
_CRT = ("nvidia-cuda-crt", "nvidia-cuda-nvcc-cu12")
_CCCL = ("nvidia-cuda-cccl", "nvidia-cuda-cccl-cu12")
_PIECES: tuple[tuple[tuple[str, ...], tuple[str, str]], ...] = (
    (("cuda_fp", "cuda_bf16", "cuda_tf32", "cuda_runtime", "cuda_pipeline", "cuda_awbarrier", "cuda_device"), _RUNTIME),
    (("vector_types", "vector_functions", "builtin_types", "device_types", "cooperative_groups"), _RUNTIME),
    (("crt/", "mma.h", "host_defines.h"), _CRT),
    (("nv/", "cuda/std/", "cuda/", "cub/", "thrust/"), _CCCL),
)


@dataclass(frozen=True, slots=True)
class Headers:
    """Folders for ``-I``, and a signature that changes when the headers in them are replaced."""

    folders: tuple[Path, ...]
    signature: str


@cache
def cuda_headers(nvrtc_major: int) -> Headers:
    """The folders of CUDA's headers: the wheels beside Python, else CUDA_PATH or CUDA_HOME, else a system toolkit.

    Raises:
        EnvironmentProblem: ``cuda_fp16.h`` is nowhere.
    """
    return find_headers(nvrtc_major, os.environ)


def find_headers(nvrtc_major: int, environ: Mapping[str, str]) -> Headers:
    """As :func:`cuda_headers`, for a given environment."""
    folders: list[Path] = []
    for runtime, cccl in _candidates(environ):
        if (runtime / _PROBE).is_file():
            # Later candidates come last on the search path: they only serve for what the first one lacks, as when
            # PyTorch has brought some of the header wheels and a system toolkit has the rest.
            found = (runtime, cccl, runtime / "cccl")
            folders += [
                folder for folder in dict.fromkeys(found) if folder and folder.is_dir() and folder not in folders
            ]
    if folders:
        return Headers(tuple(folders), _signature(folders))
    variables = [f"{name}={environ[name]}" for name in ("CUDA_PATH", "CUDA_HOME") if environ.get(name)]
    why = f" ({', '.join(variables)} holds no include/{_PROBE})" if variables else ""
    raise EnvironmentProblem(f"{_PROBE} is missing: no CUDA headers found{why}", install_hint(_PROBE, nvrtc_major))


def install_hint(header: str, nvrtc_major: int) -> str:
    """The pip command that brings a CUDA header, for an NVRTC of this major version."""
    everything = f"pip install 'attnprof[cuda{nvrtc_major}]'"
    for prefixes, (cuda13, cuda12) in _PIECES:
        if header.startswith(prefixes):
            wheel = cuda12 if nvrtc_major == 12 else f"'{cuda13}=={nvrtc_major}.*'"
            return f"{everything}, or just this piece: pip install {wheel}"
    return everything


def is_cuda_header(header: str) -> bool:
    """Whether a header of this name belongs to CUDA rather than to the user."""
    return any(header.startswith(prefixes) for prefixes, _ in _PIECES)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, Path | None]]:
    """Pairs of (folder of cuda_fp16.h, folder of the CCCL headers or None), the most trusted first."""
    runtime = _pathfinder("cudart")
    if runtime is not None:
        yield runtime, _pathfinder("cccl")
    roots = [environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if environ.get(name)]
    for root in (*roots, *_SYSTEM_ROOTS):
        include = Path(root) / "include"
        yield include, include / "cccl"


def _pathfinder(piece: str) -> Path | None:
    """A header folder as cuda-pathfinder finds it, in wheels first."""
    try:
        from cuda import pathfinder
    except ImportError:
        return None
    # Early versions find libraries only: then the toolkit named by the environment is searched.
    find = getattr(pathfinder, "find_nvidia_header_directory", None)
    if find is None:
        return None
    try:
        found = find(piece)
    except RuntimeError:  # "Unknown libname": a piece this version has not heard of.
        return None
    return Path(found) if found else None


def _signature(folders: list[Path]) -> str:
    """The folders, and size and time of the headers that kernels use most: cheap, and different after an upgrade."""
    marks = [str(folder) for folder in folders]
    for name in ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.hpp"):
        try:
            status = (folders[0] / name).stat()
        except OSError:
            marks.append(f"{name}:none")
        else:
            marks.append(f"{name}:{status.st_size}:{status.st_mtime_ns}")
    return "|".join(marks)
