"""What a benchmark says below its table: a note a reason or kind of warning, with the rows it is about.

Each row of the JSON has its own warnings with its own figures. Twelve rows at a power limit would fill a screen with
them, so a person gets one note a kind, with the range of the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attnprof.report.document import Row
from attnprof.report.roofline import TUNED, RowNames

# Clocks that differ by more than this make the ratio of two rows' times doubtful by about as much.
CLOCKS_APART = 0.02


def notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why rows are not ``ok``, why peers have no time, the warnings, and rows that are compared across clocks.

    Each is said once, with the rows it is about.
    """
    found = (*_reasons(rows), *_warnings(rows), *_clocks_apart(rows))
    names = RowNames(rows)
    return tuple(f"{names(about)}: {text}" for text, about in found)


def _reasons(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] != "ok":
            why = row["status"] if row["reason"] == row["status"] else f"{row['status']}: {row['reason']}"
            found.setdefault(why, []).append(row)
        for peer, result in row["peers"].items():
            if result["reason"] and row["status"] == "ok":
                found.setdefault(f"no time of {peer}: {result['reason']}", []).append(row)
        if row.get("tiles_source") == "tuned":
            found.setdefault(TUNED, []).append(row)
    yield from found.items()


def _warnings(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    kinds: dict[str, dict[str, list[Row]]] = {}
    advice: dict[str, str] = {}
    for row in rows:
        for warning in row["warnings"]:
            kinds.setdefault(warning["code"], {}).setdefault(warning["message"], []).append(row)
            advice[warning["code"]] = warning["advice"]
    for code, by_message in kinds.items():
        together = _TOGETHER.get(code)
        if together is not None and len(by_message) > 1:
            about = [row for row in rows if any(warning["code"] == code for warning in row["warnings"])]
            by_message = {together(about): about}
        for message, about in by_message.items():
            yield f"{message} ({advice[code]})", about


def _clocks_apart(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows whose ``vs naive`` divides times that were taken at different clocks."""
    apart: list[tuple[float, Row]] = []
    for row in rows:
        clock, naive = row["sm_clock_hz"], row["naive_sm_clock_hz"]
        if row["measured_speedup_vs_naive"] is None or clock is None or naive is None:
            continue
        difference = abs(clock - naive) / max(clock, naive)
        if difference > CLOCKS_APART:
            apart.append((difference, row))
    if apart:
        most, row = max(apart, key=lambda pair: pair[0])
        clocks = f"{row['naive_sm_clock_hz'] / 1e6:.0f} and {row['sm_clock_hz'] / 1e6:.0f} MHz"
        yield (
            f"vs naive divides times at SM clocks up to {100 * most:.0f} % apart (naive and this kernel: {clocks}), "
            "and is off by up to as much (lock the clocks: nvidia-smi --lock-gpu-clocks)",
            [row for _, row in apart],
        )


def _above_roof(about: Sequence[Row]) -> str:
    return f"up to {max(row['pct_of_roof'] for row in about):.1f} % of the roof"


def _above_copy_rate(about: Sequence[Row]) -> str:
    return f"up to {max(row['hbm_bytes_per_s'] for row in about) / 1e12:.2f} TB/s of ledger bytes, above the copy rate"


def _above_matmul_rate(about: Sequence[Row]) -> str:
    return f"up to {max(row['flops_per_s'] for row in about) / 1e12:.1f} TFLOP/s, above the matmul rate"


def _below_resolution(about: Sequence[Row]) -> str:
    launches = max(row["time_s"]["launches_per_sample"] for row in about)
    return f"below resolution: up to {launches} launches take too short a time to be resolved; no rates are given"


def _clock_drift(about: Sequence[Row]) -> str:
    low = min(row["min_sm_clock_hz"] for row in about)
    high = max(row["max_sm_clock_hz"] for row in about)
    return f"the SM clock moved between {low / 1e6:.0f} and {high / 1e6:.0f} MHz; the medians stand under Clock"


def _throttled(about: Sequence[Row]) -> str:
    reasons = ", ".join(dict.fromkeys(reason for row in about for reason in row["throttle_reasons"]))
    shares = {id(row): row["throttled_samples"] / len(row["time_s"]["samples"]) for row in about}
    always = [row for row in about if shares[id(row)] == 1.0]
    if len(always) == len(about):
        return f"every sample throttled: {reasons}"
    # Rounded down, so that 100 % is every sample, and one in a thousand is not 0 %.
    partial = sorted(max(1, int(100 * share)) for share in shares.values() if share < 1.0)
    span = f"{partial[0]} %" if partial[0] == partial[-1] else f"{partial[0]} to {partial[-1]} %"
    every = f" (every one of {RowNames(about)(always)})" if always else ""
    return f"{span} of the samples throttled{every}: {reasons}"


def _noisy(about: Sequence[Row]) -> str:
    most = 100 * max(row["time_s"]["relative_std"] for row in about)
    return f"samples vary by up to {most:.1f} % (relative standard deviation)"


# How to say for several rows at once what each row's warning says with its own figures.
_TOGETHER: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "above-roof": _above_roof,
    "above-copy-rate": _above_copy_rate,
    "above-matmul-rate": _above_matmul_rate,
    "below-resolution": _below_resolution,
    "clock-drift": _clock_drift,
    "throttled": _throttled,
    "noisy": _noisy,
}
