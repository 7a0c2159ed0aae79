"""Many compilations at once, each in a process of its own."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Literal

from attnprof.kernels.plan import Build
from attnprof.model.errors import AttnprofError

Target = Literal["cubin", "ptx"]

_log = logging.getLogger(__name__)


def compile_in_processes(builds: Sequence[Build], arch: str, target: Target, cache_dir: Path) -> None:
    """Fill a cache with builds that it lacks. One build, or a machine that gives no processes, is left to the caller.

    Args:
        builds: what to compile.
        arch: for which architecture.
        target: as of `attnprof.compiler.Compiler.compile`.
        cache_dir: the cache's folder.
    """
    workers = min(len(builds), _available_cores())
    if workers < 2:
        return
    # Not forked: a CUDA context and threads do not survive that.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_at_an_interrupt) as pool:
            jobs = [pool.submit(_compile, build, arch, target, cache_dir) for build in builds]
            try:
                for job in jobs:
                    job.result()
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except (OSError, BrokenProcessPool) as error:
        _log.info("compiling in this process: %s", error)


def _compile(build: Build, arch: str, target: Target, cache_dir: Path) -> None:
    from attnprof.compiler.compiler import Compiler

    # Compiled again by whoever asked, who then gets the error.
    with contextlib.suppress(AttnprofError):
        Compiler(cache_dir).compile(build, arch, target=target)


def _end_at_an_interrupt() -> None:
    # Ctrl-C reaches every process of the terminal: a worker ends at once and without a traceback. What it was writing
    # has a temporary name still.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
