"""One note a kind of warning, however many rows it is about."""

from __future__ import annotations

from typing import Any

from attnprof.report.bench_notes import notes


def row(kernel: str, seq: int, *warnings: tuple[str, str], **values: Any) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "seq_q": seq,
        "seq_kv": seq,
        "head_dim": 64,
        "dtype": "fp16",
        "status": "ok",
        "reason": None,
        "peers": {},
        "sm_clock_hz": None,
        "naive_sm_clock_hz": None,
        "measured_speedup_vs_naive": None,
        "warnings": [{"code": code, "message": message, "advice": f"advice on {code}"} for code, message in warnings],
        **values,
    }


def throttled(kernel: str, seq: int, samples: int, of: int, reason: str = "power cap") -> dict[str, Any]:
    count = "every sample" if samples == of else f"{samples} of {of} samples"
    return row(
        kernel,
        seq,
        ("throttled", f"{count} throttled: {reason}"),
        throttled_samples=samples,
        throttle_reasons=[reason],
        time_s={"samples": [1e-3] * of},
    )


def test_a_warning_of_one_row_keeps_its_figures() -> None:
    drift = row("fa2", 64, ("clock-drift", "the SM clock went from 1980 to 1580 MHz (range 1580 to 1980)"))
    assert notes([drift, row("naive", 64)]) == (
        "fa2 at 64: the SM clock went from 1980 to 1580 MHz (range 1580 to 1980) (advice on clock-drift)",
    )


def test_clocks_of_several_rows_are_one_range() -> None:
    rows = [
        row("fa2", 64, ("clock-drift", "one"), min_sm_clock_hz=1_580_000_000, max_sm_clock_hz=1_900_000_000),
        row("fa2", 128, ("clock-drift", "two"), min_sm_clock_hz=1_650_000_000, max_sm_clock_hz=1_980_000_000),
        row("naive", 128),
    ]
    assert notes(rows) == (
        "fa2 at 64, 128: the SM clock moved between 1580 and 1980 MHz; the medians stand under Clock "
        "(advice on clock-drift)",
    )


def test_throttling_is_one_note_that_says_which_rows_never_ran_freely() -> None:
    rows = [
        throttled("naive", 64, 1, 1000),
        throttled("naive", 128, 999, 1000),
        throttled("fa2", 128, 10, 10),
        row("fa2", 64),
    ]
    assert notes(rows) == (
        "naive at 64, 128; fa2 at 128: 1 to 99 % of the samples throttled (every one of fa2 at 128): power cap "
        "(advice on throttled)",
    )


def test_every_sample_of_every_row_throttled() -> None:
    rows = [throttled("naive", 64, 5, 5), throttled("fa2", 64, 9, 9, "thermal limit")]
    assert notes(rows) == ("all rows: every sample throttled: power cap, thermal limit (advice on throttled)",)
    assert notes(rows[:1]) == ("naive at 64: every sample throttled: power cap (advice on throttled)",)


def test_rates_and_noise_give_the_largest() -> None:
    rows = [
        row(
            kernel,
            64,
            ("above-roof", f"{kernel} roof"),
            ("above-copy-rate", f"{kernel} copy"),
            ("above-matmul-rate", f"{kernel} matmul"),
            ("below-resolution", f"{kernel} short"),
            ("noisy", f"{kernel} noise"),
            pct_of_roof=100.0 * n,
            hbm_bytes_per_s=n * 1e12,
            flops_per_s=n * 1e14,
            time_s={"relative_std": 0.06 * n, "launches_per_sample": 10 * n, "samples": [1e-3]},
        )
        for n, kernel in ((2, "naive"), (3, "fa2"))
    ]
    assert [note.removeprefix("all rows: ").partition(" (")[0] for note in notes(rows)] == [
        "up to 300.0 % of the roof",
        "up to 3.00 TB/s of ledger bytes, above the copy rate",
        "up to 300.0 TFLOP/s, above the matmul rate",
        "below resolution: up to 30 launches take too short a time to be resolved; no rates are given",
        "samples vary by up to 18.0 %",
    ]


def test_a_kind_that_has_no_range_keeps_its_messages_and_reasons_come_first() -> None:
    rows = [
        row("naive", 64, ("fits-l2", "all tensors fit")),
        row("naive", 128, ("fits-l2", "the intermediates fit")),
        row("fa2", 64, ("fits-l2", "all tensors fit")),
        row("fa2", 128, status="skipped", reason="out of memory"),
    ]
    assert notes(rows) == (
        "fa2 at 128: skipped: out of memory",
        "naive at 64; fa2 at 64: all tensors fit (advice on fits-l2)",
        "naive at 128: the intermediates fit (advice on fits-l2)",
    )


def clocked(kernel: str, seq: int, mhz: int, naive_mhz: int, **values: Any) -> dict[str, Any]:
    return row(
        kernel,
        seq,
        sm_clock_hz=mhz * 1_000_000,
        naive_sm_clock_hz=naive_mhz * 1_000_000,
        **{"measured_speedup_vs_naive": 2.0, **values},
    )


def test_rows_compared_across_clocks_are_one_note_with_the_widest_pair() -> None:
    rows = [
        clocked("naive", 64, 1740, 1740),
        clocked("fa1", 64, 1800, 1740),
        clocked("fa2", 64, 1980, 1740),
        clocked("fa2", 128, 1740, 1770),  # 1.7 %: not worth a word
        clocked("fa2", 256, 1980, 1740, measured_speedup_vs_naive=None),
    ]
    assert notes(rows) == (
        "fa1 at 64; fa2 at 64: vs naive divides times at SM clocks up to 12 % apart (naive and this kernel: 1740 and "
        "1980 MHz), and is off by up to as much (lock the clocks: nvidia-smi --lock-gpu-clocks)",
    )
    assert notes(rows[:1]) == notes(rows[3:]) == ()
    # A kernel that ran at the lower clock is compared as unfairly.
    (slower,) = notes([clocked("fa2", 64, 1584, 1980)])
    assert "up to 20 % apart (naive and this kernel: 1980 and 1584 MHz)" in slower
