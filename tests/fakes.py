"""A device and a clock that exist in the test alone: what runs on them computes with NumPy and takes scripted times.

`FakeExecutor` runs any plan whose tensors are named q, k, v, o and perhaps lse; everything that can go wrong on a
real device can be scripted: times, clocks, throttling, faults, a lost context, too little memory, wrong results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from attnprof.kernels.executor import Compiled, EntryResources, Sample
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand, LedgerLine, Schedule, Stage
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import OutOfMemory
from attnprof.model.reference import attention_rounded
from attnprof.model.rounding import decode, encode, storage_dtype
from attnprof.model.workload import Pass, Workload

Arrays = dict[str, np.ndarray]


class FakeClock:
    """Host time that moves only when something takes time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class FakeTimed:
    """Something with scripted times: a peer, a copy, a matrix product.

    ``time_s`` is the time of one launch, or a function of the index of the call; ``overhead_s`` is host time that each
    launch takes besides (a cache flush).
    """

    time_s: float | Callable[[int], float] = 1e-3
    clock: FakeClock = field(default_factory=FakeClock)
    sm_clock_hz: Callable[[int], int | None] = lambda _: 1_980_000_000
    throttle_reasons: Callable[[int], tuple[str, ...]] = lambda _: ()
    on_time: Callable[[int], None] = lambda _: None
    calls: list[tuple[int, bool]] = field(default_factory=list)
    overhead_s: float = 0.0

    def time(self, launches: int, *, cold_l2: bool) -> Sample:
        index = len(self.calls)
        self.calls.append((launches, cold_l2))
        self.on_time(index)
        seconds = self.time_s(index) if callable(self.time_s) else self.time_s
        self.clock.advance(launches * (seconds + self.overhead_s) + 1e-5)
        return Sample(
            time_s=seconds,
            launches=launches,
            sm_clock_hz=self.sm_clock_hz(index),
            power_w=500.0,
            temperature_c=45.0,
            throttle_reasons=self.throttle_reasons(index),
        )


def opener(timed: FakeTimed) -> Callable[..., Any]:
    """A peer factory (or the ``open`` of a rate probe) that opens this, whatever the workload."""

    @contextmanager
    def open_(*_: object) -> Iterator[FakeTimed]:
        yield timed

    return open_


class FakeRun(FakeTimed):
    """A prepared plan on the fake device."""

    def __init__(self, executor: FakeExecutor, plan: LaunchPlan, compiled: tuple[Compiled, ...]) -> None:
        super().__init__(
            time_s=lambda index: executor.time_s(plan, index),
            clock=executor.clock,
            sm_clock_hz=executor.sm_clock_hz,
            throttle_reasons=executor.throttle_reasons,
            on_time=lambda index: executor.on_time(plan, index),
        )
        self.compiled = compiled
        self.launches = 0
        self._executor = executor
        self._plan = plan
        self._memory = {tensor.name: storage(tensor) for tensor in plan.tensors}

    def write(self, tensor: str, values: np.ndarray) -> None:
        target = self._memory[tensor]
        assert values.shape == target.shape
        assert values.dtype == target.dtype
        self._memory[tensor] = values.copy()

    def read(self, tensor: str) -> np.ndarray:
        return self._memory[tensor].copy()

    def poison(self) -> None:
        for tensor in self._plan.tensors:
            if tensor.role != "in":
                self._memory[tensor.name].view(np.uint8).fill(0xFF)

    def launch(self) -> None:
        self._executor.on_launch(self._plan)
        self.launches += 1
        self._memory.update(self._executor.compute(self._plan, self._memory))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.open_runs -= 1


def storage(tensor: TensorSpec) -> np.ndarray:
    """Zeros of a tensor's shape in storage form."""
    return np.zeros(tensor.shape, dtype=storage_dtype(tensor.dtype))


def is_causal(plan: LaunchPlan) -> bool:
    """Whether a plan masks causally: by a macro of its builds, or by an ``int causal`` of its first entry point."""
    launch = plan.launches[0]
    macro = dict(launch.build.defines).get("CAUSAL")
    if macro is not None:
        return macro == "1"
    source = re.sub(r"//.*", "", launch.build.file.read_text(encoding="utf-8"))
    declared = re.search(rf"\b{launch.entry}\s*\(([^)]*)\)", source)
    names = [parameter.split()[-1] for parameter in declared[1].split(",")] if declared else []
    argument = launch.args[names.index("causal")] if "causal" in names else None
    return isinstance(argument, Scalar) and bool(argument.value)


def scale_of(plan: LaunchPlan) -> float:
    """The softmax scale: the fake kernel's only scalar. Real kernels' arguments are not known: the usual scale."""
    launch = plan.launches[0]
    last = launch.args[-1]
    if launch.entry == "attention" and isinstance(last, Scalar):
        return last.value
    return plan.tensor("q").shape[-1] ** -0.5


def attend(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> Arrays:
    """Attention as a kernel that rounds P and O computes it: what ``FakeExecutor`` does unless told otherwise."""
    dtype = plan.tensor("q").dtype
    q, k, v = (decode(memory[name], dtype) for name in ("q", "k", "v"))
    o, lse = attention_rounded(
        q, k, v, causal=is_causal(plan), scale=scale_of(plan), rounds=("p", "o"), dtype=dtype, normalised_p=False
    )
    outputs: Arrays = {"o": encode(o, dtype)}
    if any(tensor.name == "lse" for tensor in plan.tensors):
        outputs["lse"] = lse.astype(np.float32)
    return outputs


@dataclass
class FakeExecutor:
    """A `TimedExecutor` without hardware.

    Attributes:
        time_s: seconds a launch of a plan takes, by plan and index of the timing call.
        compute: the outputs of a plan, from what is in memory.
        memory_bytes: what the device has free; a bigger plan is out of memory.
        on_prepare, on_launch, on_time: called first; raise to script a failure (or a Ctrl-C).
        open_runs: runs that were prepared and not left again.
    """

    device: DeviceSpec = field(default_factory=lambda: find("H200"))
    arch: str = "sm_90a"
    backend: str = "gpu"
    clock: FakeClock = field(default_factory=FakeClock)
    time_s: Callable[[LaunchPlan, int], float] = lambda _plan, _index: 1e-3
    sm_clock_hz: Callable[[int], int | None] = lambda _: 1_980_000_000
    throttle_reasons: Callable[[int], tuple[str, ...]] = lambda _: ()
    compute: Callable[[LaunchPlan, Mapping[str, np.ndarray]], Arrays] = attend
    memory_bytes: int = 139 * 2**30
    on_prepare: Callable[[LaunchPlan], None] = lambda _: None
    on_launch: Callable[[LaunchPlan], None] = lambda _: None
    on_time: Callable[[LaunchPlan, int], None] = lambda _plan, _index: None
    compile_time_s: float = 1.5
    open_runs: int = 0
    _cache: set[tuple[Build, str]] = field(default_factory=set)

    def compile(self, build: Build, arch: str | None = None) -> Compiled:
        """Also serves as a compiler: ``compile(build, arch)``."""
        key = (build, arch or self.arch)
        cached = key in self._cache
        self._cache.add(key)
        return fake_compiled(build, key[1], compile_time_s=0.0 if cached else self.compile_time_s, cached=cached)

    def ahead(self, builds: Sequence[Build]) -> AbstractContextManager[None]:
        """Nothing to gain."""
        return nullcontext()

    def prepare(self, plan: LaunchPlan) -> FakeRun:
        self.on_prepare(plan)
        builds = tuple(dict.fromkeys(launch.build for launch in plan.launches))
        compiled = tuple(self.compile(build) for build in builds)
        if plan.footprint_bytes > self.memory_bytes:
            raise OutOfMemory(plan.footprint_bytes, self.memory_bytes)
        self.open_runs += 1
        return FakeRun(self, plan, compiled)


class ReusingExecutor(FakeExecutor):
    """A device whose memory is as the last right result left it, and a kernel that writes nothing there.

    Args:
        writes: whether a plan's kernel does its work.
        changes: as of `FakeExecutor`.
    """

    def __init__(self, writes: Callable[[LaunchPlan], bool], **changes: Any) -> None:
        super().__init__(compute=self._attend_or_not, **changes)
        self._writes = writes
        self._left: Arrays = {}

    def _attend_or_not(self, plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> Arrays:
        if not self._writes(plan):
            return {}
        self._left = attend(plan, memory)
        return self._left

    def prepare(self, plan: LaunchPlan) -> FakeRun:
        run = super().prepare(plan)
        for name, values in self._left.items():
            run.write(name, values)
        return run


def fake_compiled(
    build: Build,
    arch: str,
    *,
    registers: int = 96,
    spill_bytes: int = 0,
    static_smem_bytes: int = 0,
    compile_time_s: float = 1.5,
    cached: bool = False,
) -> Compiled:
    """A finished compilation whose entry points are those that the source declares, all with the same resources."""
    source = build.file.read_text(encoding="utf-8") if build.file.is_file() else ""
    entries = re.findall(r'extern "C"[^;{]*?\b(\w+)\s*\((?=[^()]*\)\s*\{)', source) or ["attention"]
    resources = {
        entry: EntryResources(entry, registers, spill_bytes, spill_bytes, 0, static_smem_bytes) for entry in entries
    }
    return Compiled(build, arch, b"", resources, compile_time_s, cached, "")


def fake_spec(name: str = "fake", **changes: Any) -> KernelSpec:
    """A one-launch attention kernel that exists on the fake device alone; ``changes`` replace fields."""
    file = Path("/nowhere") / f"{name}.cu"
    fields: dict[str, Any] = {
        "name": name,
        "rung": 0,
        "title": "a fake",
        "idea": "none",
        "file": file,
        "direction": Pass.FWD,
        "arches": ("sm_80", "sm_90a"),
        "demand": fake_demand,
        "unsupported": lambda workload: None if workload.head_dim in (64, 128) else "head_dim must be 64 or 128",
        "plan": lambda workload, device: fake_plan(file, workload),
        "builds": lambda device: tuple(
            fake_build(file, dtype, causal) for dtype in (Dtype.FP16, Dtype.BF16) for causal in (0, 1)
        ),
        "rounds": ("p", "o"),
    }
    return KernelSpec(**(fields | changes))


def fake_build(file: Path, dtype: Dtype, causal: int | bool) -> Build:
    return Build(file, (("ELEMENT", str(dtype)), ("CAUSAL", str(int(causal)))))


def fake_plan(file: Path, workload: Workload) -> LaunchPlan:
    w = workload
    q_shape = (w.batch, w.heads, w.seq_q, w.head_dim)
    kv_shape = (w.batch, w.kv_heads, w.seq_kv, w.head_dim)
    tensors = (
        TensorSpec("q", q_shape, w.dtype, "in"),
        TensorSpec("k", kv_shape, w.dtype, "in"),
        TensorSpec("v", kv_shape, w.dtype, "in"),
        TensorSpec("o", q_shape, w.dtype, "out"),
        TensorSpec("lse", q_shape[:-1], Dtype.FP32, "out"),
    )
    launch = Launch(
        stage="attention",
        build=fake_build(file, w.dtype, w.causal),
        entry="attention",
        grid=(-(-w.seq_q // 64), w.heads, w.batch),
        block=(128, 1, 1),
        smem_bytes=49152,
        args=(*(Pointer(tensor.name) for tensor in tensors), Scalar("f32", w.scale)),
    )
    return LaunchPlan(tensors, (launch,))


def fake_demand(workload: Workload, device: DeviceSpec) -> Demand:
    """Q, K and V read once, O written once: the ledger of a perfect one-launch kernel."""
    w, e = workload, workload.dtype.itemsize
    ledger: Sequence[tuple[str, Any, int]] = (
        ("Q", "read", w.q_elements),
        ("K", "read", w.kv_elements),
        ("V", "read", w.kv_elements),
        ("O", "write", w.q_elements),
    )
    blocks = -(-w.seq_q // 64) * w.heads * w.batch
    stage = Stage(
        "attention",
        tuple(LedgerLine("attention", tensor, direction, e * count) for tensor, direction, count in ledger),
        tensor_flops=w.flops,
        exponentials=w.pairs,
        schedule=Schedule(blocks, 4),
    )
    return Demand((stage,), footprint_bytes=e * 2 * (w.q_elements + w.kv_elements))
