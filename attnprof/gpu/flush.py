"""Emptying the L2 cache between two timed launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnprof.gpu.memory import Block
from attnprof.kernels.plan import Build, Launch, Pointer, Scalar
from attnprof.kernels.sources import kernels_dir

BUILD = Build(kernels_dir() / "common" / "read_all.cu")
THREADS = 512
_CHUNK_BYTES = 16


def read_all(nbytes: int, sm_count: int) -> Launch:
    """The launch that reads a tensor ``x`` of so many bytes, a multiple of 16, with every SM at work."""
    blocks = 4 * sm_count
    args = (Pointer("x"), Scalar("i64", nbytes // _CHUNK_BYTES))
    return Launch("flush", BUILD, "read_all", (blocks, 1, 1), (THREADS, 1, 1), 0, args)


class L2Flush:
    """Reads a buffer of twice the L2 cache, so that nothing else is left there and what is left is clean.

    A write would do as well to evict, but its own lines must go back to HBM later: on an H200 up to 60 MiB, at the
    expense of the launch that is timed next.

    Args:
        stream: the CUDA stream that the timed work goes to.
        l2_bytes: the cache.
        sm_count: SMs of the device.
        load: makes a kernel of a launch; called before the first flush.
    """

    def __init__(self, stream: Any, l2_bytes: int, sm_count: int, load: Callable[[Launch], Any]) -> None:
        from cupy.cuda import runtime

        self._stream = stream
        self._buffer = Block(2 * l2_bytes // _CHUNK_BYTES * _CHUNK_BYTES)
        runtime.memsetAsync(self._buffer.address, 0, self._buffer.nbytes, stream.ptr)
        self._launch = read_all(self._buffer.nbytes, sm_count)
        self._load = load
        self._kernel: Any = None

    def __call__(self) -> None:
        """Enqueue it."""
        import numpy as np

        launch = self._launch
        if self._kernel is None:
            self._kernel = self._load(launch)
        chunks = np.int64(self._buffer.nbytes // _CHUNK_BYTES)
        with self._stream:
            self._kernel(launch.grid, launch.block, (np.uint64(self._buffer.address), chunks))
