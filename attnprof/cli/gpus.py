"""Which GPU a command is about, and the lines that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from attnprof.cli import values
from attnprof.report import units
from attnprof.report.workload import matrices, own_scale

if TYPE_CHECKING:
    from attnprof.model.ceilings import Ceilings, Source
    from attnprof.model.devices import DeviceSpec
    from attnprof.model.dtypes import Dtype

CEILING_SOURCES = ("datasheet", "clock")
_LABEL_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU to predict for, and how it came to be chosen."""

    device: DeviceSpec
    origin: str


def targets(gpu: str | None) -> tuple[Target, ...]:
    """The GPUs that ``--gpu`` names; without it the local GPU, and without one the default, an A100.

    Raises:
        UsageError: a name that is not in the table.
    """
    from attnprof.model import devices

    if gpu is not None:
        names = values.items([gpu], "--gpu", "A100-SXM4-80GB,H200")
        chosen = dict.fromkeys(devices.find(name).name for name in names)
        return tuple(Target(devices.find(name), "built-in table") for name in chosen)
    from attnprof.gpu import discovery

    found = discovery.discover()
    local = next((gpu.spec for gpu in found.gpus if gpu.spec is not None), None)
    if local is not None:
        return (Target(local, f"local GPU; {found.reason}" if found.reason else "local GPU"),)
    default = devices.find(devices.DEFAULT_GPU)
    return (Target(default, f"the default; no GPU here: {found.reason}; --gpu NAME chooses another"),)


def ceiling_source(text: str) -> Source:
    """``--ceilings``.

    Raises:
        UsageError: neither of the known sources.
    """
    return cast("Source", values.choice(text, "--ceilings", CEILING_SOURCES))


def ceiling_lines(limits: Iterable[tuple[Dtype, Ceilings]], source: Source) -> tuple[str, ...]:
    """Each ceiling with its rate, and the knee; one line for all element types that share them."""
    dtypes: dict[tuple[object, ...], list[str]] = {}
    shared: dict[tuple[object, ...], Ceilings] = {}
    for dtype, ceilings in limits:
        key = (tuple(ceiling.per_s for ceiling in ceilings.known), ceilings.missing)
        dtypes.setdefault(key, []).append(str(dtype))
        shared.setdefault(key, ceilings)
    return tuple(_ceiling_line(ceilings, "/".join(dtypes[key]), source) for key, ceilings in shared.items())


def _ceiling_line(ceilings: Ceilings, dtypes: str, source: Source) -> str:
    parts = [_ceiling(ceiling.unit, ceiling.per_s, dtypes) for ceiling in ceilings.known]
    knee = ceilings.knee_flops_per_byte
    if knee is not None:
        parts.append(f"knee {units.short(knee, 'FLOP/B')}")
    parts += [f"no {unit} ceiling ({reason})" for unit, reason in ceilings.missing]
    others = sorted({ceiling.source for ceiling in ceilings.known if ceiling.source != source})
    stood_in = f", {', '.join(others)} where that is unknown" if others else ""
    return labelled("Ceilings", f"{source}{stood_in}: {' · '.join(parts)}")


def device_lines(target: Target) -> tuple[str, str]:
    """The GPU and how it came to be chosen; then what it is."""
    return labelled("GPU", f"{target.device.name} ({target.origin})"), device_facts(target.device)


def device_facts(device: DeviceSpec) -> str:
    """``sm_90 · 132 SMs · 141 GiB · L2 60 MiB``."""
    major, minor = device.compute_capability
    parts = [f"sm_{major}{minor}", f"{device.sm_count} SMs"]
    if device.hbm_bytes is not None:
        parts.append(units.short_binary_bytes(device.hbm_bytes))
    if device.l2_bytes is not None:
        parts.append(f"L2 {units.short_binary_bytes(device.l2_bytes)}")
    return labelled("", " · ".join(parts))


def labelled(label: str, text: str) -> str:
    """A line of the heading: what it is about, then what it says."""
    return f"{label:<{_LABEL_WIDTH}}{text}"


def workload_line(rows: Sequence[dict[str, object]]) -> str:
    """What all rows have in common: ``forward · batch 1 · 32 heads · head dim 128 · fp16 · no mask``."""
    if matrices(rows):
        types = dict.fromkeys(str(row["dtype"]) for row in rows)
        return labelled("Workload", f"softmax of a matrix's rows · {', '.join(types)}")
    parts: list[str] = []
    for key, text in _WORKLOAD_TEXT.items():
        found = {row[key] for row in rows}
        if len(found) == 1:
            parts.append(text(found.pop()))
    kv_heads = {(row["heads"], row["kv_heads"]) for row in rows}
    if len(kv_heads) == 1:
        heads, shared = cast("tuple[int, int]", kv_heads.pop())
        queried = units.counted(heads, "head")
        parts.insert(2, queried if heads == shared else f"{queried}, {units.counted(shared, 'KV head')}")
    if {row.get("layout") for row in rows} == {"bshd"}:
        parts.append("heads inside the sequence (bshd)")
    if own_scale(rows):
        parts += [f"scale {scale:g}" for scale in dict.fromkeys(row["scale"] for row in rows)]
    return labelled("Workload", " · ".join(parts))


_WORKLOAD_TEXT: dict[str, Callable[[object], str]] = {
    "pass": lambda value: "forward" if value == "fwd" else "backward",
    "batch": lambda value: f"batch {value}",
    "head_dim": lambda value: f"head dim {value}",
    "dtype": str,
    "causal": lambda value: "causal" if value else "no mask",
}


def _ceiling(unit: str, per_s: float, dtype: str) -> str:
    if unit == "hbm":
        return f"HBM {units.short(per_s, 'B/s')}"
    if unit == "tensor":
        return f"tensor {dtype} {units.short(per_s, 'FLOP/s')}"
    if unit == "exp":
        return f"exp {units.short(per_s, '/s')}"
    return f"FP32 {units.short(per_s, 'FLOP/s')}"
