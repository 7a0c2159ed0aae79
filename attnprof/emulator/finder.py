"""Finding faults on the emulator, for those who know the protocols alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnprof.emulator.executor import CompilesToPtx, EmulatorExecutor, Mode, traced
from attnprof.kernels.plan import LaunchPlan
from attnprof.model.devices import DeviceSpec

if TYPE_CHECKING:
    from attnprof.emulator.executor import Array


class EmulatorFaultFinder:
    """A `FaultFinder` that stands for a device.

    Args:
        compiler: compiles builds to PTX.
        device: whose shared memory and SMs are the limits.
    """

    def __init__(self, compiler: CompilesToPtx, device: DeviceSpec) -> None:
        self._executor = EmulatorExecutor(compiler, device, mode=Mode.CHECKS, on_fault="record", find_nans=True)

    def find(self, plan: LaunchPlan, inputs: Mapping[str, Array]) -> tuple[str, ...]:
        """As `FaultFinder.find`."""
        return tuple(str(fault) for fault in traced(plan, inputs, self._executor).faults)
