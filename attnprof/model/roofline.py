"""Roof time: the least time that a demand takes at a device's ceilings; and the time the model predicts for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from attnprof.model.ceilings import UNITS, Ceilings, Source, Unit, ceilings
from attnprof.model.demand import Demand, Stage
from attnprof.model.devices import DeviceSpec
from attnprof.model.schedule import imbalance
from attnprof.model.workload import Workload

# What one more kernel in a stream costs the device when launches are queued ahead: 3.8 µs a kernel of which 2.9 µs is
# the kernel itself (A. Gray, "Getting Started with CUDA Graphs", https://developer.nvidia.com/blog/cuda-graphs/).
LAUNCH_OVERHEAD_S = 0.9e-6

L2Residency = Literal["footprint", "intermediates"]


@dataclass(frozen=True, slots=True)
class StageRoof:
    """One stage against the ceilings.

    Attributes:
        name: the stage.
        unit_time_s: demand / ceiling for each unit that the stage uses; ``None`` where the ceiling is unknown.
        time_s: the longest of them; ``None`` when one is unknown.
        bound: the unit that takes longest; ``None`` likewise.
        imbalance: how much longer the SM-side units take for the schedule: 1.0 at perfect balance.
        blocks: thread blocks of a launch; ``None`` where the stage has no schedule.
        predicted_time_s: with the imbalance and its launches.
    """

    name: str
    unit_time_s: Mapping[Unit, float | None]
    time_s: float | None
    bound: Unit | None
    imbalance: float
    blocks: int | None
    predicted_time_s: float | None


@dataclass(frozen=True, slots=True)
class Roofline:
    """A kernel on a workload against a device's ceilings.

    Attributes:
        stages: the stages in order; they run one after another.
        time_s: the roof time, the sum over the stages; ``None`` when a demanded unit has no known ceiling.
        bound: the unit that binds the largest share of the roof time.
        arithmetic_intensity: the workload's matrix FLOPs an HBM byte; ``None`` for an empty ledger.
        predicted_time_s: roof plus imbalance plus launches; never below the roof.
        l2_resident: what fits the device's L2 cache, so that traffic may stay out of HBM and a run beat the roof: the
            whole ``footprint`` (a warm run), the ``intermediates`` (any run), or ``None`` for neither (or an unknown
            L2).
        reason: why the roof is unknown, or ``None``.
    """

    ceilings: Ceilings
    stages: tuple[StageRoof, ...]
    time_s: float | None
    bound: Unit | None
    arithmetic_intensity: float | None
    predicted_time_s: float | None
    l2_resident: L2Residency | None
    reason: str | None


def roofline(
    workload: Workload,
    demand: Demand,
    device: DeviceSpec,
    source: Source = "datasheet",
    *,
    flops: int | None = None,
) -> Roofline:
    """Set a kernel's demand against a device's ceilings.

    Roof time: for each stage the longest of demand / ceiling over the units, added over the stages. Each term takes
    the unit at its peak and overlaps it perfectly with the others, so the same bytes through HBM and the same
    operations on the same units take no less on a device that keeps to its ceilings. What can be faster: traffic that
    stays in L2, a clock above the published one (``clock`` ceilings hold there), and a kernel that does its work on
    another unit, as FlashAttention-4 (arXiv:2603.05451) evaluates part of the exponentials on the FP32 lanes: that is
    another demand, with another roof. Prediction: the SM-side units take ``imbalance`` times as long, and each launch
    of a stage costs `LAUNCH_OVERHEAD_S`. ``flops`` stands for the workload's matrix FLOPs where the kernel computes
    something else than attention.
    """
    limits = ceilings(device, workload.dtype, source)
    stages = tuple(_stage_roof(stage, limits, device.sm_count) for stage in demand.stages)
    unknown = [unit for unit in UNITS if any(unit in s.unit_time_s and s.unit_time_s[unit] is None for s in stages)]
    # Once each: without a clock, several units lack their ceiling for the same reason.
    reasons = dict.fromkeys(limits.reason(unit) or unit for unit in unknown)
    hbm_bytes = demand.hbm_bytes
    return Roofline(
        ceilings=limits,
        stages=stages,
        time_s=_sum(stage.time_s for stage in stages),
        bound=_bound(stages),
        arithmetic_intensity=(workload.flops if flops is None else flops) / hbm_bytes if hbm_bytes else None,
        predicted_time_s=_sum(stage.predicted_time_s for stage in stages),
        l2_resident=_l2_resident(demand, device.l2_bytes),
        reason="; ".join(reasons) or None,
    )


def row(
    kernel: str,
    workload: Workload,
    demand: Demand,
    roof: Roofline,
    *,
    speedup_vs_naive: float | None = None,
    flops: int | None = None,
) -> dict[str, object]:
    """The JSON row of ``attnprof roofline`` for one kernel and workload: plain values, ``None`` where unknown.

    ``flops`` is the workload's matrix work, the same for every kernel that computes the same (and given where that is
    not attention); ``tensor_flops``, ``fp32_flops`` and
    ``exponentials`` are what this kernel executes.
    """
    return {
        "kernel": kernel,
        "status": "ok",
        "reason": roof.reason,
        **workload_fields(workload),
        "flops": workload.flops if flops is None else flops,
        "hbm_bytes": demand.hbm_bytes,
        "ledger": [
            {"stage": line.stage, "tensor": line.tensor, "direction": line.direction, "bytes": line.bytes}
            for line in demand.ledger
        ],
        "arithmetic_intensity": roof.arithmetic_intensity,
        "bound": roof.bound,
        "roof_time_s": roof.time_s,
        "predicted_time_s": roof.predicted_time_s,
        "speedup_vs_naive": speedup_vs_naive,
        "tensor_flops": demand.tensor_flops,
        "fp32_flops": demand.fp32_flops,
        "exponentials": demand.exponentials,
        "footprint_bytes": demand.footprint_bytes,
        "intermediate_bytes": demand.intermediate_bytes,
        "l2_resident": roof.l2_resident,
        "stages": [
            {
                "stage": stage.name,
                "bound": stage.bound,
                "roof_time_s": stage.time_s,
                "predicted_time_s": stage.predicted_time_s,
                "imbalance": stage.imbalance,
                "blocks": stage.blocks,
                "unit_time_s": dict(stage.unit_time_s),
            }
            for stage in roof.stages
        ],
    }


def workload_fields(workload: Workload) -> dict[str, object]:
    """The fields of a JSON row that say which workload it is about, the same in every command."""
    return {
        "batch": workload.batch,
        "heads": workload.heads,
        "kv_heads": workload.kv_heads,
        "seq_q": workload.seq_q,
        "seq_kv": workload.seq_kv,
        "head_dim": workload.head_dim,
        "scale": workload.scale,
        "dtype": str(workload.dtype),
        "causal": workload.causal,
        "pass": str(workload.direction),
    }


def _stage_roof(stage: Stage, limits: Ceilings, sm_count: int) -> StageRoof:
    demanded: dict[Unit, int] = {
        "hbm": stage.hbm_bytes,
        "tensor": stage.tensor_flops,
        "exp": stage.exponentials,
        "fp32": stage.fp32_flops,
    }
    times: dict[Unit, float | None] = {}
    for unit in UNITS:
        if demanded[unit]:
            ceiling = limits.get(unit)
            times[unit] = None if ceiling is None else demanded[unit] / ceiling.per_s
    longer = imbalance(stage.schedule, sm_count) if stage.schedule is not None else 1.0
    blocks = stage.schedule.blocks if stage.schedule is not None else None
    known = {unit: time_s for unit, time_s in times.items() if time_s is not None}
    if len(known) < len(times):
        return StageRoof(stage.name, times, None, None, longer, blocks, None)
    bound = max(known, key=lambda unit: known[unit], default=None)
    time_s = known[bound] if bound is not None else 0.0
    slowest_s = max((known[unit] if unit == "hbm" else known[unit] * longer for unit in known), default=0.0)
    predicted_s = slowest_s + stage.launches * LAUNCH_OVERHEAD_S
    return StageRoof(stage.name, times, time_s, bound, longer, blocks, predicted_s)


def _bound(stages: tuple[StageRoof, ...]) -> Unit | None:
    share: dict[Unit, float] = {}
    for stage in stages:
        if stage.time_s is None:
            return None
        if stage.bound is not None:
            share[stage.bound] = share.get(stage.bound, 0.0) + stage.time_s
    return max(share, key=lambda unit: share[unit], default=None)


def _l2_resident(demand: Demand, l2_bytes: int | None) -> L2Residency | None:
    if l2_bytes is None:
        return None
    if demand.footprint_bytes <= l2_bytes:
        return "footprint"
    return "intermediates" if 0 < demand.intermediate_bytes <= l2_bytes else None


def _sum(times: Iterable[float | None]) -> float | None:
    total = 0.0
    for time_s in times:
        if time_s is None:
            return None
        total += time_s
    return total
