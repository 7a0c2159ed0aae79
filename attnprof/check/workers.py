"""Who makes inputs and judges outputs while the device runs: other processes, threads, or nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from attnprof.kernels.processes import ProcessPool, process_pool

_log = logging.getLogger(__name__)

# More would wait for the one thread that drives the device. Each process takes some 150 MB.
_MOST = 8

Kind = Literal["processes", "threads"]
T = TypeVar("T")
_Pool = ProcessPool | ThreadPoolExecutor


class Workers:
    """Pools that start when they are first needed. A context manager: leaving it drops what is not finished.

    Processes for attention, whose many small arrays would have threads queue for the interpreter; threads for a
    softmax, whose few large ones would take as long to be sent.

    Args:
        count: of workers, in either pool. With fewer than two, all is done in the calling thread, when it is asked for.
    """

    def __init__(self, count: int) -> None:
        self.count = min(count, _MOST)
        self._pools: dict[Kind, _Pool | None] = {}

    def start(self, kind: Kind, function: Callable[..., T], *arguments: Any) -> Task[T]:
        """Have a function called; processes need one that can be pickled, and its arguments too."""
        pool = self._pool(kind)
        if pool is None:
            return Task(function, arguments, None)
        try:
            return Task(function, arguments, pool.submit(function, *arguments))
        except (OSError, BrokenProcessPool) as error:
            self._give_up(kind, error)
            return Task(function, arguments, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools.values():
            if isinstance(pool, ProcessPool):
                pool.stop()
            elif pool is not None:
                pool.shutdown(cancel_futures=True)

    def _pool(self, kind: Kind) -> _Pool | None:
        if self.count < 2:
            return None
        if kind not in self._pools:
            self._pools[kind] = (
                ThreadPoolExecutor(self.count, "attnprof-check") if kind == "threads" else process_pool(self.count)
            )
        return self._pools[kind]

    def _give_up(self, kind: Kind, error: Exception) -> None:
        _log.info("no more %s: %s", kind, error)
        self._pools[kind] = None


class Task(Generic[T]):
    """A call that was started, or that `result` makes."""

    def __init__(self, function: Callable[..., T], arguments: tuple[Any, ...], future: Future[T] | None) -> None:
        self._function = function
        self._arguments = arguments
        self._future = future

    def result(self) -> T:
        """What the call returned, waited for. One whose process died is made again, here."""
        if self._future is not None:
            try:
                return self._future.result()
            except BrokenProcessPool as error:
                _log.info("working in one process: %s", error)
        return self._function(*self._arguments)
