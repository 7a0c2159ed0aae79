from __future__ import annotations

import pytest

from attnprof.report import units


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1353367, "135.3 ms"),
        (56.4e-3, "56.40 ms"),
        (0.99996, "1.000 s"),  # rounds into the next prefix
        (0.999949, "999.9 ms"),
        (999.96e-6, "1.000 ms"),
        (1e-6, "1.000 µs"),
        (1e-3, "1.000 ms"),
        (1.0, "1.000 s"),
        (86400.0, "86.40 ks"),
        (1e-20, "1.000e-20 s"),
        (0.0, "0 s"),
        (-0.002, "-2.000 ms"),
    ],
)
def test_times_have_four_digits_and_a_prefix(value: float, expected: str) -> None:
    assert units.time(value) == expected


@pytest.mark.parametrize("exponent", range(-12, 25, 3))
def test_every_power_of_a_thousand_starts_a_prefix(exponent: int) -> None:
    number, unit = units.si(10.0**exponent, "s").split()
    assert number == "1.000"
    assert unit == {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E",
                    21: "Z", 24: "Y"}[exponent] + "s"  # fmt: skip


def test_decimal_and_binary_bytes_are_both_labelled() -> None:
    # M6: S at 32768 in fp32 for one head.
    s_bytes = 32768 * 32768 * 4
    assert units.decimal_bytes(s_bytes) == "4.295 GB"
    assert units.binary_bytes(s_bytes) == "4.000 GiB"
    assert units.exact(275_951_648_768) == "275,951,648,768"
    assert units.binary_bytes(1023) == "1023 B"
    assert units.binary_bytes(0) == "0 B"
    assert units.short_binary_bytes(80 * 2**30) == "80 GiB"
    assert units.short_binary_bytes(126 * 2**20 + 2**19) == "126.5 MiB"


def test_huge_counts_are_exact_or_rounded_never_wrong() -> None:
    assert units.exact(2**74) == "18,889,465,931,478,580,854,784"
    assert units.flops(2**74) == "18.89 Z"
    assert units.decimal_bytes(10**28) == "1.000e+28 B"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_unknown_is_a_dash_and_never_zero(value: float | None) -> None:
    for form in (units.time, units.ratio, units.percent, units.intensity, units.error, units.bytes_per_s, units.text):
        assert form(value) == "—", form


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [(63.75, 4, "63.75"), (16384, 4, "16384"), (0.2, 4, "0.2000"), (2.4, 3, "2.40"), (99.996, 4, "100.0"), (0, 4, "0")],
)
def test_fixed_never_uses_an_exponent(value: float, digits: int, expected: str) -> None:
    assert units.fixed(value, digits) == expected


def test_headings_drop_trailing_zeros_only() -> None:
    assert units.short(312e12, "FLOP/s") == "312 TFLOP/s"
    assert units.short(2.039e12, "B/s") == "2.039 TB/s"
    assert units.short(100e9, "B/s") == "100 GB/s"
    assert units.short(None, "B/s") == "—"


def test_percentages_above_a_hundred_are_shown() -> None:
    assert units.percent(280.04) == "280.0 %"
