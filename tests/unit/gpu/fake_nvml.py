# ruff: noqa: N802 - the names are those of pynvml
"""A stand-in for the module pynvml: GPUs as plain dictionaries whose values may be exceptions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED = NVMLError(3, "Not Supported")
LOST = NVMLError(15, "GPU is lost")
VERSION_MISMATCH = NVMLError(18, "Driver/library version mismatch")


def h200(index: int = 0, **changes: Any) -> dict[str, Any]:
    gpu: dict[str, Any] = {
        "name": "NVIDIA H200",
        "uuid": f"GPU-{index}aaa-bbbb",
        "bus_id": f"00000000:{index + 1:02X}:00.0",
        "capability": (9, 0),
        "memory_mhz": 3201,
        "sm_mhz": 1980,
        "bus_bits": 6016,
        "memory_bytes": 150_754_820_096,
        "cores": 132 * 128,
        "sm_clock_mhz": 1755,
        "power_mw": 650_500,
        "temperature_c": 61,
        "reasons": 0,
    }
    return {**gpu, **changes}


class FakeNvml:
    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: dict[str, Any] | NVMLError, start: NVMLError | None = None) -> None:
        self.gpus = gpus
        self.start = start
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        if self.start is not None:
            raise self.start

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        gpu = self.gpus[index]
        if isinstance(gpu, NVMLError):
            raise gpu
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:
        for gpu in self.gpus:
            if isinstance(gpu, dict) and uuid in gpu.get("mig", {}):
                return {**gpu, **gpu["mig"][uuid], "uuid": uuid, "parent": self.gpus.index(gpu)}
        raise NVMLError(6, "Not Found")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: dict[str, Any]) -> dict[str, Any]:
        return self.gpus[handle["parent"]]

    def nvmlDeviceGetIndex(self, handle: dict[str, Any]) -> int:
        return self.gpus.index(handle)

    def nvmlDeviceGetAttributes(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(multiprocessorCount=self._get(handle, "mig_sms"))

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "name")

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "uuid")

    def nvmlDeviceGetPciInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(busId=self._get(handle, "bus_id"))

    def nvmlDeviceGetCudaComputeCapability(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "capability")

    def nvmlDeviceGetMaxClockInfo(self, handle: dict[str, Any], clock: int) -> Any:
        return self._get(handle, "sm_mhz" if clock == self.NVML_CLOCK_SM else "memory_mhz")

    def nvmlDeviceGetMemoryBusWidth(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "bus_bits")

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(total=self._get(handle, "memory_bytes"))

    def nvmlDeviceGetNumGpuCores(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "cores")

    def nvmlDeviceGetClockInfo(self, handle: dict[str, Any], clock: int) -> Any:
        return self._get(handle, "sm_clock_mhz")

    def nvmlDeviceGetPowerUsage(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "power_mw")

    def nvmlDeviceGetTemperature(self, handle: dict[str, Any], sensor: int) -> Any:
        return self._get(handle, "temperature_c")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: dict[str, Any]) -> Any:
        return self._get(handle, "reasons")

    def _get(self, handle: dict[str, Any], what: str) -> Any:
        self.calls.append(what)
        value = handle[what]
        if isinstance(value, Exception):
            raise value
        return value
