"""The protocol between those who ask for a kernel to run and those who run it.

The GPU (`attnprof.gpu`), the emulator (`attnprof.emulator`) and the tests' fakes implement it; `bench` and `check`
know nothing else about hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.model.devices import DeviceSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class EntryResources:
    """What ptxas reports for one entry point; bytes are per thread but for ``static_smem_bytes`` (per block)."""

    entry: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A finished compilation. ``compile_time_s`` is 0.0 when the disk cache had it (``cached``)."""

    build: Build
    arch: str
    image: bytes
    resources: Mapping[str, EntryResources]
    compile_time_s: float
    cached: bool
    log: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed sample: ``launches`` runs of the whole plan took ``time_s`` seconds each on average.

    The device readings were taken while it ran; ``None`` where the device does not report one.
    """

    time_s: float
    launches: int
    sm_clock_hz: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """What one run of a plan did, counted exactly.

    Attributes:
        bank_conflicts: passes of shared-memory requests beyond those that they need.
        shared_wavefronts: passes in all.
        tensor_bytes: bytes of all tensors that were read at least once, and those that were written: the traffic that
            no cache can save.
        global_requests: warp-wide requests to global memory.
        global_sectors: 32-byte sectors that they touched.
        global_bytes: bytes that their lanes asked for.
        barriers: barriers passed, one a block.
        exponentials: evaluations, one a lane.
    """

    bank_conflicts: int
    shared_wavefronts: int
    tensor_bytes: int
    global_requests: int
    global_sectors: int
    global_bytes: int
    barriers: int
    exponentials: int


class Counter(Protocol):
    """Runs plans to count what they do; a CPU will do."""

    def count(self, plan: LaunchPlan, inputs: Mapping[str, Array]) -> Counted:
        """Run once on these inputs, in storage form.

        Raises:
            CompileError, EnvironmentProblem: as for `Executor.compile`.
            LaunchLimitError: a launch asks for more than the device has.
            KernelFault: the kernel crashed.
        """
        ...


class FaultFinder(Protocol):
    """Runs plans and watches every access, for what a right result can hide."""

    def find(self, plan: LaunchPlan, inputs: Mapping[str, Array]) -> tuple[str, ...]:
        """Every fault of one run on these inputs, in storage form, in words with its source line.

        What is the same kind of fault at the same line is one.

        Raises:
            CompileError, EnvironmentProblem: as for `Executor.compile`.
            LaunchLimitError: a launch asks for more than the device has.
            OutOfMemory: the tensors, and what watches them, do not fit.
        """
        ...


class Timed(Protocol):
    """Something that can be timed on the device's own clock."""

    def time(self, launches: int, *, cold_l2: bool) -> Sample:
        """Run ``launches`` times and return the mean time of one.

        With ``cold_l2`` every launch finds an L2 cache flushed of its data; the flush is not counted.

        Raises:
            KernelFault: the kernel crashed; ContextLost if nothing more can run in this process.
        """
        ...


class Run(Protocol):
    """A plan with its memory allocated and its code loaded. A context manager: leaving it frees the memory."""

    compiled: tuple[Compiled, ...]

    def write(self, tensor: str, values: Array) -> None:
        """Upload. ``values`` has the tensor's shape in storage form (see `attnprof.model.rounding`)."""
        ...

    def read(self, tensor: str) -> Array:
        """Download, in storage form, with the tensor's shape."""
        ...

    def poison(self) -> None:
        """Fill every output and scratch tensor with 0xFF bytes: NaN in every element type."""
        ...

    def launch(self) -> None:
        """Run all launches once, in order, and wait.

        Raises:
            KernelFault: the kernel crashed; ContextLost if nothing more can run in this process.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TimedRun(Run, Timed, Protocol):
    """A run that can also be timed: what a GPU gives."""


class Executor(Protocol):
    """Compiles and runs plans on one device."""

    @property
    def backend(self) -> str:
        """``gpu`` or ``emulator``."""
        ...

    @property
    def device(self) -> DeviceSpec:
        """The device it runs on, or the one it stands for."""
        ...

    @property
    def arch(self) -> str:
        """The architecture it compiles for, e.g. ``sm_90a``."""
        ...

    def compile(self, build: Build) -> Compiled:
        """Compile, or take from the cache.

        Raises:
            CompileError: the source was refused.
            EnvironmentProblem: the compiler or a header is missing.
        """
        ...

    def prepare(self, plan: LaunchPlan) -> Run:
        """Compile and load the plan's code, check every launch limit, allocate its tensors.

        Raises:
            CompileError, EnvironmentProblem: as for compile.
            LaunchLimitError: a launch asks for more than the device has.
            OutOfMemory: the tensors do not fit.
        """
        ...


class TimedExecutor(Executor, Protocol):
    """An executor whose runs can be timed."""

    def prepare(self, plan: LaunchPlan) -> TimedRun:
        """As `Executor.prepare`, with a run that can be timed."""
        ...
