"""What ``attnprof device`` shows: one GPU in full, or the table of all that are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnprof.model.ceilings import Ceiling, Unit, ceilings
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.report import units
from attnprof.report.document import Column

# The element types that attention kernels use.
DTYPES = (Dtype.FP16, Dtype.BF16)

_UNIT = {"hbm": "B/s", "tensor": "FLOP/s", "exp": "/s", "fp32": "FLOP/s"}

DETAIL_COLUMNS: tuple[Column, ...] = (
    Column("gpu", "GPU", "the GPU", align="left", show="never"),
    Column("quantity", "Ceiling", "what is limited", align="left"),
    Column("datasheet", "Datasheet", "as published (SI)", row_text=lambda row: _text(row["datasheet"], row["unit"])),
    Column("clock", "Clock", "units x maximum clock (SI)", row_text=lambda row: _text(row["clock"], row["unit"])),
    Column("unit", "Unit", "of both", align="left", show="never"),
    Column("detail", "From clocks", "how the clock figure comes about", align="left"),
)

LIST_COLUMNS: tuple[Column, ...] = (
    Column("name", "GPU", "what --gpu takes", align="left"),
    Column("compute_capability", "CC", "compute capability"),
    Column("sm_count", "SMs", "streaming multiprocessors"),
    Column("hbm_bytes", "Memory", "device memory (B)", units.short_binary_bytes),
    Column("hbm_bytes_per_s", "HBM", "memory bandwidth, published (B/s)", units.bytes_per_s),
    Column(
        "tensor_flops_per_s.fp16",
        "fp16",
        "dense tensor rate with FP32 accumulation, published (FLOP/s)",
        units.flops_per_s,
        csv="tensor_fp16_flops_per_s",
    ),
    Column(
        "knee", "Knee", "FLOP an HBM byte at which fp16 turns tensor-bound", units.intensity, csv="knee_flop_per_byte"
    ),
    Column("l2_bytes", "L2", "L2 cache (B)", units.short_binary_bytes),
    Column(
        "references", "Sources", "where the figures come from", lambda urls: " ".join(urls), align="left", show="never"
    ),
)


def detail_rows(device: DeviceSpec) -> list[dict[str, Any]]:
    """One row a ceiling and element type: the published figure beside units × clock, and the knees."""
    rows = [_row(device, name, _UNIT[unit], published, clocked) for name, unit, published, clocked in _ceilings(device)]
    for dtype in DTYPES:
        knees = [ceilings(device, dtype, source).knee_flops_per_byte for source in ("datasheet", "clock")]
        if knees != [None, None]:
            rows.append(_figures(device, f"knee {dtype}", "FLOP/B", knees[0], knees[1], None))
    return rows


def unknown_notes(device: DeviceSpec) -> tuple[str, ...]:
    """Why ceilings are unknown, each reason once."""
    reasons = (reason for dtype in DTYPES for _, reason in ceilings(device, dtype).missing)
    return tuple(dict.fromkeys(reasons))


def list_row(device: DeviceSpec) -> dict[str, Any]:
    """The device as `DeviceSpec.as_json` gives it, with its fp16 knee."""
    return {**device.as_json(), "knee": ceilings(device, Dtype.FP16).knee_flops_per_byte}


def _ceilings(device: DeviceSpec) -> Iterator[tuple[str, Unit, Ceiling | None, Ceiling | None]]:
    wanted: list[tuple[str, Unit, Dtype]] = [("HBM", "hbm", Dtype.FP16)]
    wanted += [(f"tensor {dtype}", "tensor", dtype) for dtype in DTYPES]
    wanted += [("exponentials", "exp", Dtype.FP16), ("FP32", "fp32", Dtype.FP16)]
    for name, unit, dtype in wanted:
        # Each ceiling says what it really is; one that only stands in for an unknown one is left out.
        published = ceilings(device, dtype, "datasheet").get(unit)
        clocked = ceilings(device, dtype, "clock").get(unit)
        yield (
            name,
            unit,
            published if published is not None and published.source == "datasheet" else None,
            clocked if clocked is not None and clocked.source == "clock" else None,
        )


def _row(
    device: DeviceSpec, name: str, unit: str, published: Ceiling | None, clocked: Ceiling | None
) -> dict[str, Any]:
    return _figures(
        device,
        name,
        unit,
        published.per_s if published else None,
        clocked.per_s if clocked else None,
        clocked.detail if clocked else None,
    )


def _figures(
    device: DeviceSpec, name: str, unit: str, datasheet: float | None, clock: float | None, detail: str | None
) -> dict[str, Any]:
    return {
        "gpu": device.name,
        "quantity": name,
        "datasheet": datasheet,
        "clock": clock,
        "unit": unit,
        "detail": detail,
    }


def _text(value: float, unit: str) -> str:
    return f"{units.fixed(value)} {unit}" if unit == "FLOP/B" else units.si(value, unit)
