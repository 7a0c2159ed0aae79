"""Compilations in other processes, ahead of whoever will ask for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from attnprof.kernels.plan import Build
from attnprof.kernels.processes import ProcessPool, process_pool

Target = Literal["cubin", "ptx"]
Job = tuple[Build, str, Target]

_log = logging.getLogger(__name__)

# Fewer are not worth starting processes for, which takes each about as long as two compilations.
WORTHWHILE = 8
# Processes at most: each takes some 200 MB.
_MOST = 16


@contextmanager
def started(jobs: Iterable[Job], cache_dir: Path, processes: int) -> Iterator[dict[Job, Future[None]]]:
    """Compile into a disk cache in the background, in order. Leaving abandons what is not finished.

    In processes, because threads do not help: NVRTC 13.0 compiles one program at a time in each process (16 variants of
    fa2 on two cores: 5.6 s on one thread, 5.3 s on two, 3 s in two processes that are up).
    """
    pool = process_pool(min(processes, _MOST))
    if pool is None:
        yield {}
        return
    try:
        yield _submitted(pool, jobs, cache_dir)
    finally:
        pool.stop()


def _submitted(pool: ProcessPool, jobs: Iterable[Job], cache_dir: Path) -> dict[Job, Future[None]]:
    futures = {}
    try:
        for job in jobs:
            futures[job] = pool.submit(_compile, cache_dir, job)
    except (OSError, BrokenProcessPool) as error:
        _log.info("compiling in this process: %s", error)
    return futures


def _compile(cache_dir: Path, job: Job) -> None:
    from attnprof.compiler.compiler import Compiler

    build, arch, target = job
    Compiler(cache_dir).compile(build, arch, target=target)
