"""What ``attnprof softmax`` shows: a row a step of the recurrence, then a row a number with its probability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnprof.model.softmax import NaiveHalfSoftmax, OnlineStep
from attnprof.report import units
from attnprof.report.document import Column, Report, Section

LARGEST_HALF = 65504
_MOST_ROWS = 20
_MOST_VALUES = 8


def decimals(value: float) -> str:
    """Four decimals, or an exponent for what they would show as 0, which is left to 0 itself."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if abs(value) >= 5e-5 else f"{value:.2e}"


def number(value: float) -> str:
    """A number as it was typed, whole ones without a point."""
    return str(_plain(value))


STEP_COLUMNS: tuple[Column, ...] = (
    Column("step", "Step", "the number of the block"),
    Column("values", "Block", "the numbers that come in", align="left", in_csv=False),
    Column("block", "Block", "the numbers that come in", show="never"),
    Column("max_text", "Max m", "the largest number so far", in_csv=False),
    Column("max", "Max m", "the largest number so far; empty while all are masked", show="never"),
    Column("rescale", "Rescale", "exp(m_old - m), what the old sum is multiplied with", decimals),
    Column("sum", "Sum l", "the sum of exp(x - m) so far", decimals),
)

PROBABILITY_COLUMNS: tuple[Column, ...] = (
    Column("x", "x", "the number"),
    Column("online", "p", "exp(x - m) / l", decimals),
    Column("safe", "Three-pass", "probability by maximum, sum, division", decimals),
    Column("naive", "fp16, no max", "exp(x) / sum of exp(x), every result rounded to fp16"),
)


def report(
    x: Sequence[float],
    block: int,
    steps: Sequence[OnlineStep],
    online: Sequence[float],
    safe: Sequence[float],
    naive: NaiveHalfSoftmax,
    fields: Mapping[str, Any],
) -> Report:
    """The whole trace.

    Args:
        x: the numbers.
        block: how many come in at a time.
        steps: the recurrence, a step a block.
        online: the probabilities that it leads to.
        safe: those of the three-pass softmax.
        naive: the softmax without the maximum in fp16.
        fields: the JSON fields besides the steps.
    """
    final = steps[-1]
    heading = (
        f"{units.counted(len(x), 'number', form=',')}, {units.counted(len(steps), 'block', form=',')} "
        f"of {min(block, len(x))}",
        "each block: m = max(m_old, block), l = l_old * exp(m_old − m) + sum of exp(x − m)",
    )
    rows = [
        {
            "step": index,
            "values": _values(step.block),
            "block": [_plain(value) for value in step.block],
            "max_text": number(step.max),
            "max": _plain(step.max),
            "rescale": step.rescale,
            "sum": step.sum,
        }
        for index, step in enumerate(steps, 1)
    ]
    probabilities = [
        {"x": number(value), "online": p, "safe": q, "naive": _half_text(r)}
        for value, p, q, r in zip(x, online, safe, naive.probabilities, strict=True)
    ]
    return Report(
        "softmax",
        STEP_COLUMNS,
        (
            Section(heading, rows, (_result(final),), most_rows=_MOST_ROWS),
            Section(
                (),
                probabilities,
                (_agreement(fields["max_difference"]), _naive_note(x, naive, fields["naive_fp16"]["max_difference"])),
                columns=PROBABILITY_COLUMNS,
                most_rows=_MOST_ROWS,
            ),
        ),
        fields={**fields, "max": _plain(final.max)},
        rows_key="steps",
        json_rows=[_json_step(row) for row in rows],
        summary=_left_out(len(rows), len(probabilities)),
    )


def _json_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """A step as JSON has it: the first one has nothing to rescale."""
    keys = ("block", "max", "sum") if row["rescale"] is None else ("block", "max", "rescale", "sum")
    return {key: row[key] for key in keys}


def _result(final: OnlineStep) -> str:
    if final.sum == 0.0:
        return "every number is masked: l = 0, and each p is 0 by definition"
    return f"result: m = {number(final.max)}, l = {decimals(final.sum)}; p = exp(x − m) / l"


def _agreement(difference: float) -> str:
    return f"largest difference from the three-pass softmax: {_short(difference)}"


def _naive_note(x: Sequence[float], naive: NaiveHalfSoftmax, difference: float | None) -> str:
    without = "without the maximum in fp16"
    too_large = f"above {LARGEST_HALF:,}, the largest fp16, so it is inf"
    if any(map(math.isinf, naive.exponentials)):
        return f"{without}: exp({number(max(x))}) is {too_large}, and inf / inf is NaN"
    if math.isinf(naive.sum):
        return f"{without}: the sum is {too_large}, and every p is 0"
    if difference is None:
        return f"{without}: every exponential is at most 2^-25 and rounds to 0, and 0 / 0 is NaN"
    return f"{without}: no overflow here, largest difference {_short(difference)}; exp(x) overflows from x = 11.09 on"


def _short(difference: float) -> str:
    return "0" if difference == 0 else f"{difference:.1e}"


def _left_out(steps: int, values: int) -> tuple[str, ...]:
    left = [
        f"{_MOST_ROWS} of {count:,} {name}"
        for count, name in ((steps, "steps"), (values, "numbers"))
        if count > _MOST_ROWS
    ]
    return (f"shown: {' and '.join(left)}; --json has all",) if left else ()


def _values(block: Sequence[float]) -> str:
    if len(block) <= _MOST_VALUES:
        return ", ".join(map(number, block))
    shown = ", ".join(map(number, block[: _MOST_VALUES // 2]))
    return f"{shown}, … {number(block[-1])} ({len(block):,} numbers)"


def _half_text(value: float) -> str:
    return "NaN" if math.isnan(value) else decimals(value)


def _plain(value: float) -> float | int:
    """A whole number as an int, where a double holds it exactly."""
    return int(value) if abs(value) < 2**53 and value == int(value) else value
