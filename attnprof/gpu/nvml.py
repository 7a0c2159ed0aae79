"""NVML, wrapped once: every value is known, or None with the reason why it is not."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from attnprof.model.errors import EnvironmentProblem

_MHZ = 1_000_000
UNKNOWN_NAME = "unknown GPU"

# Bits of nvmlClocksEventReasons (nvml.h) that hold the clock below what was asked for. Idle and the user's own clock
# settings are left out: they are no throttling.
_THROTTLE_BITS = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown (software)",
    0x040: "thermal slowdown (hardware)",
    0x080: "power brake",
}


class Nvml:
    """The library, initialised. ``api`` is the module ``pynvml`` or a test's stand-in for it."""

    def __init__(self, api: Any) -> None:
        self.api = api
        try:
            api.nvmlInit()
        except api.NVMLError as error:
            raise EnvironmentProblem(f"NVML does not start: {reason_of(error)}", _hint(error)) from error

    def count(self) -> int:
        """How many GPUs NVML sees, lost ones among them."""
        try:
            return int(self.api.nvmlDeviceGetCount())
        except self.api.NVMLError as error:
            raise EnvironmentProblem(f"NVML counts no GPUs: {reason_of(error)}", _hint(error)) from error

    def attempt(self, call: Callable[[], Any]) -> tuple[Any, str | None]:
        """The result of an NVML call and None, or None and the reason it failed."""
        try:
            return call(), None
        except self.api.NVMLError as error:
            return None, reason_of(error)
        except UnicodeDecodeError:
            return None, "NVML's answer is not UTF-8"
        except AttributeError:
            # An older pynvml has no such function.
            return None, "nvidia-ml-py is too old for this value"


class Sensors:
    """Clock, power, temperature and throttling of one GPU; a value that it does not report is not asked for again."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        api = nvml.api
        reasons = getattr(api, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            api, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )
        self._calls: dict[str, Callable[[], Any]] = {
            "sm_clock": lambda: api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM),
            "power": lambda: api.nvmlDeviceGetPowerUsage(handle),
            "temperature": lambda: api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU),
        }
        if reasons is not None:
            self._calls["reasons"] = lambda: reasons(handle)

    def sm_clock_hz(self) -> int | None:
        """The SM clock now."""
        mhz = self._read("sm_clock")
        return int(mhz) * _MHZ if mhz else None

    def power_w(self) -> float | None:
        """Board power; NVML averages it over up to a second."""
        milliwatts = self._read("power")
        return float(milliwatts) / 1e3 if milliwatts is not None else None

    def temperature_c(self) -> float | None:
        """Core temperature."""
        celsius = self._read("temperature")
        return float(celsius) if celsius is not None else None

    def throttle_reasons(self) -> tuple[str, ...]:
        """What holds the clock down now; empty when nothing does or it is not known."""
        bits = self._read("reasons")
        return tuple(name for bit, name in _THROTTLE_BITS.items() if int(bits) & bit) if bits else ()

    def _read(self, what: str) -> Any:
        call = self._calls.get(what)
        if call is None:
            return None
        value, reason = self._nvml.attempt(call)
        if reason is not None:
            del self._calls[what]
        return value


def open_nvml(api: Any = None) -> Nvml:
    """Load and initialise NVML.

    Raises:
        EnvironmentProblem: there is no driver, or it does not work; the message says which.
    """
    if api is None:
        # Asking the loader takes a tenth of the time of importing pynvml, and most machines have no driver.
        if sys.platform.startswith("linux"):
            try:
                ctypes.CDLL("libnvidia-ml.so.1")
            except OSError as error:
                raise EnvironmentProblem("there is no NVIDIA driver (libnvidia-ml.so.1 not found)") from error
        try:
            import pynvml
        except ImportError as error:
            raise EnvironmentProblem("the module pynvml is missing", "pip install nvidia-ml-py") from error
        api = pynvml
    return Nvml(api)


def text(value: Any) -> str | None:
    """NVML's strings, which come as ``str`` or as ``bytes`` depending on the version; None if they are not UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode().rstrip("\0")
        except UnicodeDecodeError:
            return None
    return str(value)


def reason_of(error: Exception) -> str:
    """NVML's own words for an error, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _hint(error: Exception) -> str | None:
    # NVML_ERROR_LIB_RM_VERSION_MISMATCH: the kernel module is older than the library, as after an upgrade.
    if getattr(error, "value", None) == 18:
        return "the driver was upgraded while running: reboot, or reload the nvidia kernel module"
    return "check the driver with nvidia-smi"
