"""A stand-in for CuPy: device memory is host memory, kernels are Python functions, faults surface at the next wait."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

LAUNCH_MS = 0.010
TOTAL_BYTES = 64 * 2**20


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class Pinned(ctypes.c_uint8 * (32 * 2**20)):  # type: ignore[misc]
    @property
    def ptr(self) -> int:
        return ctypes.addressof(self)


@dataclass
class Stream:
    gpu: FakeGpu
    ptr: int = 7
    captured: list[Callable[[], None]] | None = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *ignored: object) -> None:
        return None

    def synchronize(self) -> None:
        self.gpu.check()

    def begin_capture(self) -> None:
        if not self.gpu.capturable:
            raise CudaError(900)
        self.captured = []

    def end_capture(self) -> Any:
        calls, self.captured = self.captured, None
        if calls is None:
            raise CudaError(901)
        return SimpleNamespace(upload=lambda stream: None, launch=lambda stream: [call() for call in calls])


class Event:
    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.clock_ms = 0.0
        # The device is always behind the host here: nothing has passed before it is waited for.
        self.done = False

    def record(self, stream: Stream) -> None:
        self.clock_ms = self.gpu.clock_ms

    def synchronize(self) -> None:
        self.gpu.check()


@dataclass
class Kernel:
    gpu: FakeGpu
    entry: str
    num_regs: int = 16
    local_size_bytes: int = 0
    shared_size_bytes: int = 0
    max_dynamic_shared_size_bytes: int = 48 * 1024

    def __call__(self, grid: Any, block: Any, args: tuple[Any, ...], *, shared_mem: int = 0) -> None:
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise CudaError(1)
        capturing = self.gpu.stream.captured if self.gpu.stream else None
        if capturing is not None:
            capturing.append(lambda: self.gpu.run(self.entry, args))
        else:
            self.gpu.run(self.entry, args)


@dataclass
class FakeGpu:
    """What the stand-in did and holds."""

    behaviour: dict[str, Callable[..., None]] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    launched: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    allocated: dict[int, np.ndarray] = field(default_factory=dict)
    kernels: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    clock_ms: float = 0.0
    pending: int | None = None
    capturable: bool = True
    lost: bool = False
    stream: Stream | None = None

    def check(self) -> None:
        if self.pending is not None:
            self.lost = True
            raise CudaError(self.pending)

    def run(self, entry: str, args: tuple[Any, ...]) -> None:
        self.launched.append((entry, args))
        self.clock_ms += LAUNCH_MS
        if entry in self.faults:
            self.pending = self.faults[entry]
        elif entry in self.behaviour:
            self.behaviour[entry](*args)

    @property
    def used(self) -> int:
        return sum(block.nbytes for block in self.allocated.values())

    def malloc(self, size: int) -> int:
        if self.used + size > TOTAL_BYTES:
            raise CudaError(2)
        block = np.zeros(size, np.uint8)
        self.allocated[block.ctypes.data] = block
        return int(block.ctypes.data)

    def free(self, address: int) -> None:
        if self.lost:
            raise CudaError(self.pending or 700)
        del self.allocated[address]

    def view(self, address: int, dtype: Any) -> np.ndarray:
        return self.allocated[int(address)].view(dtype)

    def get_function(self, path: str, entry: str) -> Kernel:
        assert Path(path).read_bytes()
        return self.kernels.setdefault((path, entry), Kernel(self, entry))


def install(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Put the stand-in in place of CuPy."""
    gpu = FakeGpu()

    def stream(*, non_blocking: bool) -> Stream:
        gpu.stream = Stream(gpu)
        return gpu.stream

    def move(target: int, source: int, size: int, kind: int, stream: int = 0) -> None:
        ctypes.memmove(target, source, size)

    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        malloc=gpu.malloc,
        free=gpu.free,
        memGetInfo=lambda: (TOTAL_BYTES - gpu.used, TOTAL_BYTES),
        memcpyAsync=move,
        memcpy=move,
        memsetAsync=lambda address, value, size, stream: ctypes.memset(address, value, size) and None,
        deviceSynchronize=gpu.check,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
    )
    driver = SimpleNamespace(CUDADriverError=CudaError)
    cuda = SimpleNamespace(
        runtime=runtime,
        driver=driver,
        Stream=stream,
        Event=lambda disable_timing=False: Event(gpu),
        alloc_pinned_memory=lambda size: Pinned(),
        get_elapsed_time=lambda start, stop: stop.clock_ms - start.clock_ms,
    )
    cupy = SimpleNamespace(
        cuda=cuda,
        RawModule=lambda path: SimpleNamespace(get_function=lambda entry: gpu.get_function(path, entry)),
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda)):
        monkeypatch.setitem(__import__("sys").modules, name, module)
    return gpu
