"""Where NaNs come from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnprof.emulator.lanes import Active, Frame, Lanes

Flags = NDArray[np.bool_]


class Births:
    """NaNs that have been made and have not mattered yet, by the register that holds them."""

    def __init__(self) -> None:
        self.table: dict[tuple[Frame, int], tuple[int, Flags]] = {}

    def born(self, x: Active, register: int, lanes: Lanes, pc: int) -> None:
        """A NaN appears in a register of some lanes."""
        flags = np.zeros(x.wave.size, np.bool_)
        flags[lanes] = True
        self.table[x.frame, register] = (pc, flags)

    def of(self, x: Active, register: int, lanes: Lanes) -> tuple[int, Lanes] | None:
        """Where the NaN in a register of these lanes was born, and in which of them; None if it came from outside."""
        found = self.table.get((x.frame, register))
        if found is None:
            return None
        pc, flags = found
        here = lanes[flags[lanes]]
        return (pc, here) if here.size else None
