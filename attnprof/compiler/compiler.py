"""CUDA source to cubin or PTX for any architecture, with no driver and no GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnprof.compiler import nvrtc
from attnprof.compiler.arch import needed_cuda, parse_arch
from attnprof.compiler.cache import DiskCache, Entry, make_key
from attnprof.compiler.diagnostics import refusal
from attnprof.compiler.headers import cuda_headers
from attnprof.compiler.includes import include_closure
from attnprof.compiler.processes import Target, compile_in_processes
from attnprof.compiler.ptxas import parse_resources
from attnprof.kernels.executor import Compiled
from attnprof.kernels.plan import Build
from attnprof.kernels.sources import kernels_dir
from attnprof.model.errors import EnvironmentProblem

# Since this version NVRTC keeps images itself where there is a driver, and one from there comes without ptxas's report
# of registers and spills (NVRTC user guide, "Caching").
_OWN_CACHE = (12, 9)


class Compiler:
    """Compiles builds with NVRTC and keeps the results on disk.

    Args:
        cache_dir: where; None takes ``$ATTNPROF_CACHE_DIR``, ``$XDG_CACHE_HOME/attnprof`` or ``~/.cache/attnprof``.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    @cached_property
    def _cache(self) -> DiskCache:
        # Opened by the first compilation, so that making a Compiler touches no disk.
        return DiskCache(self._cache_dir)

    @property
    def cache_dir(self) -> Path:
        """The folder of the disk cache in use."""
        return self._cache.folder

    def compile(self, build: Build, arch: str, *, target: Target = "cubin") -> Compiled:
        """Compile a build, or take it from the cache.

        Args:
            build: the ``.cu`` file and its macros.
            arch: ``sm_80``, ``sm_90a``, …
            target: ``cubin`` for a device, or ``ptx``, whose ``image`` is the text with line information (UTF-8);
                ptxas does not run for it, so ``resources`` is empty.

        Returns:
            The image, with each entry point's registers, spills and static shared memory.

        Raises:
            CompileError: the source was refused; the message holds the first error's file and line.
            EnvironmentProblem: NVRTC or a CUDA header is missing, or NVRTC does not know ``arch``.
            UsageError: the file cannot be read.
        """
        job = _job(build, arch, target)
        entry = self._cache.load(job.key)
        cached = entry is not None
        if entry is None:
            started = time.perf_counter()
            options = job.options + tuple(f"-I{folder}" for folder in job.folders)
            outcome = nvrtc.compile_source(job.source, str(job.file), options, cubin=target == "cubin")
            elapsed_s = time.perf_counter() - started
            if outcome.image is None:
                raise refusal(outcome.log, job.file, job.search, nvrtc.version()[0])
            entry = Entry(outcome.image, outcome.log, parse_resources(outcome.log), elapsed_s)
            self._cache.store(job.key, entry)
        return Compiled(
            build=build,
            arch=arch,
            image=entry.image,
            resources=entry.resources,
            compile_time_s=0.0 if cached else entry.compile_time_s,
            cached=cached,
            log=entry.log,
        )

    def compile_ahead(self, builds: Iterable[Build], arch: str, *, target: Target = "cubin") -> None:
        """Compile builds into the cache in processes of their own, as many at a time as there are cores.

        Threads would not do: NVRTC runs one compilation at a time in a process. What fails here is left to `compile`,
        which says why.

        Raises:
            EnvironmentProblem, UsageError: as `compile`.
        """
        missing = [build for build in dict.fromkeys(builds) if self._cache.load(_job(build, arch, target).key) is None]
        compile_in_processes(missing, arch, target, self.cache_dir)


@dataclass(frozen=True, slots=True)
class _Job:
    """What one compilation takes, and the key of its result."""

    key: str
    file: Path
    source: bytes
    search: tuple[Path, ...]
    folders: tuple[Path, ...]
    options: tuple[str, ...]


def _job(build: Build, arch: str, target: Target) -> _Job:
    version = nvrtc.version()
    number, suffix = parse_arch(arch)
    if number not in nvrtc.supported_arches():
        known = ", ".join(f"sm_{known}" for known in nvrtc.supported_arches())
        raise EnvironmentProblem(
            f"NVRTC {version[0]}.{version[1]} does not know {arch}: it needs the NVRTC of {needed_cuda(arch)}",
            f"this one knows {known}",
        )
    headers = cuda_headers(version[0])
    file = build.file.absolute()
    search = (file.parent, kernels_dir())
    options = (
        f"--gpu-architecture={'sm' if target == 'cubin' else 'compute'}_{number}{suffix}",
        "-std=c++17",
        "-lineinfo",
        "-default-device",
        *(("--ptxas-options=-v",) if target == "cubin" else ()),
        *(("--no-cache",) if version >= _OWN_CACHE else ()),
        *(f"-D{macro}={value}" for macro, value in build.defines),
    )
    closure = include_closure(file, search)
    # Paths are part of the key because line information puts them into the image.
    key = make_key((*(part for pair in closure for part in pair), *options, f"{version}", headers.signature))
    return _Job(key, file, closure[0][1] or b"", search, (*search, *headers.folders), options)
