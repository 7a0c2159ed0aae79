"""Cases through the device one at a time, while others make the next inputs and judge the last outputs.

Without them the device, and the thread that drives it, would wait for float64 arithmetic most of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnprof.check.workers import Kind, Task, Workers
from attnprof.check.workloads import NumericsCase
from attnprof.kernels.executor import Executor
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import Outline, inputs_for, judge, needs_device, run_once
from attnprof.kernels.verify import Verification
from attnprof.model.errors import AttnprofError, ContextLost, DescriptionError, UnsupportedWorkload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

# What a case came to: a verdict, or why there is none.
Outcome = Verification | AttnprofError

# Bytes of tensors that may wait on either side of the device, beyond those of one case.
WAITING_BYTES = 1 << 29


def outcomes(
    spec: KernelSpec,
    cases: Sequence[NumericsCase],
    executor: Executor,
    *,
    seed: int = 0,
    workers: Workers,
    progress: Callable[[str], None] = lambda _: None,
) -> Generator[tuple[NumericsCase, Outcome], None, None]:
    """Run and judge cases, and yield what each came to, in order. Ends after one that lost the device context.

    Args:
        spec: the kernel.
        cases: what to run it on.
        executor: where; only the calling thread touches it.
        seed: of the random inputs.
        workers: make inputs and judge outputs.
        progress: called with one line before each run.
    """

    def launched(jobs: Iterable[_Job]) -> Iterator[_Job]:
        for job in jobs:
            progress(f"{spec.name}: {job.case.label}")
            job.launch(workers)
            yield job
            if isinstance(job.error, ContextLost):
                return

    started = (_Job(spec, case, executor, seed, workers) for case in cases)
    for job in _kept_waiting(launched(_kept_waiting(started, workers.count)), workers.count):
        yield job.case, job.outcome()


def _kept_waiting(jobs: Iterable[_Job], most: int) -> Iterator[_Job]:
    """The same jobs; so many of them are taken from where they come before the first is needed."""
    waiting: deque[_Job] = deque()
    for job in jobs:
        while waiting and (len(waiting) >= most or sum(each.nbytes for each in (*waiting, job)) > WAITING_BYTES):
            yield waiting.popleft()
        waiting.append(job)
    while waiting:
        yield waiting.popleft()


class _Job:
    """One case: its inputs are made, it runs, its outputs are judged; or something goes wrong first."""

    def __init__(self, spec: KernelSpec, case: NumericsCase, executor: Executor, seed: int, workers: Workers) -> None:
        self.case = case
        self.nbytes = 0
        self.error: AttnprofError | None = None
        self._spec = spec.laid_out(case.layout)
        self._outline = Outline.of(self._spec)
        self._kind: Kind = "threads" if spec.operation == "softmax" else "processes"
        self._executor = executor
        self._seed = seed
        self._inputs: Task[Arrays] | None = None
        self._verdict: Task[Verification] | None = None
        try:
            reason = self._spec.unsupported(case.workload)
            if reason is not None:
                raise UnsupportedWorkload(reason)
            self._plan = self._spec.plan(case.workload, executor.device)
        except DescriptionError:
            raise
        except AttnprofError as error:
            self.error = error
            return
        self.nbytes = sum(tensor.nbytes for tensor in self._plan.tensors if tensor.role != "scratch")
        if not needs_device(self._spec, case.workload):
            self._inputs = workers.start(self._kind, self._made(None))

    def launch(self, workers: Workers) -> None:
        """Run it, and have the outputs judged."""
        if self.error is not None:
            return
        try:
            inputs = self._inputs.result() if self._inputs is not None else self._made(self._executor)()
            outputs = run_once(self._plan, inputs, self._executor)
        except AttnprofError as error:
            self.error = error
        else:
            self._verdict = workers.start(self._kind, judge, self._outline, self.case.workload, inputs, outputs)
        self._inputs = None

    def outcome(self) -> Outcome:
        """The verdict, waited for, or what went wrong."""
        if self.error is not None:
            return self.error
        if self._verdict is None:
            raise ValueError(f"{self.case.label} was not launched")
        return self._verdict.result()

    def _made(self, executor: Executor | None) -> Callable[[], Arrays]:
        case = self.case
        return partial(
            inputs_for,
            self._outline,
            case.workload,
            executor=executor,
            distribution=case.distribution,
            seed=self._seed,
        )
