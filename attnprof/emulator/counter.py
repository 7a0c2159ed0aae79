"""Counting on the emulator, for those who know the protocols alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnprof.emulator.executor import CompilesToPtx, EmulatorExecutor, Mode, traced
from attnprof.kernels.executor import Counted
from attnprof.kernels.plan import LaunchPlan
from attnprof.model.devices import DeviceSpec

if TYPE_CHECKING:
    from attnprof.emulator.executor import Array


class EmulatorCounter:
    """A `Counter` that stands for a device.

    Args:
        compiler: compiles builds to PTX.
        device: whose shared memory and SMs are the limits.
    """

    def __init__(self, compiler: CompilesToPtx, device: DeviceSpec) -> None:
        self._executor = EmulatorExecutor(compiler, device, mode=Mode.COUNTS)

    def count(self, plan: LaunchPlan, inputs: Mapping[str, Array]) -> Counted:
        """As `Counter.count`."""
        trace = traced(plan, inputs, self._executor)
        counters = trace.counters
        tensors = [tensor for kernel in trace.kernels for tensor in kernel.tensors]
        return Counted(
            bank_conflicts=counters.bank_conflicts,
            shared_wavefronts=counters.shared_wavefronts,
            tensor_bytes=sum(tensor.unique_read_bytes + tensor.unique_write_bytes for tensor in tensors),
            global_requests=counters.global_requests,
            global_sectors=counters.global_sectors,
            global_bytes=counters.global_bytes,
            barriers=counters.barriers,
            exponentials=counters.exponentials,
        )
