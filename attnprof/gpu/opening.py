"""Opening a device: what it is, what it allows, what to compile for, or one line on why there is none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprof.compiler import Compiler, nvrtc
from attnprof.compiler.arch import exact_arch, needed_cuda, newest_supported, parse_arch
from attnprof.gpu.discovery import Discovery, Gpu, discover
from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.limits import DeviceLimits
from attnprof.gpu.nvml import Sensors, open_nvml
from attnprof.model.devices import DeviceSpec, from_facts
from attnprof.model.errors import EnvironmentProblem

PREDICT_HINT = "without a GPU: attnprof roofline --gpu NAME predicts, attnprof check --backend emulator verifies"

_log = logging.getLogger(__name__)


def open_executor(index: int | None = None, *, cache_dir: Path | None = None) -> GpuExecutor:
    """Make a CUDA device current and ready to run plans.

    Args:
        index: CUDA's number of the device, after CUDA_VISIBLE_DEVICES; None takes the first.
        cache_dir: the compiler's disk cache; None takes the usual one.

    Raises:
        EnvironmentProblem: there is no GPU, no driver, no CuPy or no NVRTC; the message says which.
    """
    found = discover()
    runtime = _runtime(found)
    number = _device_number(runtime, index, found)
    capability = (_attribute(runtime, _MAJOR, number), _attribute(runtime, _MINOR, number))
    target = choose_target(capability, nvrtc.supported_arches())
    if not target.native:
        version = ".".join(map(str, nvrtc.version()))
        _log.warning(
            "NVRTC %s does not know this GPU (%s needs the NVRTC of %s): compiling PTX for %s",
            version,
            exact_arch(capability),
            needed_cuda(exact_arch(capability)),
            target.arch,
        )
    import cupy

    cupy.cuda.Device(number).use()
    bus_id = str(runtime.deviceGetPCIBusId(number))
    return GpuExecutor(
        device_spec(runtime, number, capability, match_bus_id(found, bus_id)),
        DeviceLimits(
            max_threads_per_block=_attribute(runtime, _THREADS_PER_BLOCK, number),
            max_block=_extent(runtime, _BLOCK_X, number),
            max_grid=_extent(runtime, _GRID_X, number),
            smem_per_block_bytes=_attribute(runtime, _SMEM_PER_BLOCK_OPTIN, number),
            registers_per_block=_attribute(runtime, _REGISTERS_PER_BLOCK, number),
        ),
        target.arch,
        native=target.native,
        compiler=Compiler(cache_dir),
        sensors=_sensors(bus_id),
    )


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for; ``native`` unless the driver must compile PTX for a GPU newer than NVRTC."""

    arch: str
    native: bool


def choose_target(compute_capability: tuple[int, int], supported: tuple[int, ...]) -> Target:
    """The exact architecture where NVRTC knows it, else PTX of the newest one it knows.

    Raises:
        EnvironmentProblem: the GPU is older than all that this NVRTC knows.
    """
    exact = exact_arch(compute_capability)
    if parse_arch(exact)[0] in supported:
        return Target(exact, native=True)
    older = newest_supported(compute_capability, supported)
    if older is None:
        raise EnvironmentProblem(
            f"this GPU ({exact}) is older than NVRTC supports: it needs the NVRTC of {needed_cuda(exact)}",
            "pip install 'attnprof[cuda12]'",
        )
    return Target(older, native=False)


def device_spec(runtime: Any, number: int, compute_capability: tuple[int, int], gpu: Gpu | None) -> DeviceSpec:
    """The specification of a CUDA device: CUDA's figures, and NVML's for the clocks."""
    spec = gpu.spec if gpu is not None else None
    raw_name = runtime.getDeviceProperties(number)["name"]
    name = raw_name.decode("utf-8", "replace") if isinstance(raw_name, bytes) else str(raw_name)
    return from_facts(
        name,
        compute_capability,
        sm_count=_attribute(runtime, _SM_COUNT, number),
        memory_clock_hz=spec.memory_clock_hz if spec else None,
        memory_bus_bits=_attribute(runtime, _BUS_BITS, number),
        max_clock_hz=spec.max_clock_hz if spec else None,
        hbm_bytes=spec.hbm_bytes if spec else None,
        l2_bytes=_attribute(runtime, _L2_BYTES, number),
        smem_per_sm_bytes=_attribute(runtime, _SMEM_PER_SM, number),
        smem_per_block_bytes=_attribute(runtime, _SMEM_PER_BLOCK_OPTIN, number),
    )


def match_bus_id(found: Discovery, bus_id: str) -> Gpu | None:
    """NVML's record of the GPU that CUDA calls ``bus_id``; the two write the domain with 8 and with 4 digits."""
    wanted = _bus_id(bus_id)
    return next((gpu for gpu in found.gpus if gpu.pci_bus_id and _bus_id(gpu.pci_bus_id) == wanted), None)


def _bus_id(text: str) -> tuple[int, str]:
    domain, _, rest = text.lower().partition(":")
    return int(domain, 16), rest


# cudaDeviceAttr numbers (driver_types.h), which CuPy's deviceGetAttribute takes.
_THREADS_PER_BLOCK = 1
_BLOCK_X = 2
_GRID_X = 5
_REGISTERS_PER_BLOCK = 12
_SM_COUNT = 16
_BUS_BITS = 37
_L2_BYTES = 38
_MAJOR = 75
_MINOR = 76
_SMEM_PER_SM = 81
_SMEM_PER_BLOCK_OPTIN = 97


def _attribute(runtime: Any, attribute: int, number: int) -> int:
    return int(runtime.deviceGetAttribute(attribute, number))


def _extent(runtime: Any, first: int, number: int) -> tuple[int, int, int]:
    x, y, z = (_attribute(runtime, first + axis, number) for axis in range(3))
    return x, y, z


def _runtime(found: Discovery) -> Any:
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        if not found.gpus:
            # Installing CuPy would not help here.
            raise EnvironmentProblem(f"no GPU: {found.reason}", PREDICT_HINT) from error
        raise EnvironmentProblem(
            f"CuPy is missing ({error})",
            f"pip install 'attnprof[cuda13]' (or attnprof[cuda12] for an older driver); {PREDICT_HINT}",
        ) from error
    return runtime


def _device_number(runtime: Any, index: int | None, found: Discovery) -> int:
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        why = found.reason if not found.gpus and found.reason else " ".join(str(error).split())
        raise EnvironmentProblem(f"no GPU: {why}", PREDICT_HINT) from error
    if not count:
        raise EnvironmentProblem(f"no GPU: {found.reason or 'CUDA finds none'}", PREDICT_HINT)
    number = 0 if index is None else index
    if not 0 <= number < count:
        raise EnvironmentProblem(f"there is no GPU {number}: CUDA sees {count}, numbered from 0", "attnprof device")
    return number


def _sensors(bus_id: str) -> Sensors | None:
    try:
        nvml = open_nvml()
    except EnvironmentProblem:
        return None
    handle, reason = nvml.attempt(lambda: nvml.api.nvmlDeviceGetHandleByPciBusId(bus_id))
    return Sensors(nvml, handle) if reason is None else None
