"""What ``attnprof bench`` shows: a row a kernel and workload, the measurement beside the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprof.report import units
from attnprof.report.document import Column, Row
from attnprof.report.roofline import COLUMNS as PREDICTED
from attnprof.report.workload import KERNEL, LAYOUT, REASON, STATUS, TILES, WORKLOAD


def _predicted(key: str, **changes: Any) -> Column:
    return replace(next(column for column in PREDICTED if column.key == key), **changes)


def _in(scale: float) -> Any:
    return lambda value: units.fixed(value / scale)


def _pct_of_roof(value: float) -> str:
    return f"{units.fixed(value)}{'!' if value > 100.0 else ''}"


def _spread(row: Row) -> str:
    """The median absolute deviation, in percent of the median."""
    time = row["time_s"]
    return f"±{100 * time['mad'] / time['median']:.1f} %" if time["median"] else units.UNKNOWN


def _any_not_ok(rows: Sequence[Row]) -> bool:
    return any(row.get("status") != "ok" for row in rows)


def columns(peers: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a run with these peers."""
    return (
        *WORKLOAD,
        KERNEL,
        replace(STATUS, show=_any_not_ok),
        TILES,
        Column("time_s.median", "Time", "median time of one run (s)", units.time, csv="time_median_s"),
        Column("time_s.mad", "Spread", "median absolute deviation (s)", csv="time_mad_s", row_text=_spread),
        Column("time_s.min", "Fastest", "fastest sample (s)", units.time, show="never", csv="time_min_s"),
        _predicted("predicted_time_s"),
        Column("pct_of_roof", "% roof", "roof time over measured time (%), above 100 marked !", _pct_of_roof),
        Column("flops_per_s", "TFLOP/s", "matrix FLOPs of the workload over the median time (FLOP/s)", _in(1e12)),
        Column("hbm_bytes_per_s", "TB/s", "ledger bytes over the median time (B/s)", _in(1e12)),
        Column(
            "measured_speedup_vs_naive",
            "vs naive",
            "measured time of naive over that of this kernel: two rows of this run, each at its own clock",
            units.ratio,
            show="known",
        ),
        _predicted("speedup_vs_naive", show="never"),
        _predicted("bound", show="never"),
        *(_peer(name) for name in peers),
        Column("max_rel_error", "Error", "relative L2 error against float64", units.error),
        Column("max_rel_error_limit", "Allowed", "the most that the error may be", units.error, show="never"),
        Column("verified", "Verified", "whether the output passed", units.yes_no, show="never"),
        Column("sm_clock_hz", "Clock", "median SM clock while it ran (Hz)", units.hertz, show="known"),
        Column("throttled", "Throttled", "whether a sample was throttled", units.yes_no, show="never"),
        Column("power_w", "Power", "median power while it ran (W)", _in(1.0), show="never"),
        Column("temperature_c", "Temp.", "temperature while it ran (°C)", show="never"),
        Column("compile_time_s", "Compile", "time spent compiling; 0 from the cache (s)", units.time, show="never"),
        LAYOUT,
        Column("l2", "L2", "cold: flushed before each launch; warm: not", align="left", show="never"),
        Column("arch", "Arch", "architecture compiled for", align="left", show="never"),
        _predicted("hbm_bytes", show="never"),
        _predicted("flops", show="never"),
        _predicted("roof_time_s", show="never"),
        Column("stop_reason", "Stopped", "why sampling ended", align="left", show="never"),
        Column("warnings", "Warnings", "codes of the warnings", align="left", show="never", csv_value=_codes),
        REASON,
    )


LEGEND = (
    "Time: the median; spread: the median absolute deviation. Predicted: see attnprof roofline.",
    "% roof: roof time / time. Above 100 (!): traffic stays in a cache, a faster clock, or less work than counted.",
    "TFLOP/s: matrix FLOPs of the workload / time. TB/s: predicted traffic / time. Error: relative, against float64.",
)


def live_line(row: Mapping[str, Any]) -> str:
    """A finished row in a few words, for the progress: ``1.284 ms, 214.1 TFLOP/s, 67.2 % of roof``."""
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    parts = [
        units.time(row["time_s"]["median"]),
        units.si(row["flops_per_s"], "FLOP/s"),
        f"{units.percent(row['pct_of_roof'])} of roof",
    ]
    return ", ".join(parts)


def rate_text(rate: Mapping[str, Any]) -> str:
    """``copy 4.21 TB/s at 1.98 GHz``, or why it is unknown."""
    name = rate["name"] if rate["dtype"] is None else f"{rate['name']} {rate['dtype']}"
    if rate["value"] is None:
        return f"{name} unknown ({rate['reason']})"
    value = units.short(rate["value"], "B/s" if rate["unit"] == "byte/s" else "FLOP/s")
    clock = f" at {units.short(rate['sm_clock_hz'], 'Hz')}" if rate["sm_clock_hz"] is not None else ""
    return f"{name} {value}{clock}"


def software_text(versions: Mapping[str, str | None]) -> str:
    """``driver 580.65.06 (CUDA 13.0) · NVRTC 13.0 · …``: what is known of `attnprof.gpu.versions.software`."""
    names = {"driver": "driver", "nvrtc": "NVRTC", "cupy": "CuPy", "torch": "PyTorch", "cudnn": "cuDNN"}
    cuda = {"driver": versions["cuda_driver"], "cupy": versions["cuda_runtime"]}
    return " · ".join(
        f"{label} {versions[key]}" + (f" (CUDA {cuda[key]})" if cuda.get(key) else "")
        for key, label in names.items()
        if versions[key] is not None
    )


def _codes(warnings: Sequence[Mapping[str, Any]]) -> list[str]:
    return [warning["code"] for warning in warnings]


def _peer(name: str) -> Column:
    return Column(
        f"peers.{name}.speedup",
        f"vs {name}",
        f"time of {name} over this kernel's, sampled in the same loop: above 1 the kernel is faster",
        units.ratio,
        csv=f"speedup_vs_{name.replace('-', '_')}",
    )
