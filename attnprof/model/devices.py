"""GPU specifications: the built-in table, look-up by name, and specs built from what NVML and CUDA report.

The table is ``data/gpus.csv``; each row carries its sources and says what is derived. Rates are decimal (GB/s,
TFLOP/s), dense, with FP32 accumulation; sizes are binary, as devices report them (the 80 GB of an A100 are 80 · 2^30
bytes less what the driver keeps, its 40 MB of L2 are 40 · 2^20). Memory clocks are NVML's: half the data rate.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from attnprof.model.architectures import Architecture, architecture
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import EnvironmentProblem, UsageError
from attnprof.model.suggest import closest

DEFAULT_GPU = "A100-SXM4-80GB"

_TABLE = Path(__file__).parent / "data" / "gpus.csv"
_MHZ = 1_000_000
# What every CUDA GPU gives a block without opting in: the floor where neither table nor device says more.
_SMEM_FLOOR_BYTES = 48 * 1024


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One GPU as its datasheet or NVML describes it. Unknown values are ``None``, never 0.

    Units are in the names. ``tensor_flops_per_s`` and ``hbm_bytes_per_s`` are the published rates (dense, with FP32
    accumulation, by element type); the methods that end in ``_at_max_clock`` give units × clock instead.

    Attributes:
        boost_clock_hz: the SM clock behind the published tensor rates.
        vector_clock_hz: the SM clock behind the published rates of all other units; Hopper and Blackwell have two.
        max_clock_hz: the highest SM clock that the device can reach.
        memory_clock_hz: the highest memory clock, as NVML reports it (half the data rate).
        tensor_cap: the published tensor rate is a limit below units × clock (H20).
        half_tensor_rate: the board runs its tensor cores at half rate with FP32 accumulation (GeForce, L40); ``None``
            where that is not known.
        aliases: other names of the same row of the table.
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
    vector_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    memory_bus_bits: int | None = None
    tensor_cap: bool = False
    half_tensor_rate: bool | None = False
    aliases: tuple[str, ...] = ()
    note: str | None = None

    @property
    def architecture(self) -> Architecture | None:
        """What its SMs are made of, or ``None`` for a compute capability that is not in the table."""
        return architecture(self.compute_capability)

    def hbm_bytes_per_s_at_max_clock(self) -> float | None:
        """2 × memory clock × bus width / 8: two transfers a clock, eight bits a byte."""
        return memory_bytes_per_s(self.memory_clock_hz, self.memory_bus_bits)

    def tensor_flops_per_s_at_max_clock(self, dtype: Dtype) -> float | None:
        """SMs × FLOPs per clock and SM × the maximum clock, or the published cap where one applies."""
        if self.tensor_cap:
            return self.tensor_flops_per_s.get(dtype)
        units = self.architecture
        rate = None if units is None else units.tensor_rate(dtype, half=self.half_tensor_rate)
        return _times(self.sm_count, rate, self.max_clock_hz)

    def as_json(self) -> dict[str, object]:
        """The device as the JSON output shows it: plain values, ``None`` where unknown."""
        return {
            "name": self.name,
            "source": self.source,
            "compute_capability": f"{self.compute_capability[0]}.{self.compute_capability[1]}",
            "sm_count": self.sm_count,
            "hbm_bytes_per_s": self.hbm_bytes_per_s,
            "hbm_bytes_per_s_at_max_clock": self.hbm_bytes_per_s_at_max_clock(),
            "hbm_bytes": self.hbm_bytes,
            "l2_bytes": self.l2_bytes,
            "smem_per_sm_bytes": self.smem_per_sm_bytes,
            "smem_per_block_bytes": self.smem_per_block_bytes,
            "boost_clock_hz": self.boost_clock_hz,
            "vector_clock_hz": self.vector_clock_hz,
            "max_clock_hz": self.max_clock_hz,
            "memory_clock_hz": self.memory_clock_hz,
            "memory_bus_bits": self.memory_bus_bits,
            "tensor_flops_per_s": {str(dtype): rate for dtype, rate in self.tensor_flops_per_s.items()},
            "tensor_flops_per_s_at_max_clock": {
                str(dtype): rate for dtype in Dtype if (rate := self.tensor_flops_per_s_at_max_clock(dtype)) is not None
            },
            "note": self.note,
            "references": list(self.references),
        }


def memory_bytes_per_s(memory_clock_hz: int | None, bus_bits: int | None) -> float | None:
    """Peak memory bandwidth: 2 × clock × bus width / 8. 9751 MHz × 384 bit gives 936.1 GB/s."""
    if not memory_clock_hz or not bus_bits:
        return None
    return 2 * memory_clock_hz * bus_bits / 8


@cache
def table() -> tuple[DeviceSpec, ...]:
    """The built-in GPUs, in the order of the table."""
    with _TABLE.open(encoding="utf-8", newline="") as lines:
        return tuple(_from_row(row) for row in csv.DictReader(lines))


def find(name: str) -> DeviceSpec:
    """The GPU of that name: any case, with or without ``NVIDIA``/``GeForce``, spaces and dashes alike.

    Names as NVML reports them are found too. A laptop part is not the desktop part of the same number, so
    ``RTX 4090 Laptop GPU`` is unknown rather than wrong.

    Raises:
        UsageError: no such GPU; the hint lists the closest names and all of them.
    """
    spec = _by_key().get(_key(name))
    if spec is not None:
        return spec
    meant = closest(_key(name), {key: each.name for key, each in _by_key().items()})
    raise UsageError(f"unknown GPU {name!r}", f"{meant}the table has: {', '.join(spec.name for spec in table())}")


def standing_for(compute_capability: tuple[int, int]) -> DeviceSpec | None:
    """A GPU of the table with that compute capability, for questions about an architecture; None if there is none."""
    return next((device for device in table() if device.compute_capability == compute_capability), None)


def from_facts(
    name: str,
    compute_capability: tuple[int, int],
    *,
    sm_count: int | None = None,
    memory_clock_hz: int | None = None,
    memory_bus_bits: int | None = None,
    max_clock_hz: int | None = None,
    hbm_bytes: int | None = None,
    l2_bytes: int | None = None,
    smem_per_sm_bytes: int | None = None,
    smem_per_block_bytes: int | None = None,
) -> DeviceSpec:
    """A spec from what NVML and CUDA report, joined by name with the table for what cannot be derived.

    The device wins wherever it reports a value. The published rates come from the table alone, and only where its
    row has the same compute capability and SM count: a cut-down part under the same name keeps derived rates.
    Zeros count as unknown: drivers report 0 for what a device lacks (the bus width of a Jetson).

    Raises:
        EnvironmentProblem: neither the device nor the table gives the number of SMs.
    """
    row = _by_key().get(_key(name))
    if row is not None and row.compute_capability != compute_capability:
        row = None
    sms = sm_count or (row.sm_count if row else None)
    if not sms:
        raise EnvironmentProblem(
            f"{name}: neither CUDA nor the table says how many SMs it has", "check the driver with nvidia-smi"
        )
    published = row if row is not None and row.sm_count == sms else None
    facts = architecture(compute_capability)
    return DeviceSpec(
        name=name,
        source="nvml",
        compute_capability=compute_capability,
        sm_count=sms,
        hbm_bytes_per_s=published.hbm_bytes_per_s if published else None,
        hbm_bytes=hbm_bytes or (row.hbm_bytes if row else None),
        l2_bytes=l2_bytes or (row.l2_bytes if row else None),
        smem_per_sm_bytes=smem_per_sm_bytes or (facts.smem_per_sm_bytes if facts else _SMEM_FLOOR_BYTES),
        smem_per_block_bytes=smem_per_block_bytes or (facts.smem_per_block_bytes if facts else _SMEM_FLOOR_BYTES),
        boost_clock_hz=published.boost_clock_hz if published else None,
        max_clock_hz=max_clock_hz or (row.max_clock_hz if row else None),
        tensor_flops_per_s=published.tensor_flops_per_s if published else {},
        references=published.references if published else (),
        vector_clock_hz=published.vector_clock_hz if published else None,
        memory_clock_hz=memory_clock_hz or None,
        memory_bus_bits=memory_bus_bits or None,
        tensor_cap=published.tensor_cap if published else False,
        half_tensor_rate=row.half_tensor_rate if row else _half_tensor_rate(name, facts),
        aliases=published.aliases if published else (),
        note=published.note if published else None,
    )


# Series whose boards the architecture whitepapers give the full rate with FP32 accumulation: Quadro RTX (Turing), RTX A
# (GA102), RTX Ada Generation (Ada) and RTX PRO (RTX Blackwell PRO).
_FULL_RATE = re.compile(
    r"quadro rtx \d{4}(?! with max-q)|rtx a\d{3,4}|rtx \d{4} ada generation|rtx pro \d{4} blackwell"
)


def _half_tensor_rate(name: str, facts: Architecture | None) -> bool | None:
    """Whether a board that is not in the table runs its tensor cores at half rate, as far as its name tells.

    The same chip is sold with either rate, and no driver reports which. GeForce RTX is half (GA102 whitepaper V2.1, Ada
    whitepaper V2.1 and RTX Blackwell whitepaper V1.1: "FP16 Tensor TFLOPS with FP32 Accumulate" is half of that "with
    FP16 Accumulate"), workstation series are full. Data-centre boards differ one by one: L40S is full and L40 half,
    A10 full and A10G half, so an L20 is unknown rather than perhaps twice too fast. So is a mobile workstation part,
    and a GeForce GTX or MX, whose compute capability 7.5 comes without tensor cores.
    """
    if facts is None or not facts.has_half_rate_boards:
        return False
    lower = name.lower()
    if "geforce rtx" in lower:
        return True
    return False if _FULL_RATE.search(lower) and "laptop" not in lower else None


def _key(name: str) -> str:
    words = re.findall(r"[a-z0-9.]+", name.lower())
    return "".join(word for word in words if word not in ("nvidia", "geforce", "tesla", "quadro"))


@cache
def _by_key() -> dict[str, DeviceSpec]:
    return {_key(name): spec for spec in table() for name in (spec.name, *spec.aliases)}


def _from_row(row: Mapping[str, str]) -> DeviceSpec:
    major, minor = row["cc"].split(".")
    facts = architecture((int(major), int(minor)))
    if facts is None:
        raise ValueError(f"{row['name']}: compute capability {row['cc']} is not in the architecture table")
    rates = {Dtype.FP16: _number(row["fp16_dense_tflops"], 1e12), Dtype.BF16: _number(row["bf16_dense_tflops"], 1e12)}
    return DeviceSpec(
        name=row["name"],
        source="table",
        compute_capability=facts.compute_capability,
        sm_count=int(row["sm_count"]),
        hbm_bytes_per_s=_number(row["memory_gb_per_s"], 1e9),
        hbm_bytes=_integer(row["memory_gib"], 2**30),
        l2_bytes=_integer(row["l2_mib"], 2**20),
        smem_per_sm_bytes=facts.smem_per_sm_bytes,
        smem_per_block_bytes=facts.smem_per_block_bytes,
        boost_clock_hz=_integer(row["boost_mhz"], _MHZ),
        max_clock_hz=_integer(row["max_mhz"], _MHZ),
        tensor_flops_per_s={dtype: rate for dtype, rate in rates.items() if rate is not None},
        references=tuple(source.strip() for source in row["sources"].split(";")),
        vector_clock_hz=_integer(row["vector_mhz"] or row["boost_mhz"], _MHZ),
        memory_clock_hz=_integer(row["memory_mhz"], _MHZ),
        memory_bus_bits=_integer(row["bus_bits"], 1),
        tensor_cap=row["flags"] == "tensor-cap",
        half_tensor_rate=row["flags"] == "half-tensor-rate",
        aliases=tuple(alias.strip() for alias in row["aliases"].split(";") if alias.strip()),
        note=row["note"] or None,
    )


def _number(text: str, unit: float) -> float | None:
    # round() so that 2039 GB/s is the integer it names, not 2038999999999.9998.
    return float(round(float(text) * unit)) if text else None


def _integer(text: str, unit: int) -> int | None:
    return round(float(text) * unit) if text else None


def _times(*factors: int | None) -> float | None:
    product = 1
    for factor in factors:
        if factor is None:
            return None
        product *= factor
    return float(product)
