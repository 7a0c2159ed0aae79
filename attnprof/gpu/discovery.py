"""Which GPUs there are and what they are, from NVML alone: no CuPy, no CUDA context."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attnprof.gpu.nvml import UNKNOWN_NAME, Nvml, open_nvml, text
from attnprof.model.architectures import architecture
from attnprof.model.devices import DeviceSpec, from_facts
from attnprof.model.errors import EnvironmentProblem

_MHZ = 1_000_000


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML reports it.

    Attributes:
        nvml_index: its place in NVML's order, which is by PCI bus id and not CUDA's.
        name: its name, or ``unknown GPU``.
        spec: its specification; None when NVML says too little for one (see ``unknown``).
        uuid: e.g. ``GPU-5c3b…``, or a MIG instance's ``MIG-…``.
        pci_bus_id: e.g. ``00000000:65:00.0``; what joins it to CUDA's numbering.
        unknown: why each value that is None is unknown, by field name.
    """

    nvml_index: int
    name: str
    spec: DeviceSpec | None
    uuid: str | None = None
    pci_bus_id: str | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Discovery:
    """The GPUs that CUDA may use here, in the order of CUDA_VISIBLE_DEVICES or of NVML, and why others are missing.

    Attributes:
        gpus: the healthy, visible ones.
        reason: one line on what is missing (no driver, a lost GPU, hidden GPUs); None when nothing is.
        hint: what to do about it, where there is something to do.
        driver_version: e.g. ``580.65.06``.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str | None = None
    hint: str | None = None
    driver_version: str | None = None


def discover(api: Any = None, environ: Mapping[str, str] | None = None) -> Discovery:
    """The GPUs of this machine. Never raises for what the machine lacks: that is the ``reason``.

    Args:
        api: the module ``pynvml``, or a test's stand-in; None imports it if there is a driver.
        environ: where CUDA_VISIBLE_DEVICES is read; None takes the process's.
    """
    try:
        nvml = open_nvml(api)
        count = nvml.count()
    except EnvironmentProblem as problem:
        return Discovery(reason=problem.message, hint=problem.hint)
    version, _ = nvml.attempt(nvml.api.nvmlSystemGetDriverVersion)
    gpus, problems = [], []
    for index in range(count):
        handle, reason = nvml.attempt(partial(nvml.api.nvmlDeviceGetHandleByIndex, index))
        gpu = None if reason is not None else _read(nvml, handle, index)
        if gpu is None:
            problems.append(f"GPU {index}: {reason}")
        elif _is_lost(gpu):
            problems.append(f"GPU {index} ({gpu.name}): {next(iter(gpu.unknown.values()))}")
        else:
            gpus.append(gpu)
    if not count:
        problems.append("the driver finds no GPU")
    environ = os.environ if environ is None else environ
    visible, hidden = _visible(nvml, gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    if hidden is not None:
        problems.append(hidden)
    problems += [f"GPU {gpu.nvml_index} ({gpu.name}): {gpu.unknown['spec']}" for gpu in visible if gpu.spec is None]
    return Discovery(
        gpus=tuple(visible),
        reason="; ".join(problems) or None,
        driver_version=text(version) if version is not None else None,
    )


def _read(nvml: Nvml, handle: Any, index: int, *, mig: bool = False) -> Gpu:
    api = nvml.api
    unknown: dict[str, str] = {}

    def value(name: str, call: Callable[[], Any]) -> Any:
        result, reason = nvml.attempt(call)
        if reason is not None:
            unknown[name] = reason
        return result

    def words(name: str, call: Callable[[], Any]) -> str | None:
        result = value(name, call)
        decoded = None if result is None else text(result)
        if result is not None and decoded is None:
            unknown[name] = "NVML's answer is not UTF-8"
        return decoded

    name = words("name", lambda: api.nvmlDeviceGetName(handle)) or UNKNOWN_NAME
    uuid = words("uuid", lambda: api.nvmlDeviceGetUUID(handle))
    pci = words("pci_bus_id", lambda: api.nvmlDeviceGetPciInfo(handle).busId)
    capability = value("compute_capability", lambda: api.nvmlDeviceGetCudaComputeCapability(handle))
    memory_mhz = value("memory_clock_hz", lambda: api.nvmlDeviceGetMaxClockInfo(handle, api.NVML_CLOCK_MEM))
    sm_mhz = value("max_clock_hz", lambda: api.nvmlDeviceGetMaxClockInfo(handle, api.NVML_CLOCK_SM))
    bus_bits = value("memory_bus_bits", lambda: api.nvmlDeviceGetMemoryBusWidth(handle))
    total = value("hbm_bytes", lambda: api.nvmlDeviceGetMemoryInfo(handle).total)
    sms = value("sm_count", lambda: _sm_count(api, handle, capability, mig=mig))
    spec = None
    if capability is None:
        unknown["spec"] = f"its compute capability is unknown ({unknown['compute_capability']})"
    else:
        try:
            spec = from_facts(
                name,
                (int(capability[0]), int(capability[1])),
                sm_count=sms,
                memory_clock_hz=memory_mhz * _MHZ if memory_mhz else None,
                # A MIG instance has a share of the bandwidth, which NVML does not give: better unknown than the whole.
                memory_bus_bits=None if mig else bus_bits,
                max_clock_hz=sm_mhz * _MHZ if sm_mhz else None,
                hbm_bytes=int(total) if total else None,
            )
        except EnvironmentProblem as problem:
            unknown["spec"] = problem.message
    return Gpu(index, name, spec, uuid, pci, unknown)


def _sm_count(api: Any, handle: Any, capability: tuple[int, int] | None, *, mig: bool) -> int | None:
    if mig:
        return int(api.nvmlDeviceGetAttributes(handle).multiprocessorCount)
    # NVML counts CUDA cores: the FP32 lanes of all SMs.
    facts = architecture((int(capability[0]), int(capability[1]))) if capability else None
    if facts is None:
        return None
    cores = int(api.nvmlDeviceGetNumGpuCores(handle))
    return cores // facts.fp32_lanes if cores % facts.fp32_lanes == 0 else None


def _is_lost(gpu: Gpu) -> bool:
    """A GPU that has fallen off the bus gives a handle and then fails every call with the same error."""
    failed = set(gpu.unknown.values())
    return gpu.name == UNKNOWN_NAME and gpu.uuid is None and gpu.pci_bus_id is None and bool(failed)


def _visible(nvml: Nvml, gpus: list[Gpu], setting: str | None) -> tuple[list[Gpu], str | None]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, and a line on those it hides.

    As the CUDA Programming Guide has it ("CUDA Environment Variables"): indices, prefixes of UUIDs or MIG ids,
    separated by commas; the first invalid one hides itself and all that follow.
    """
    if setting is None:
        return gpus, None
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        gpu = _named(nvml, gpus, entry)
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    hidden = len([gpu for gpu in gpus if gpu not in chosen])
    if any((gpu.uuid or "").startswith("MIG") for gpu in chosen):
        return chosen, None
    if not chosen and gpus:
        return chosen, f"CUDA_VISIBLE_DEVICES={setting!r} hides every GPU"
    return chosen, f"CUDA_VISIBLE_DEVICES hides {hidden} more" if hidden else None


def _named(nvml: Nvml, gpus: list[Gpu], entry: str) -> Gpu | None:
    if entry.isascii() and entry.isdigit():
        return next((gpu for gpu in gpus if gpu.nvml_index == int(entry)), None)
    if entry.startswith("MIG-"):
        handle, reason = nvml.attempt(lambda: nvml.api.nvmlDeviceGetHandleByUUID(entry))
        if reason is not None:
            return None
        parent, _ = nvml.attempt(
            lambda: nvml.api.nvmlDeviceGetIndex(nvml.api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
        )
        return _read(nvml, handle, int(parent) if parent is not None else -1, mig=True)
    matches = [gpu for gpu in gpus if entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)]
    # CUDA refuses a prefix that fits several GPUs.
    return matches[0] if len(matches) == 1 else None
