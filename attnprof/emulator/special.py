"""The special registers: where a lane is, and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from attnprof.emulator.wave import Wave

Values = Callable[["Wave"], NDArray[np.uint64]]
_AXES = {"x": 0, "y": 1, "z": 2}


def _scalar(value: int) -> NDArray[np.uint64]:
    return np.array([value], np.uint64)


_PLAIN: dict[str, Values] = {
    "%laneid": lambda w: w.lane_in_warp,
    "%warpid": lambda w: w.thread_linear >> np.uint64(5),
    "%nwarpid": lambda w: _scalar(w.warps_per_block),
    # One SM a block in flight: any assignment is legal, and this one is stable.
    "%smid": lambda w: w.block_linear % np.uint64(w.sm_count),
    "%nsmid": lambda w: _scalar(w.sm_count),
    "%gridid": lambda _w: _scalar(1),
    "%clock": lambda w: _scalar(w.steps),
    "%clock_hi": lambda _w: _scalar(0),
    "%clock64": lambda w: _scalar(w.steps),
    "%globaltimer": lambda w: _scalar(w.steps),
    "%globaltimer_lo": lambda w: _scalar(w.steps),
    "%globaltimer_hi": lambda _w: _scalar(0),
    "%lanemask_eq": lambda w: np.uint64(1) << w.lane_in_warp,
    "%lanemask_lt": lambda w: (np.uint64(1) << w.lane_in_warp) - np.uint64(1),
    "%lanemask_le": lambda w: (np.uint64(2) << w.lane_in_warp) - np.uint64(1),
    "%lanemask_gt": lambda w: np.uint64(0xFFFFFFFF) - ((np.uint64(2) << w.lane_in_warp) - np.uint64(1)),
    "%lanemask_ge": lambda w: np.uint64(0xFFFFFFFF) - ((np.uint64(1) << w.lane_in_warp) - np.uint64(1)),
    "%dynamic_smem_size": lambda w: _scalar(w.dynamic_smem_bytes),
    "%total_smem_size": lambda w: _scalar(w.shared.size),
}


def special_values(name: str) -> Values | None:
    """How to read a special register for every lane of a wave (or one value for all); None if there is no such one."""
    base, _, axis = name.partition(".")
    if axis in _AXES:
        at = _AXES[axis]
        if base == "%tid":
            return lambda w: w.thread_index[at]
        if base == "%ctaid":
            return lambda w: w.block_index[at]
        if base == "%ntid":
            return lambda w: _scalar(w.block_shape[at])
        if base == "%nctaid":
            return lambda w: _scalar(w.grid_shape[at])
        if base in ("%clusterid", "%cluster_ctaid"):  # no cluster launch: clusters of one block
            return (lambda w: w.block_index[at]) if base == "%clusterid" else (lambda _w: _scalar(0))
        if base in ("%nclusterid", "%cluster_nctaid"):
            return (lambda w: _scalar(w.grid_shape[at])) if base == "%nclusterid" else (lambda _w: _scalar(1))
        return None
    return _PLAIN.get(name)
