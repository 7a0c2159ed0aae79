"""What every kernel is compared with: ``naive``, whether or not it is among those that were asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnprof.model.ceilings import Source
    from attnprof.model.devices import DeviceSpec
    from attnprof.model.workload import Workload

NAME = "naive"


@dataclass
class Baseline:
    """Roof times of ``naive`` on a device, computed once a workload."""

    device: DeviceSpec
    source: Source
    _roof_time_s: dict[Workload, float | None] = field(default_factory=dict)

    def speedup(self, workload: Workload, roof_time_s: float | None) -> float | None:
        """Roof time of ``naive`` over ``roof_time_s``; None where either is unknown."""
        if workload not in self._roof_time_s:
            from attnprof.kernels import catalogue
            from attnprof.model.roofline import roofline

            (naive,) = catalogue.select([NAME])
            demand = naive.demand(workload)
            self._roof_time_s[workload] = roofline(workload, demand, self.device, self.source).time_s
        naive_s = self._roof_time_s[workload]
        return naive_s / roof_time_s if naive_s is not None and roof_time_s else None
