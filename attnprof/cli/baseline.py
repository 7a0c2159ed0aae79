"""What every kernel is compared with: the naive kernel of its operation, whether or not that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnprof.kernels.spec import Operation
    from attnprof.model.ceilings import Source
    from attnprof.model.devices import DeviceSpec
    from attnprof.model.workload import Workload

NAMES: Mapping[Operation, str] = {"attention": "naive", "softmax": "softmax-naive"}


@dataclass
class Baseline:
    """Roof times of the naive kernels on a device, computed once a workload."""

    device: DeviceSpec
    source: Source
    _roof_time_s: dict[tuple[Operation, Workload], float | None] = field(default_factory=dict)

    def speedup(self, operation: Operation, workload: Workload, roof_time_s: float | None) -> float | None:
        """Roof time of the naive kernel over ``roof_time_s``; None where either is unknown."""
        key = (operation, workload)
        if key not in self._roof_time_s:
            from attnprof.kernels import catalogue
            from attnprof.model.roofline import roofline

            (naive,) = catalogue.select([NAMES[operation]])
            demand = naive.demand(workload, self.device)
            self._roof_time_s[key] = roofline(workload, demand, self.device, self.source).time_s
        naive_s = self._roof_time_s[key]
        return naive_s / roof_time_s if naive_s is not None and roof_time_s else None
