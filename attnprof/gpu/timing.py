"""Timing with CUDA events: cold or warm L2, without the launch gaps, and with the device read while it works."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from attnprof.gpu.nvml import Sensors
from attnprof.kernels.executor import Sample

# Launches that one CUDA graph holds; longer samples replay it.
_GRAPH_LAUNCHES = 64
# Untimed work ahead of a warm sample: it warms the cache, and hides the few µs that enqueueing the sample takes.
_LEAD_S = 200e-6
# How often the flush before a launch may be repeated to give the host time to enqueue.
_MAX_FLUSHES = 16


class Work(Protocol):
    """Something to time. Its methods only enqueue; nothing waits."""

    name: str

    def enqueue(self) -> None:
        """Put it on the timer's stream once."""
        ...

    def capture(self, launches: int) -> Callable[[], None] | None:
        """A CUDA graph of ``launches`` repeats as a function that enqueues it, or None where it cannot be captured."""
        ...


class Queue(Protocol):
    """The stream that the work goes to, as far as the timer needs it; tests simulate one."""

    def begin(self) -> None:
        """Start a sample: the marks of the last one are no longer needed."""
        ...

    def mark(self) -> Any:
        """Enqueue an event."""
        ...

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached it."""
        ...

    def wait(self, mark: Any) -> None:
        """Wait until it has."""
        ...

    def seconds(self, start: Any, stop: Any) -> float:
        """Device time between two marks that have passed."""
        ...

    def flush(self) -> None:
        """Enqueue what empties the L2 cache."""
        ...


class CudaQueue:
    """A CUDA stream.

    Args:
        stream: the stream.
        flush: enqueues on it what empties the L2 cache.
    """

    def __init__(self, stream: Any, flush: Callable[[], None]) -> None:
        self.stream = stream
        self.flush = flush
        # Events are kept and used again: making one takes longer than recording it, and destroying one after the
        # context was lost raises.
        self._events: list[Any] = []
        self._marks = 0

    def begin(self) -> None:
        """As `Queue.begin`."""
        self._marks = 0

    def mark(self) -> Any:
        """As `Queue.mark`."""
        import cupy

        if self._marks == len(self._events):
            self._events.append(cupy.cuda.Event())
        event = self._events[self._marks]
        self._marks += 1
        event.record(self.stream)
        return event

    def passed(self, mark: Any) -> bool:
        """As `Queue.passed`."""
        return bool(mark.done)

    def wait(self, mark: Any) -> None:
        """As `Queue.wait`."""
        mark.synchronize()

    def seconds(self, start: Any, stop: Any) -> float:
        """As `Queue.seconds`."""
        import cupy

        return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3


class Stopwatch:
    """Times one piece of work on a queue, sample by sample.

    Cold: each launch stands between its own two events, behind a flush. The flush also keeps the device busy while
    the host enqueues the launch, so no gap is counted; where it is too short for that (the first event has already
    passed when the launch is enqueued) it is repeated, and the sample taken anew.

    Warm: all launches stand between one pair of events, as replays of a CUDA graph, behind untimed launches of the
    same work.
    """

    def __init__(self, work: Work, queue: Queue, sensors: Sensors | None) -> None:
        self._work = work
        self._queue = queue
        self._sensors = sensors
        self._flushes = 1
        self._graphs: dict[int, Callable[[], None] | None] = {}
        self._last_s: float | None = None

    def sample(self, launches: int, *, cold_l2: bool) -> Sample:
        """As `Timed.time`, without the translation of faults."""
        if launches < 1:
            raise ValueError(f"launches is {launches}; it must be at least 1")
        return self._cold(launches) if cold_l2 else self._warm(launches)

    def _cold(self, launches: int) -> Sample:
        queue = self._queue
        while True:
            queue.begin()
            starved = False
            marks = []
            # The first launch finds an idle device: two more flushes give the host its head start.
            queue.flush()
            queue.flush()
            for _ in range(launches):
                for _ in range(self._flushes):
                    queue.flush()
                start = queue.mark()
                self._work.enqueue()
                marks.append((start, queue.mark()))
                starved = starved or queue.passed(start)
            readings = self._read()
            queue.wait(marks[-1][1])
            if not starved or self._flushes >= _MAX_FLUSHES:
                break
            self._flushes *= 2
        total_s = math.fsum(queue.seconds(start, stop) for start, stop in marks)
        return self._sample(total_s, launches, readings)

    def _warm(self, launches: int) -> Sample:
        queue = self._queue
        batch = min(launches, _GRAPH_LAUNCHES)
        whole, rest = divmod(launches, batch)
        enqueue_batch, enqueue_rest = self._repeat(batch), self._repeat(rest) if rest else None
        enqueue_lead = self._repeat(self._lead_launches())
        enqueue_lead()
        queue.begin()
        start = queue.mark()
        for _ in range(whole):
            enqueue_batch()
        if enqueue_rest is not None:
            enqueue_rest()
        stop = queue.mark()
        readings = self._read()
        queue.wait(stop)
        return self._sample(queue.seconds(start, stop), launches, readings)

    def _lead_launches(self) -> int:
        """Launches that keep the device busy for `_LEAD_S`, as a power of two so that few graphs are needed."""
        queue = self._queue
        if self._last_s is None:
            queue.begin()
            start = queue.mark()
            self._work.enqueue()
            stop = queue.mark()
            queue.wait(stop)
            self._last_s = queue.seconds(start, stop)
        lead = 1
        while lead * self._last_s < _LEAD_S and lead < _GRAPH_LAUNCHES:
            lead *= 2
        return lead

    def _repeat(self, launches: int) -> Callable[[], None]:
        """What enqueues ``launches`` launches at once: a graph, or a loop where there is none."""
        if launches not in self._graphs:
            self._graphs[launches] = self._work.capture(launches)
        graph = self._graphs[launches]
        if graph is not None:
            return graph

        def loop() -> None:
            for _ in range(launches):
                self._work.enqueue()

        return loop

    def _read(self) -> tuple[int | None, float | None, float | None, tuple[str, ...]]:
        sensors = self._sensors
        if sensors is None:
            return None, None, None, ()
        return sensors.sm_clock_hz(), sensors.power_w(), sensors.temperature_c(), sensors.throttle_reasons()

    def _sample(
        self,
        total_s: float,
        launches: int,
        readings: tuple[int | None, float | None, float | None, tuple[str, ...]],
    ) -> Sample:
        self._last_s = total_s / launches
        return Sample(self._last_s, launches, *readings)

    def forget(self) -> None:
        """Drop the graphs, which hold on to the memory they were captured with."""
        self._graphs.clear()
