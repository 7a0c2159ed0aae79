"""Asynchronous copies in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.lanes import Lanes
from attnprof.emulator.memory import Offsets


@dataclass(slots=True)
class PendingCopy:
    """What one cp.async instruction has read and not yet written.

    ``lanes`` issued it, ``offsets`` say where in shared memory the rows of ``data`` go, and ``group`` which of each
    lane's commit groups it belongs to.
    """

    lanes: Lanes
    offsets: Offsets
    data: NDArray[np.uint8]
    group: NDArray[np.int64]

    def split(self, done: NDArray[np.bool_]) -> tuple[PendingCopy, PendingCopy | None]:
        """The part of the lanes for which it is done, and the rest."""
        if done.all():
            return self, None
        return self._part(done), self._part(~done)

    def _part(self, keep: NDArray[np.bool_]) -> PendingCopy:
        return PendingCopy(self.lanes[keep], self.offsets[keep], self.data[keep], self.group[keep])
