"""Ceilings: datasheet, clock, and what is said where a rate is unknown."""

from __future__ import annotations

import pytest

from attnprof.model.ceilings import UNITS, Source, ceilings, knees
from attnprof.model.devices import find, from_facts, table
from attnprof.model.dtypes import Dtype


def per_s(name: str, unit: str, source: Source = "datasheet", dtype: Dtype = Dtype.FP16) -> float:
    ceiling = ceilings(find(name), dtype, source).get(unit)  # type: ignore[arg-type]
    assert ceiling is not None
    return ceiling.per_s


def test_datasheet_ceilings_of_the_a100() -> None:
    assert per_s("A100", "hbm") == 2039e9
    assert per_s("A100", "tensor") == 312e12
    assert per_s("A100", "exp") == 108 * 16 * 1.41e9
    assert per_s("A100", "fp32") == 108 * 64 * 2 * 1.41e9  # the published 19.5 TFLOP/s


def test_hopper_publishes_tensor_and_vector_rates_at_two_clocks() -> None:
    assert per_s("H100 SXM5", "fp32") == pytest.approx(66.9e12, rel=1e-3)
    assert per_s("H100 SXM5", "tensor") == 989.4e12


def test_clock_ceilings_of_the_h200() -> None:
    assert per_s("H200", "hbm", "clock") == pytest.approx(4.814e12, rel=1e-4)
    assert per_s("H200", "tensor", "clock") == pytest.approx(1070.5e12, rel=1e-4)


def test_blackwell_ultra_doubles_the_exponentials() -> None:
    assert per_s("B300", "exp") / per_s("B200", "exp", "clock") == pytest.approx(2 * 2032 / 1965)


def test_a_stand_in_says_what_it_is() -> None:
    geforce = ceilings(find("RTX 4090"), Dtype.FP16, "clock")
    tensor = geforce.get("tensor")
    assert tensor is not None
    assert tensor.source == "datasheet"
    laptop = from_facts("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), sm_count=76, max_clock_hz=2_040_000_000)
    derived = ceilings(laptop, Dtype.FP16, "datasheet").get("tensor")
    assert derived is not None
    assert derived.source == "clock"
    assert derived.detail == "76 SMs × 512 FLOP a clock × 2040 MHz"


@pytest.mark.parametrize("source", ["datasheet", "clock"])
@pytest.mark.parametrize("spec", table(), ids=lambda spec: spec.name)
def test_every_gpu_of_the_table_has_every_ceiling_in_fp16(spec: object, source: Source) -> None:
    found = ceilings(spec, Dtype.FP16, source)  # type: ignore[arg-type]
    assert tuple(ceiling.unit for ceiling in found.known) == UNITS
    assert all(ceiling.per_s > 0 for ceiling in found.known)
    assert found.missing == ()


def test_no_ceiling_comes_with_a_reason() -> None:
    volta = ceilings(find("V100"), Dtype.BF16)
    assert volta.get("tensor") is None
    assert volta.reason("tensor") == "the tensor cores of sm_70 take no bf16 (sm_80 and later do)"
    assert volta.reason("hbm") is None
    assert volta.knee_flops_per_byte is None
    spark = ceilings(from_facts("NVIDIA GB10", (12, 1), sm_count=48), Dtype.FP16)
    assert spark.known == ()
    assert [unit for unit, _ in spark.missing] == list(UNITS)
    assert spark.reason("tensor") == "no sourced tensor rate for sm_121"
    assert spark.reason("exp") == "NVIDIA GB10: its SM clock is unknown"
    assert "no published bandwidth" in (spark.reason("hbm") or "")


def test_knees_by_element_type() -> None:
    assert knees(find("A100")) == {Dtype.FP16: 312e12 / 2039e9, Dtype.BF16: 312e12 / 2039e9}
    assert list(knees(find("T4"))) == [Dtype.FP16]


def test_a_board_whose_tensor_rate_is_known_lacks_its_clock_only() -> None:
    board = from_facts("NVIDIA GeForce RTX 3060", (8, 6), sm_count=28)
    assert ceilings(board, Dtype.FP16).reason("tensor") == "NVIDIA GeForce RTX 3060: its SM clock is unknown"
    unknown = from_facts("NVIDIA A2", (8, 6), sm_count=10)
    assert "full or half rate by board" in (ceilings(unknown, Dtype.FP16).reason("tensor") or "")
