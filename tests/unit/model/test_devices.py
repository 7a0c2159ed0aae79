"""The GPU table, look-up by name, and specs built from what a driver reports."""

from __future__ import annotations

import json
import re

import pytest

from attnprof.model.architectures import architecture, known_architectures
from attnprof.model.ceilings import ceilings
from attnprof.model.devices import DEFAULT_GPU, DeviceSpec, find, from_facts, memory_bytes_per_s, table
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import EnvironmentProblem, UsageError


@pytest.mark.parametrize("spec", table(), ids=lambda spec: spec.name)
def test_published_rates_agree_with_units_times_clock(spec: DeviceSpec) -> None:
    """Datasheet figures and the architecture table are two sources; a slip in either shows here."""
    assert spec.references
    assert spec.hbm_bytes_per_s is not None
    at_clock = spec.hbm_bytes_per_s_at_max_clock()
    if at_clock is not None:
        assert at_clock == pytest.approx(spec.hbm_bytes_per_s, rel=0.006)
    facts = architecture(spec.compute_capability)
    assert facts is not None
    rate = facts.tensor_rate(Dtype.FP16, half=spec.half_tensor_rate)
    assert rate is not None
    if spec.boost_clock_hz is not None:
        assert spec.sm_count * rate * spec.boost_clock_hz == pytest.approx(
            spec.tensor_flops_per_s[Dtype.FP16], rel=0.013
        )
    for clock_hz in (spec.boost_clock_hz, spec.vector_clock_hz):
        if clock_hz is not None and spec.max_clock_hz is not None:
            assert clock_hz <= spec.max_clock_hz


@pytest.mark.parametrize("spec", table(), ids=lambda spec: spec.name)
def test_bf16_has_the_rate_of_fp16_and_is_missing_before_ampere(spec: DeviceSpec) -> None:
    if spec.compute_capability < (8, 0):
        assert Dtype.BF16 not in spec.tensor_flops_per_s
        assert spec.tensor_flops_per_s_at_max_clock(Dtype.BF16) is None
    else:
        assert spec.tensor_flops_per_s[Dtype.BF16] == spec.tensor_flops_per_s[Dtype.FP16]
    assert Dtype.FP32 not in spec.tensor_flops_per_s


@pytest.mark.parametrize("spec", table(), ids=lambda spec: spec.name)
def test_json_is_strict_and_whole(spec: DeviceSpec) -> None:
    data = json.loads(json.dumps(spec.as_json(), allow_nan=False))
    assert data["name"] == spec.name
    assert data["source"] == "table"
    assert data["sm_count"] == spec.sm_count
    assert data["tensor_flops_per_s"]["fp16"] == spec.tensor_flops_per_s[Dtype.FP16]
    assert 0 not in data.values()


@pytest.mark.parametrize("spec", table(), ids=lambda spec: spec.name)
def test_every_source_has_an_address_or_is_the_part_itself(spec: DeviceSpec) -> None:
    for reference in spec.references:
        assert re.fullmatch(r"\S.* <https://\S+>|CUDA device properties of the part itself", reference)
    assert any("<https://" in reference for reference in spec.references)


def test_what_is_derived_says_how() -> None:
    derived = {
        spec.name: tuple(map(int, factors.groups()))
        for spec in table()
        if (factors := re.search(r"tensor rate derived: (\d+) SMs x (\d+) x (\d+) MHz", spec.note or ""))
    }
    assert set(derived) == {"RTX 3070", "RTX 4080", "RTX PRO 6000 Blackwell"}
    for name, (sms, per_clock, mhz) in derived.items():
        assert sms == find(name).sm_count
        assert find(name).tensor_flops_per_s[Dtype.FP16] == pytest.approx(sms * per_clock * mhz * 1e6, rel=1e-3)


def test_names_are_unique() -> None:
    names = [name for spec in table() for name in (spec.name, *spec.aliases)]
    found = [find(name).name for name in names]
    assert found == [spec.name for spec in table() for _ in (spec.name, *spec.aliases)]


def test_default_is_the_a100_of_the_article() -> None:
    a100 = find(DEFAULT_GPU)
    assert a100.hbm_bytes_per_s == 2039e9
    assert a100.tensor_flops_per_s == {Dtype.FP16: 312e12, Dtype.BF16: 312e12}
    assert a100.hbm_bytes == 80 * 2**30
    assert a100.l2_bytes == 41_943_040
    assert (a100.smem_per_sm_bytes, a100.smem_per_block_bytes) == (164 * 1024, 163 * 1024)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("a100 sxm4 80gb", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("b200", "B200"),
        ("NVIDIA A10G", "A10G"),
    ],
)
def test_names_as_people_and_drivers_write_them(asked: str, name: str) -> None:
    assert find(asked).name == name


@pytest.mark.parametrize(
    "asked",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "RTX 4090 D",
        "NVIDIA L20",
        "RTX",
        "",
    ],
)
def test_another_part_is_unknown_rather_than_wrong(asked: str) -> None:
    with pytest.raises(UsageError):
        find(asked)


def test_unknown_name_offers_close_ones_and_all() -> None:
    with pytest.raises(UsageError) as caught:
        find("H2000")
    assert caught.value.message == "unknown GPU 'H2000'"
    assert caught.value.hint is not None
    assert "did you mean" in caught.value.hint
    assert all(spec.name in caught.value.hint for spec in table())


@pytest.mark.parametrize(
    ("clock_mhz", "bus_bits", "gb_per_s"),
    [(9751, 384, 936.1), (9001, 192, 432.0), (10501, 384, 1008.1), (3201, 6016, 4814.3)],
)
def test_bandwidth_is_twice_clock_times_width(clock_mhz: int, bus_bits: int, gb_per_s: float) -> None:
    rate = memory_bytes_per_s(clock_mhz * 1_000_000, bus_bits)
    assert rate is not None
    assert round(rate / 1e9, 1) == gb_per_s


def test_facts_join_the_table_by_name() -> None:
    spec = from_facts(
        "NVIDIA H200",
        (9, 0),
        sm_count=132,
        memory_clock_hz=3_201_000_000,
        memory_bus_bits=6016,
        max_clock_hz=1_980_000_000,
        hbm_bytes=150_754_820_096,
        l2_bytes=62_914_560,
    )
    assert spec.source == "nvml"
    assert spec.name == "NVIDIA H200"
    assert spec.hbm_bytes_per_s == 4800e9
    assert spec.hbm_bytes == 150_754_820_096
    assert spec.tensor_flops_per_s[Dtype.FP16] == 989e12
    assert spec.hbm_bytes_per_s_at_max_clock() == pytest.approx(4.814e12, rel=1e-4)
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.BF16) == 132 * 4096 * 1_980_000_000
    assert spec.smem_per_block_bytes == 227 * 1024
    assert spec.references == find("H200").references
    json.dumps(spec.as_json(), allow_nan=False)


def test_a_laptop_part_gets_derived_rates_only() -> None:
    spec = from_facts(
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        (8, 9),
        sm_count=76,
        memory_clock_hz=9_001_000_000,
        memory_bus_bits=256,
        max_clock_hz=2_040_000_000,
    )
    assert spec.hbm_bytes_per_s is None
    assert spec.tensor_flops_per_s == {}
    assert spec.hbm_bytes is None
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.FP16) == 76 * 512 * 2_040_000_000


@pytest.mark.parametrize(
    ("name", "capability", "per_clock"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), 512),
        ("NVIDIA GeForce RTX 3060", (8, 6), 512),
        ("NVIDIA GeForce RTX 4070 SUPER", (8, 9), 512),
        ("GeForce RTX 4090 D", (8, 9), 512),
        ("NVIDIA GeForce RTX 5070 Laptop GPU", (12, 0), 512),
        ("Quadro RTX 8000", (7, 5), 1024),
        ("Quadro RTX 5000 with Max-Q Design", (7, 5), None),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), 1024),
        ("NVIDIA RTX A4000", (8, 6), 1024),  # 153.4 TFLOP/s with sparsity: 2 x 48 SMs x 1024 x 1560 MHz
        ("NVIDIA RTX A400", (8, 6), 1024),
        ("NVIDIA RTX 4000 Ada Generation", (8, 9), 1024),
        ("NVIDIA RTX PRO 5000 Blackwell", (12, 0), 1024),
        # The name does not tell: twice too high would be worse than nothing.
        ("NVIDIA L20", (8, 9), None),
        ("NVIDIA A10-24Q", (8, 6), None),
        ("NVIDIA RTX A2000 Laptop GPU", (8, 6), None),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", (8, 9), None),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), None),  # no tensor cores at all
        ("NVIDIA T1000", (7, 5), None),
        ("unknown GPU", (8, 6), None),
        # There is but one rate: no name is needed.
        ("unknown GPU", (8, 0), 2048),
        ("NVIDIA A800-SXM4-80GB", (8, 0), 2048),
        ("NVIDIA H800", (9, 0), 4096),
    ],
)
def test_the_tensor_rate_of_a_part_that_is_not_in_the_table(
    name: str, capability: tuple[int, int], per_clock: int | None
) -> None:
    spec = from_facts(name, capability, sm_count=40, max_clock_hz=1_000_000_000)
    expected = None if per_clock is None else 40 * per_clock * 1_000_000_000
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.FP16) == expected
    assert ("fp16" in spec.as_json()["tensor_flops_per_s_at_max_clock"]) == (per_clock is not None)  # type: ignore[operator]
    tensor = ceilings(spec, Dtype.FP16)
    if per_clock is None:
        assert tensor.get("tensor") is None
        assert tensor.reason("tensor") == (
            f"{name}: tensor cores of sm_{capability[0]}{capability[1]} run at full or half rate by board, and which "
            "is not known of this one"
        )
    else:
        assert tensor.get("tensor") is not None


def test_a_part_of_the_same_name_with_fewer_sms_keeps_no_published_rate() -> None:
    spec = from_facts("NVIDIA A100-SXM4-80GB", (8, 0), sm_count=98, max_clock_hz=1_410_000_000)
    assert spec.tensor_flops_per_s == {}
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.FP16) == 98 * 2048 * 1_410_000_000


def test_a_name_of_the_table_on_another_architecture_is_not_that_part() -> None:
    spec = from_facts("NVIDIA L4", (12, 0), sm_count=58)
    assert spec.tensor_flops_per_s == {}
    assert spec.l2_bytes is None


def test_a10g_is_no_a10() -> None:
    spec = from_facts("NVIDIA A10G", (8, 6), sm_count=80, max_clock_hz=1_710_000_000)
    assert spec.tensor_flops_per_s[Dtype.BF16] == 70e12
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.BF16) == 80 * 512 * 1_710_000_000


def test_the_cap_of_h20_survives_the_join() -> None:
    spec = from_facts("NVIDIA H20", (9, 0), sm_count=78, max_clock_hz=1_980_000_000)
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.FP16) == 148e12


def test_zeros_from_a_driver_are_unknown() -> None:
    spec = from_facts("NVIDIA GB10", (12, 1), sm_count=48, memory_bus_bits=0, memory_clock_hz=0, hbm_bytes=0)
    assert spec.hbm_bytes_per_s_at_max_clock() is None
    assert spec.hbm_bytes is None
    assert spec.memory_bus_bits is None


def test_what_cuda_does_not_say_comes_from_the_table() -> None:
    assert from_facts("NVIDIA H200", (9, 0)).sm_count == 132
    with pytest.raises(EnvironmentProblem, match="how many SMs"):
        from_facts("unknown GPU", (9, 0))


def test_a_future_architecture_keeps_to_what_every_gpu_has() -> None:
    spec = from_facts("NVIDIA X1", (15, 0), sm_count=10, max_clock_hz=2_000_000_000)
    assert spec.smem_per_block_bytes == 48 * 1024
    assert spec.tensor_flops_per_s_at_max_clock(Dtype.FP16) is None
    assert from_facts("NVIDIA X1", (15, 0), sm_count=10, smem_per_block_bytes=300_000).smem_per_block_bytes == 300_000


def test_architectures_are_self_consistent() -> None:
    for facts in known_architectures():
        assert facts.smem_per_block_bytes + facts.smem_reserved_bytes == facts.smem_per_sm_bytes
        assert facts.max_threads_per_sm == 32 * facts.max_warps_per_sm
        assert facts.exponentials_per_clock == (32 if facts.compute_capability == (10, 3) else 16)
        assert facts.has_bf16 == (facts.compute_capability >= (8, 0))
