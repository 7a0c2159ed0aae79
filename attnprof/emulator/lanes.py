"""Groups of lanes that execute together, and the frames that hold their registers.

A *wave* is a number of thread blocks executed at once, one NumPy lane a thread. Blocks are padded to whole warps; the
lanes of the padding never live. A group is a set of lanes at one program counter of one frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from attnprof.emulator.link import Code
    from attnprof.emulator.wave import Wave

WARP = 32
Lanes = NDArray[np.int64]
AnyArray = NDArray[Any]


class Frame:
    """One activation of a function at one call site: every lane's registers, parameters and stack."""

    __slots__ = ("carry", "children", "code", "depth", "local_base", "params", "parent", "regs", "return_pc")

    def __init__(self, code: Code, lanes: int, parent: Frame | None, return_pc: int, local_base: int) -> None:
        self.code = code
        self.parent = parent
        self.return_pc = return_pc
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.regs: list[AnyArray] = [np.zeros(lanes, r.type.storage) for r in code.function.registers]
        self.params: dict[str, NDArray[np.uint8]] = {
            name: np.zeros((lanes, -(-size // 16) * 16), np.uint8) for name, size in code.param_sizes.items()
        }
        self.local_base = local_base
        self.children: dict[tuple[int, str], Frame] = {}
        self.carry: NDArray[np.bool_] = np.zeros(lanes, np.bool_)


class Active:
    """The lanes that execute one instruction together.

    Attributes:
        lanes: their indices in order, or ``None`` for every lane of the wave.
        sel: what arithmetic must be limited to: ``None`` when no other lane lives, so that computing the dead ones
            too does no harm and saves a gather and a scatter.
        n: how many they are.
    """

    __slots__ = (
        "_full_warps",
        "_warp_ids",
        "_whole",
        "frame",
        "lanes",
        "last_run",
        "n",
        "pc",
        "regs",
        "sel",
        "wave",
        "yielded",
    )

    def __init__(self, wave: Wave, frame: Frame, pc: int, lanes: Lanes | None) -> None:
        self.wave = wave
        self.frame = frame
        self.regs = frame.regs
        self.pc = pc
        self.lanes = lanes
        self.n = wave.size if lanes is None else lanes.size
        self.sel = None if self.n == wave.live_count else lanes
        self.last_run = 0
        self.yielded = False  # it waits for what others do: let them go first
        self._warp_ids: Lanes | None = None
        self._whole: bool | None = None
        self._full_warps: bool | None = None

    def lane_ids(self) -> Lanes:
        """The lanes' indices as an array."""
        return self.wave.all_lanes if self.lanes is None else self.lanes

    def subset(self, keep: NDArray[np.bool_], pc: int | None = None) -> Active:
        """Those lanes for which ``keep`` (one value a lane of this group) holds."""
        return Active(self.wave, self.frame, self.pc if pc is None else pc, self.lane_ids()[keep])

    @property
    def warp_ids(self) -> Lanes:
        """The distinct warps that have a lane here."""
        if self._warp_ids is None:
            if self.lanes is None:
                self._warp_ids = np.arange(self.wave.size // WARP)
            else:
                warps = self.lanes >> 5
                first = np.ones(warps.size, np.bool_)
                np.not_equal(warps[1:], warps[:-1], out=first[1:])
                self._warp_ids = warps[first]
        return self._warp_ids

    @property
    def warps(self) -> int:
        """Number of warps with a lane here: what the hardware counts as executed instructions."""
        return self.wave.size // WARP if self.lanes is None else int(self.warp_ids.size)

    @property
    def whole(self) -> bool:
        """Whether every live lane of each of its warps is here, so that a warp-wide operation may proceed."""
        if self.lanes is None:
            return True
        if self._whole is None:
            self._whole = self.n == int(self.wave.live_per_warp[self.warp_ids].sum())
        return self._whole

    @property
    def full_warps(self) -> bool:
        """Whether each of its warps is here with all 32 lanes."""
        if self.lanes is None:
            return True
        if self._full_warps is None:
            self._full_warps = self.n == WARP * self.warps
        return self._full_warps
