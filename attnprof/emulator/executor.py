"""The executor that needs no GPU: compiles to PTX and runs that on NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.checks import Checks
from attnprof.emulator.counts import Counts
from attnprof.emulator.decoder import Watch
from attnprof.emulator.errors import PtxError
from attnprof.emulator.faults import EmulatedFault, Fault, grouped
from attnprof.emulator.launch import execute, pack_arguments
from attnprof.emulator.limits import check_launch
from attnprof.emulator.link import Program, link
from attnprof.emulator.memory import FIRST_TENSOR_SLOT, POISON, Allocation, GlobalSpace, slot_base
from attnprof.emulator.parser import parse
from attnprof.emulator.program import Module, function_address
from attnprof.emulator.shadow import SHADOW_BYTES, granules_of
from attnprof.emulator.trace import KernelTrace, Trace, kernel_trace
from attnprof.emulator.wave import Geometry
from attnprof.kernels.executor import Compiled
from attnprof.kernels.host import available_bytes
from attnprof.kernels.plan import Build, Launch, LaunchPlan, TensorSpec
from attnprof.model.devices import DeviceSpec
from attnprof.model.errors import OutOfMemory, UsageError
from attnprof.model.rounding import storage_dtype

if TYPE_CHECKING:
    Array = NDArray[np.generic]

# Steps a wave may take: 1024 × 1024 attention takes some 10^5.
DEFAULT_BUDGET = 5_000_000


class Mode(StrEnum):
    """What a run observes besides its results; each costs time.

    ``FAST``: nothing. Bad addresses, deadlocks and traps are found all the same.
    ``COUNTS``: instructions, memory traffic, bank conflicts, matrix FLOPs.
    ``CHECKS``: reads of memory that nothing wrote, data races, unwaited copies, divergent barriers.
    ``ALL``: both.
    """

    FAST = "fast"
    COUNTS = "counts"
    CHECKS = "checks"
    ALL = "all"

    @property
    def counts(self) -> bool:
        """Whether it counts."""
        return self in (Mode.COUNTS, Mode.ALL)

    @property
    def checks(self) -> bool:
        """Whether it checks."""
        return self in (Mode.CHECKS, Mode.ALL)


class CompilesToPtx(Protocol):
    """What the executor needs of the compiler."""

    def compile(self, build: Build, arch: str, *, target: Literal["cubin", "ptx"] = "cubin") -> Compiled:
        """Compile, or take from the cache."""
        ...


@lru_cache(maxsize=64)
def _parsed(image: bytes) -> Module:
    return parse(image.rstrip(b"\0").decode("utf-8", errors="replace"))


@lru_cache(maxsize=256)
def _linked(image: bytes, entry: str, watch: Watch) -> Program:
    return link(_parsed(image), entry, watch)


def load_program(image: bytes, entry: str, watch: Watch) -> Program:
    """A kernel of a PTX image, decoded; kept for the next time.

    Raises:
        PtxError: the image cannot be read or has no such kernel.
    """
    try:
        return _linked(image, entry, watch)
    except RecursionError:
        raise PtxError("the PTX is nested too deeply") from None


class EmulatorExecutor:
    """Runs plans on the CPU, standing for a device.

    Args:
        compiler: compiles builds to PTX.
        device: the device it stands for: its shared memory and number of SMs are the limits.
        arch: the architecture to compile for; the emulator executes the instructions of ``sm_80``.
        mode: what to observe besides the results.
        on_fault: ``raise`` a KernelFault from ``launch``, or ``record`` faults in the run's trace only.
        find_nans: with checks, also report the first instruction that makes a NaN out of numbers.
        budget: steps that one wave of blocks may take before it counts as endless.
    """

    def __init__(
        self,
        compiler: CompilesToPtx,
        device: DeviceSpec,
        *,
        arch: str = "sm_80",
        mode: Mode = Mode.FAST,
        on_fault: Literal["raise", "record"] = "raise",
        find_nans: bool = False,
        budget: int = DEFAULT_BUDGET,
    ) -> None:
        self._compiler = compiler
        self._device = device
        self._arch = arch
        self.mode = mode
        self.on_fault = on_fault
        self.find_nans = find_nans
        self.budget = budget

    @property
    def backend(self) -> str:
        """``emulator``."""
        return "emulator"

    @property
    def device(self) -> DeviceSpec:
        """The device it stands for."""
        return self._device

    @property
    def arch(self) -> str:
        """The architecture it compiles for."""
        return self._arch

    def compile(self, build: Build) -> Compiled:
        """Compile to PTX, or take it from the cache.

        Raises:
            CompileError: the source was refused.
            EnvironmentProblem: the compiler or a header is missing.
        """
        return self._compiler.compile(build, self._arch, target="ptx")

    def prepare(self, plan: LaunchPlan) -> EmulatedRun:
        """Compile and decode the plan's code, check every launch limit, allocate its tensors.

        Raises:
            CompileError, EnvironmentProblem: as for compile.
            PtxError: an instruction that the emulator does not execute.
            LaunchLimitError: a launch asks for more than the device has.
            OutOfMemory: the tensors do not fit the machine's memory.
        """
        watch = Watch(self.mode.counts, self.mode.checks, self.mode.checks and self.find_nans)
        builds = {launch.build: self.compile(launch.build) for launch in plan.launches}
        programs = [load_program(builds[launch.build].image, launch.entry, watch) for launch in plan.launches]
        for launch, program in zip(plan.launches, programs, strict=True):
            check_launch(launch, program, self._device)
        self._check_memory(plan, programs)
        launches: list[_Loaded] = []
        tensors = {
            tensor.name: Allocation(tensor.name, "global", tensor.nbytes, FIRST_TENSOR_SLOT + at)
            for at, tensor in enumerate(plan.tensors)
        }
        addresses = {name: allocation.base for name, allocation in tensors.items()}
        modules: dict[bytes, dict[int, Allocation]] = {}
        for launch, program in zip(plan.launches, programs, strict=True):
            image = builds[launch.build].image
            if image not in modules:
                modules[image] = _module_variables(program)
            memory = GlobalSpace({**modules[image], **{_slot(a): a for a in tensors.values()}})
            geometry = Geometry(launch.grid, launch.block, launch.smem_bytes, self._device.sm_count)
            launches.append(_Loaded(launch, program, geometry, memory, pack_arguments(program, launch.args, addresses)))
        return EmulatedRun(self, plan, tensors, launches, tuple(builds.values()))

    def _check_memory(self, plan: LaunchPlan, programs: list[Program]) -> None:
        """Tensors and the shadow memory of what watches them must fit what the machine has free."""
        free = available_bytes()
        granule = min((granules_of(program)["global"] for program in programs), default=16)
        shadows = 2 * self.mode.counts + (1 + SHADOW_BYTES / granule) * self.mode.checks
        needed = int(plan.footprint_bytes * (1 + shadows))
        if free is not None and needed > free:
            raise OutOfMemory(needed, free)


@dataclass(slots=True)
class _Loaded:
    launch: Launch
    program: Program
    geometry: Geometry
    memory: GlobalSpace
    param_bytes: bytes


def _slot(allocation: Allocation) -> int:
    return allocation.base >> 40


def _module_variables(program: Program) -> dict[int, Allocation]:
    """The module's .global and .const variables with their initial values."""
    layout = program.layout
    slots: dict[int, Allocation] = {}
    for name, slot in layout.global_slots.items():
        variable = layout.module.variables[name]
        allocation = Allocation(
            f"{variable.space} variable {name!r}",
            variable.space,
            variable.size,
            slot,
            read_only=variable.space == "const",
        )
        initial = bytearray(variable.initial or bytes(variable.size))
        for offset, symbol in variable.addresses:
            if symbol in layout.global_slots:
                base = slot_base(layout.global_slots[symbol])
            elif symbol in layout.module.functions:
                base = function_address(layout.module, symbol)
            else:
                raise PtxError(f"{name} holds the address of {symbol}, which is not defined")
            base += int.from_bytes(initial[offset : offset + 8], "little")
            initial[offset : offset + 8] = base.to_bytes(8, "little")
        allocation.data[: variable.size] = memoryview(bytes(initial))[: variable.size]
        allocation.initialised = True
        slots[slot] = allocation
    return slots


def traced(plan: LaunchPlan, inputs: Mapping[str, Array], executor: EmulatorExecutor) -> Trace:
    """What one run on these inputs left, its outputs poisoned before it.

    Raises:
        AttnprofError: as for `EmulatorExecutor.prepare`, and a KernelFault unless the executor records faults.
    """
    with executor.prepare(plan) as run:
        for name, values in inputs.items():
            run.write(name, values)
        run.poison()
        run.launch()
        if run.trace is None:
            raise RuntimeError("the emulator left no trace")
        return run.trace


class EmulatedRun:
    """A plan with its memory allocated and its code decoded.

    After a launch ``trace`` holds what was observed; it is ``None`` before.
    """

    def __init__(
        self,
        executor: EmulatorExecutor,
        plan: LaunchPlan,
        tensors: Mapping[str, Allocation],
        launches: list[_Loaded],
        compiled: tuple[Compiled, ...],
    ) -> None:
        self._executor = executor
        self._plan = plan
        self._tensors = dict(tensors)
        self._launches = launches
        self.compiled = compiled
        self.trace: Trace | None = None

    def write(self, tensor: str, values: Array) -> None:
        """Upload. ``values`` has the tensor's shape in storage form."""
        spec, allocation = self._find(tensor)
        array = np.ascontiguousarray(values)
        if array.shape != spec.shape or array.dtype != storage_dtype(spec.dtype):
            raise UsageError(
                f"tensor {tensor!r} is {spec.shape} {storage_dtype(spec.dtype)}, not {array.shape} {array.dtype}"
            )
        allocation.data[: spec.nbytes] = array.reshape(-1).view(np.uint8)
        allocation.initialised = True

    def read(self, tensor: str) -> Array:
        """Download, in storage form, with the tensor's shape."""
        spec, allocation = self._find(tensor)
        return allocation.data[: spec.nbytes].copy().view(storage_dtype(spec.dtype)).reshape(spec.shape)

    def poison(self) -> None:
        """Fill every output and scratch tensor with 0xFF bytes: NaN in every element type."""
        for spec in self._plan.tensors:
            if spec.role != "in":
                self._tensors[spec.name].data[:] = POISON
                self._tensors[spec.name].initialised = False

    def launch(self) -> None:
        """Run all launches once, in order. Leaves what was observed in ``trace``.

        Raises:
            EmulatedFault: a KernelFault that names kernel, source line, block, thread and address.
        """
        executor = self._executor
        kernels: list[KernelTrace] = []
        faults: list[Fault] = []
        printed: list[str] = []
        allocations = list(self._tensors.values())
        stopped = False
        if executor.mode.checks:
            for allocation in allocations:
                allocation.watch_writes()
        for loaded in self._launches:
            counts = Counts(loaded.program, allocations) if executor.mode.counts else None
            checks = Checks(loaded.program, loaded.geometry, loaded.memory.writable) if executor.mode.checks else None
            try:
                execute(
                    loaded.program,
                    loaded.geometry,
                    loaded.memory,
                    loaded.param_bytes,
                    budget=executor.budget,
                    counts=counts,
                    checks=checks,
                    printed=printed,
                )
            except EmulatedFault as error:
                faults.append(error.fault)
                stopped = True
            if checks is not None:
                faults += checks.faults
            if counts is not None:
                kernels.append(kernel_trace(loaded.launch.stage, loaded.program, loaded.geometry, counts))
            if stopped:
                break
        self.trace = Trace(tuple(kernels), grouped(faults), "".join(printed), stopped)
        if faults and executor.on_fault == "raise":
            raise EmulatedFault(faults[0])

    def _find(self, name: str) -> tuple[TensorSpec, Allocation]:
        if name not in self._tensors:
            raise UsageError(f"the plan has no tensor {name!r}", f"it has: {', '.join(self._tensors)}")
        return self._plan.tensor(name), self._tensors[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tensors.clear()
        self._launches.clear()
