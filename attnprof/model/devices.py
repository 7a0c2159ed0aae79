"""GPU specifications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnprof.model.dtypes import Dtype


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU as its datasheet or NVML describes it. Unknown values are ``None``, never 0.

    Units are in the names. ``tensor_flops_per_s`` holds dense rates with FP32 accumulation, by element type.
    """

    name: str
    source: Literal["table", "nvml"]
    compute_capability: tuple[int, int]
    sm_count: int
    hbm_bytes_per_s: float | None
    hbm_bytes: int | None
    l2_bytes: int | None
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    boost_clock_hz: int | None
    max_clock_hz: int | None
    tensor_flops_per_s: Mapping[Dtype, float] = field(default_factory=dict)
    references: tuple[str, ...] = ()
