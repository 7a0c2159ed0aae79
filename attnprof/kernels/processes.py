"""Other processes of this program, to share work with."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class ProcessPool(ProcessPoolExecutor):
    """Workers that leave Ctrl-C, and warnings, to this process, and end when it stops them or ends itself.

    An interrupted `shutdown` would leave a worker, and with it the exit of this process, with all that was submitted.
    """

    def __init__(self, processes: int) -> None:
        # Spawned, not forked: a fork would copy the threads' locks and a GPU's context, which do not survive it.
        super().__init__(processes, mp_context=get_context("spawn"), initializer=_serve)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As of any executor. An interrupt strikes when the worker that this may start is whole, and known."""
        with _uninterrupted():
            return super().submit(fn, *args, **kwargs)

    def stop(self) -> None:
        """Drop what has not begun and end the workers, whatever they are doing; an interrupt strikes afterwards."""
        # Neither attribute is promised. From Python 3.14 on there is kill_workers, but nothing public for the other.
        workers = getattr(self, "_processes", None) or {}
        sending = getattr(getattr(self, "_result_queue", None), "_writer", None)
        with _uninterrupted():
            # Not terminated: one that is still starting has SIGTERM blocked, and none has anything to tidy up.
            for worker in list(workers.values()):
                worker.kill()
            # Of a result that was half sent the rest would be waited for as long as anyone could send it.
            if sending is not None:
                sending.close()
            self.shutdown(cancel_futures=True)  # nothing is left to wait for


def process_pool(processes: int) -> ProcessPool | None:
    """A pool to `ProcessPool.stop` in the end; None where there can be none."""
    try:
        return ProcessPool(processes)
    except OSError as error:  # no semaphores, as in some containers
        _log.info("working in one process: %s", error)
        return None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait while the body runs; the processes and threads that it starts have them blocked.

    A terminal sends Ctrl-C to the workers as well. What is blocked is inherited, so they are deaf to it from the first
    instruction on; a handler of their own would come after their imports.
    """
    if sys.platform == "win32":
        yield
        return
    # Read first, in a call of its own: the one that blocks may raise the interrupt that came just before.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve() -> None:
    """Set a worker up."""
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:  # Ctrl-C stays blocked; a pool that lost a worker terminates the others
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    # What concerns the user (a full disk), the parent meets as well, and says once.
    logging.disable()
    Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A parent that was killed stops nobody, and its workers would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
