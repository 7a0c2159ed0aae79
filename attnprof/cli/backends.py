"""Opening what kernels run on, as late as possible: commands that need no GPU import nothing of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from attnprof.cli import values
from attnprof.cli.environment import Environment
from attnprof.model.errors import EnvironmentProblem

if TYPE_CHECKING:
    from attnprof.bench.rows import MeasuredRate
    from attnprof.bench.runner import BenchOptions, PeerFactory
    from attnprof.check.trap_runner import Timer
    from attnprof.compiler import Compiler
    from attnprof.emulator.executor import EmulatorExecutor
    from attnprof.gpu.executor import GpuExecutor
    from attnprof.gpu.peers import Peer
    from attnprof.kernels.executor import Counter, Executor, FaultFinder, TimedExecutor
    from attnprof.kernels.spec import Layout
    from attnprof.model.devices import DeviceSpec
    from attnprof.model.workload import Workload


BACKENDS = ("gpu", "emulator")
# Peers that are rates to set a row beside, not implementations of attention.
_RATES = ("copy", "matmul")
# Host time; tests put their own here.
clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Checker:
    """What ``check`` runs kernels on.

    Attributes:
        executor: the GPU or the emulator.
        line: which one, for the heading.
        reason: why it is not the GPU; None when it is.
        gpu: the executor again where it is a GPU, which can also time.
        finder: what finds faults, on the emulator; None on a GPU.
    """

    executor: Executor
    line: str
    reason: str | None
    gpu: TimedExecutor | None = None
    finder: FaultFinder | None = None


def open_gpu() -> GpuExecutor:
    """The local GPU.

    Raises:
        EnvironmentProblem: there is none, or a piece of software is missing; the hint names what works without.
    """
    from attnprof.gpu.opening import open_executor

    return open_executor()


def open_peers(names: Sequence[str], executor: GpuExecutor, layout: Layout = "bhsd") -> Mapping[str, PeerFactory]:
    """The libraries to time beside each kernel, on tensors that lie as the kernel's.

    Raises:
        UsageError: a name that is not known.
    """
    if not names:
        return {}
    return {name: partial(executor.peer, name, layout=layout) for name in names}


def software() -> Mapping[str, str | None]:
    """Versions of the driver, of CUDA and of the libraries that this process has used so far, by name."""
    from attnprof.gpu import versions

    return versions.software()


def measure_rates(
    executor: GpuExecutor, workloads: Sequence[Workload], settings: BenchOptions
) -> tuple[MeasuredRate, ...]:
    """The rates of the device copy, and of the library's matrix product for each element type of the workloads.

    One that can't be measured (no PyTorch) has a reason instead of a value.
    """
    from attnprof.bench.rates import RateProbe, measure_rates

    first = {workload.dtype: workload for workload in reversed(workloads)}
    copy = executor.peer("copy", workloads[0])
    probes = [RateProbe("copy", "byte/s", copy.bytes, lambda: copy)]
    for dtype, workload in first.items():
        matmul = executor.peer("matmul", workload)
        if matmul.flops is not None:
            probes.append(RateProbe("matmul", "FLOP/s", matmul.flops, partial(_same, matmul), str(dtype)))
    return measure_rates(probes, settings.rule, clock=settings.clock)


def _same(peer: Peer) -> Peer:
    return peer


def check_peers(names: Sequence[str]) -> tuple[str, ...]:
    """``--peer``: names of libraries, checked before anything is opened.

    Raises:
        UsageError: a name that is not known.
    """
    if not names:
        return ()
    from attnprof.gpu.peers import PEERS

    return values.choices(names, "--peer", tuple(name for name in PEERS if name not in _RATES))


def open_checker(backend: str | None, compiler: Compiler) -> Checker:
    """What ``check`` runs kernels on: the GPU if there is one, else the emulator.

    Raises:
        EnvironmentProblem: ``backend`` names one that can't be had, or there is neither: without NVRTC nothing can be
            compiled, let alone run.
    """
    if backend == "gpu":
        return _on_gpu(open_gpu())
    if backend == "emulator":
        return _on_emulator(compiler, None)
    try:
        return _on_gpu(open_gpu())
    except EnvironmentProblem as problem:
        no_gpu = problem.message
    try:
        return _on_emulator(compiler, no_gpu)
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(f"nothing can be checked: {no_gpu}; {problem.message}", problem.hint) from problem


def open_tracer(compiler: Compiler, device: DeviceSpec) -> EmulatorExecutor:
    """The emulator as ``trace`` needs it: it counts and checks everything, and records faults instead of raising.

    Raises:
        EnvironmentProblem: NVRTC is missing.
    """
    from attnprof.compiler import nvrtc
    from attnprof.emulator.executor import EmulatorExecutor, Mode

    nvrtc.version()
    return EmulatorExecutor(compiler, device, mode=Mode.ALL, on_fault="record", find_nans=True)


def open_counter(compiler: Compiler, device: DeviceSpec) -> Counter | None:
    """What counts conflicts and bytes: the emulator, standing for the device; None where NVRTC is missing."""
    from attnprof.compiler import nvrtc
    from attnprof.emulator.counter import EmulatorCounter

    try:
        nvrtc.version()
    except EnvironmentProblem:
        return None
    return EmulatorCounter(compiler, device)


def open_timer(where: Checker, seed: int) -> Timer | None:
    """What times kernels in turns on the GPU of ``open_checker``; None where that is not a GPU."""
    if where.gpu is None:
        return None
    from attnprof.bench.together import median_times

    return partial(median_times, executor=where.gpu, seed=seed, clock=clock)


def _on_gpu(executor: GpuExecutor) -> Checker:
    return Checker(executor, f"the GPU: {executor.device.name}, compiled for {executor.arch}", None, executor)


def _on_emulator(compiler: Compiler, no_gpu: str | None) -> Checker:
    from attnprof.compiler import nvrtc
    from attnprof.emulator.executor import EmulatorExecutor
    from attnprof.emulator.finder import EmulatorFaultFinder
    from attnprof.model import devices

    nvrtc.version()  # without NVRTC there is no PTX to emulate: better said once here than by every kernel
    executor = EmulatorExecutor(compiler, devices.find(devices.DEFAULT_GPU))
    line = f"the emulator, standing for {executor.device.name} and compiled for {executor.arch}"
    finder = EmulatorFaultFinder(compiler, executor.device)
    return Checker(executor, f"{line} ({no_gpu})" if no_gpu else line, no_gpu, finder=finder)


@contextmanager
def warnings_on(environment: Environment) -> Iterator[None]:
    """Print what the layers below log as warnings (a read-only cache, an older NVRTC): once each, on stderr."""
    handler = _Lines(environment)
    logger = logging.getLogger("attnprof")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _Lines(logging.Handler):
    def __init__(self, environment: Environment) -> None:
        super().__init__(logging.WARNING)
        self._environment = environment
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if text not in self._seen:
            self._seen.add(text)
            self._environment.err(f"warning: {text}")
