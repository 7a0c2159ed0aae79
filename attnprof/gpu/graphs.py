"""Launches recorded once and replayed: CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attnprof.gpu.faults import cuda_errors


def capture_graph(stream: Any, enqueue: Callable[[], None], launches: int) -> Callable[[], None] | None:
    """A CUDA graph of ``launches`` calls of ``enqueue`` on ``stream``, as a function that launches it there.

    Returns:
        None where the stream cannot be captured.
    """
    errors = cuda_errors()
    try:
        stream.begin_capture()
        try:
            for _ in range(launches):
                enqueue()
        finally:
            graph = stream.end_capture()
        graph.upload(stream)
    except errors as error:
        # 900 to 909 are the errors of stream capture (cudaErrorStreamCaptureUnsupported and its kin).
        if 900 <= int(getattr(error, "status", 0)) <= 909:
            return None
        raise
    launch: Callable[[], None] = partial(graph.launch, stream)
    return launch
