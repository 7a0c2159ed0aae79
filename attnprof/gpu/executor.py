"""Plans on a CUDA device: compiled for its exact architecture, loaded through CuPy, launched within its limits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from attnprof.compiler import Compiler
from attnprof.compiler.ahead import Target
from attnprof.gpu.faults import translated
from attnprof.gpu.flush import L2Flush
from attnprof.gpu.graphs import capture_graph
from attnprof.gpu.images import Images, no_entry, resources_of
from attnprof.gpu.limits import DeviceLimits, check_launch
from attnprof.gpu.memory import Block, Copier, free_bytes
from attnprof.gpu.nvml import Sensors
from attnprof.gpu.timing import CudaQueue, Stopwatch
from attnprof.kernels.executor import Compiled, Sample
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, ScalarKind
from attnprof.model.devices import DeviceSpec
from attnprof.model.errors import ContextLost, OutOfMemory

if TYPE_CHECKING:
    from attnprof.gpu.peers import Peer
    from attnprof.kernels.executor import Array
    from attnprof.kernels.spec import Layout
    from attnprof.model.workload import Workload

# L2 size to flush where the device does not report one: larger than any so far (GB200: 126 MiB).
_L2_UNKNOWN_BYTES = 128 * 2**20


class GpuExecutor:
    """One CUDA device, current in this process. `open_executor` makes it.

    Args:
        device: its specification.
        limits: what it allows a launch.
        arch: the architecture to compile for.
        native: whether ``arch`` is the device's own; otherwise PTX is loaded and the driver compiles it.
        compiler: where images come from.
        sensors: clocks and temperatures; None without NVML.
    """

    def __init__(
        self,
        device: DeviceSpec,
        limits: DeviceLimits,
        arch: str,
        *,
        native: bool,
        compiler: Compiler,
        sensors: Sensors | None,
    ) -> None:
        import cupy

        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.sensors = sensors
        with translated("the GPU"):
            flush = L2Flush(self.stream, device.l2_bytes or _L2_UNKNOWN_BYTES, device.sm_count, self._loaded)
            self.queue = CudaQueue(self.stream, flush)
            self.copier = Copier(self.stream)
        self._device = device
        self._limits = limits
        self._arch = arch
        self._native = native
        self._compiler = compiler
        self._images = Images("cubin" if native else "ptx")
        self._lost: str | None = None

    @property
    def backend(self) -> str:
        """``gpu``."""
        return "gpu"

    @property
    def device(self) -> DeviceSpec:
        """The device it runs on."""
        return self._device

    @property
    def arch(self) -> str:
        """The architecture it compiles for, e.g. ``sm_90a``."""
        return self._arch

    def compile(self, build: Build) -> Compiled:
        """As `Executor.compile`."""
        return self._compiler.compile(build, self._arch, target=self._target)

    def ahead(self, builds: Iterable[Build]) -> AbstractContextManager[None]:
        """While the body runs, compile builds in other processes; see `attnprof.compiler.Compiler.ahead`."""
        return self._compiler.ahead((build, self._arch, self._target) for build in builds)

    @property
    def _target(self) -> Target:
        return "cubin" if self._native else "ptx"

    def prepare(self, plan: LaunchPlan) -> GpuRun:
        """As `TimedExecutor.prepare`.

        Raises:
            ContextLost: an earlier kernel took the context with it.
        """
        self._check_alive()
        compiled = {launch.build: self.compile(launch.build) for launch in plan.launches}
        with self.guard("loading"):
            kernels = [self._checked_kernel(launch, compiled[launch.build]) for launch in plan.launches]
            blocks = self._allocate(plan)
        return GpuRun(self, plan, tuple(compiled.values()), kernels, blocks)

    def peer(self, name: str, workload: Workload, layout: Layout = "bhsd") -> Peer:
        """One of `attnprof.gpu.peers.PEERS` on a workload, to be timed beside a kernel; a context manager.

        Raises:
            EnvironmentProblem, UnsupportedWorkload: on entering it; see `attnprof.gpu.peers.peer`.
        """
        from attnprof.gpu.peers import peer

        self._check_alive()
        return peer(name, workload, self, layout)

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Run the body with CUDA errors translated for ``what``, and remember a lost context."""
        try:
            with translated(what):
                yield
        except ContextLost as error:
            self._lost = error.message
            _outlive_the_process(self)
            raise

    def keep_if_lost(self, *objects: object) -> bool:
        """Whether the context is lost; if so, ``objects`` are kept from being destroyed."""
        if self._lost is not None:
            _outlive_the_process(*objects)
        return self._lost is not None

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise ContextLost(f"nothing more can run in this process: {self._lost}", "start it again")

    def _allocate(self, plan: LaunchPlan) -> dict[str, Block]:
        free = free_bytes()
        if plan.footprint_bytes > free:
            raise OutOfMemory(plan.footprint_bytes, free)
        blocks: dict[str, Block] = {}
        try:
            for tensor in plan.tensors:
                blocks[tensor.name] = Block(tensor.nbytes)
        except OutOfMemory as error:
            for block in blocks.values():
                block.free()
            raise OutOfMemory(plan.footprint_bytes, free) from error
        return blocks

    def _loaded(self, launch: Launch) -> Any:
        return self._checked_kernel(launch, self.compile(launch.build))

    def _checked_kernel(self, launch: Launch, compiled: Compiled) -> Any:
        """The loaded kernel of a launch that the device allows."""
        known = compiled.resources
        if known and launch.entry not in known:
            raise no_entry(launch, ", ".join(known))
        if known:
            # Before loading: a kernel with too much static shared memory does not even load.
            check_launch(launch, known[launch.entry], self._limits)
        kernel = self._images.kernel(launch, compiled)
        if not known:
            check_launch(launch, resources_of(kernel, launch.entry), self._limits)
        if launch.smem_bytes:
            # The attribute belongs to the function, which other prepared runs may share: never lower it. Setting it is
            # what opts in, and 48 KB must be asked for too when static shared memory comes on top.
            opted_in = int(kernel.max_dynamic_shared_size_bytes)
            kernel.max_dynamic_shared_size_bytes = max(opted_in, launch.smem_bytes)
        return kernel


class GpuRun:
    """A plan on the device: a `TimedRun`."""

    def __init__(
        self,
        executor: GpuExecutor,
        plan: LaunchPlan,
        compiled: tuple[Compiled, ...],
        kernels: list[Any],
        blocks: dict[str, Block],
    ) -> None:
        self.compiled = compiled
        self._executor = executor
        self._plan = plan
        self._blocks = blocks
        addresses = {name: block.address for name, block in blocks.items()}
        self._calls = [
            (launch.entry, partial(kernel, launch.grid, launch.block, _arguments(launch, addresses), shared_mem=smem))
            for launch, kernel in zip(plan.launches, kernels, strict=True)
            for smem in (launch.smem_bytes,)
        ]
        self.name = ", ".join(dict.fromkeys(launch.entry for launch in plan.launches))
        self._stopwatch = Stopwatch(self, executor.queue, executor.sensors)
        self._launched = False

    def write(self, tensor: str, values: Array) -> None:
        """As `Run.write`."""
        import numpy as np

        from attnprof.model.rounding import storage_dtype

        spec = self._plan.tensor(tensor)
        if values.shape != spec.shape or values.dtype != storage_dtype(spec.dtype):
            raise ValueError(f"{tensor} is {spec.dtype} {spec.shape}, not {values.dtype} {values.shape}")
        with self._executor.guard(f"uploading {tensor}"):
            self._executor.copier.upload(self._blocks[tensor].address, np.ascontiguousarray(values))

    def read(self, tensor: str) -> Array:
        """As `Run.read`."""
        import numpy as np

        from attnprof.model.rounding import storage_dtype

        spec = self._plan.tensor(tensor)
        values: Array = np.empty(spec.shape, storage_dtype(spec.dtype))
        with self._executor.guard(f"downloading {tensor}"):
            self._executor.copier.download(values, self._blocks[tensor].address)
        return values

    def poison(self) -> None:
        """As `Run.poison`."""
        from cupy.cuda import runtime

        stream = self._executor.stream
        with self._executor.guard("poisoning the outputs"):
            for tensor in self._plan.tensors:
                if tensor.role != "in":
                    runtime.memsetAsync(self._blocks[tensor.name].address, 0xFF, tensor.nbytes, stream.ptr)
            stream.synchronize()

    def launch(self) -> None:
        """As `Run.launch`. Waits after each kernel, so that a fault is named after the one that made it."""
        stream = self._executor.stream
        for entry, call in self._calls:
            with self._executor.guard(entry), stream:
                call()
                stream.synchronize()
        self._launched = True

    def time(self, launches: int, *, cold_l2: bool) -> Sample:
        """As `Timed.time`."""
        if not self._launched:
            self.launch()
        with self._executor.guard(self.name):
            return self._stopwatch.sample(launches, cold_l2=cold_l2)

    def enqueue(self) -> None:
        """As `timing.Work.enqueue`."""
        with self._executor.stream:
            for _, call in self._calls:
                call()

    def capture(self, launches: int) -> Callable[[], None] | None:
        """As `timing.Work.capture`."""
        return capture_graph(self._executor.stream, self.enqueue, launches)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor.keep_if_lost(self):
            return
        # An interrupt can leave work in flight that still uses the memory.
        with self._executor.guard(self.name):
            self._executor.stream.synchronize()
        self._stopwatch.forget()
        for block in self._blocks.values():
            block.free()


def _outlive_the_process(*objects: object) -> None:
    """Never destroy objects of a lost context: all that unloading a module there does is print a traceback.

    A reference from a module variable would not do, since the interpreter drops those before it ends.
    """
    for item in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


def _arguments(launch: Launch, addresses: dict[str, int]) -> tuple[Any, ...]:
    """The arguments as NumPy scalars of the exact width: CuPy passes a Python float as 8 bytes, an int likewise."""
    import numpy as np

    types: dict[ScalarKind, Any] = {"i32": np.int32, "i64": np.int64, "f32": np.float32}
    return tuple(
        np.uint64(addresses[arg.tensor]) if isinstance(arg, Pointer) else types[arg.kind](arg.value)
        for arg in launch.args
    )
