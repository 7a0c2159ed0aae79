"""CUDA source to cubin or PTX for any architecture, with no driver and no GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attnprof.compiler import nvrtc
from attnprof.compiler.ahead import WORTHWHILE, Job, Target, started
from attnprof.compiler.arch import needed_cuda, parse_arch
from attnprof.compiler.cache import DiskCache, Entry, make_key
from attnprof.compiler.diagnostics import refusal
from attnprof.compiler.headers import cuda_headers
from attnprof.compiler.includes import include_closure
from attnprof.compiler.ptxas import parse_resources
from attnprof.kernels.executor import Compiled
from attnprof.kernels.plan import Build
from attnprof.kernels.sources import kernels_dir
from attnprof.model.errors import AttnprofError, UnknownArchitecture

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
        self._ahead: MutableMapping[Job, Future[None]] = {}

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
            EnvironmentProblem: NVRTC or a CUDA header is missing.
            UnknownArchitecture: NVRTC does not know ``arch``.
            UsageError: the file cannot be read.
        """
        waited_for = self._ahead.pop((build, arch, target), None)
        if waited_for is not None:
            waited_for.exception()  # whatever it is, compiling here says it better
        request = self._request(build, arch, target)
        entry = self._cache.load(request.key)
        cached = entry is not None
        if entry is None:
            folders = tuple(f"-I{folder}" for folder in request.folders)
            started = time.perf_counter()
            outcome = nvrtc.compile_source(
                request.source, str(request.file), request.options + folders, cubin=target == "cubin"
            )
            elapsed_s = time.perf_counter() - started
            if outcome.image is None:
                raise refusal(outcome.log, request.file, request.search, nvrtc.version()[0])
            entry = Entry(outcome.image, outcome.log, parse_resources(outcome.log), elapsed_s)
            self._cache.store(request.key, entry)
        return Compiled(
            build=build,
            arch=arch,
            image=entry.image,
            resources=entry.resources,
            compile_time_s=0.0 if cached else entry.compile_time_s,
            cached=cached,
            log=entry.log,
        )

    @contextmanager
    def ahead(self, jobs: Iterable[Job], *, processes: int | None = None) -> Iterator[None]:
        """While the body runs, compile in other processes, in order, what the cache lacks of these jobs.

        `compile` waits for a job that it is asked for. A job that fails there fails again, and is reported, here. Those
        processes import the main module, so a script that calls this does so behind ``if __name__ == "__main__":``.

        Args:
            jobs: builds with architecture and target.
            processes: how many; None takes as many as there are cores. Without at least two, and for a few jobs,
                nothing is done ahead.
        """
        from attnprof.kernels.host import available_cores

        count = available_cores() if processes is None else processes
        missing = [job for job in dict.fromkeys(jobs) if self._lacks(job)] if count > 1 else []
        if len(missing) < WORTHWHILE:
            yield
            return
        with started(missing, self.cache_dir, count) as self._ahead:
            try:
                yield
            finally:
                self._ahead = {}

    def _lacks(self, job: Job) -> bool:
        try:
            return not self._cache.holds(self._request(*job).key)
        except AttnprofError:
            return False  # no header, no such file: for `compile` to report

    def _request(self, build: Build, arch: str, target: Target) -> _Request:
        version = nvrtc.version()
        number, suffix = parse_arch(arch)
        if number not in nvrtc.supported_arches():
            known = ", ".join(f"sm_{known}" for known in nvrtc.supported_arches())
            raise UnknownArchitecture(
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
        return _Request(file, search, (*search, *headers.folders), options, closure[0][1] or b"", key)


@dataclass(frozen=True, slots=True)
class _Request:
    """What NVRTC is asked for, and the key under which the cache keeps its answer."""

    file: Path
    search: tuple[Path, ...]
    folders: tuple[Path, ...]
    options: tuple[str, ...]
    source: bytes
    key: str
