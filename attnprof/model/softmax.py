"""The online softmax, one block at a time, beside the three-pass softmax it must agree with.

Plain Python: a step-by-step account of a handful of numbers, for showing. Source: Milakov and Gimelshein, "Online
normalizer calculation for softmax" (arXiv:1805.02867), algorithms 2 and 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class OnlineStep:
    """The running statistics after one block.

    Attributes:
        block: the values that came in.
        max: m, the largest value so far.
        rescale: what the old sum was multiplied with, exp(m_old − m); ``None`` for the first block.
        sum: l, the sum of exp(x − m) so far.
    """

    block: tuple[float, ...]
    max: float
    rescale: float | None
    sum: float


def online_softmax(x: Sequence[float], block: int) -> tuple[OnlineStep, ...]:
    """One pass over ``x`` in blocks, keeping a running maximum and sum.

    Values of −inf (masked) are allowed; while nothing else has come in, the maximum is −inf and the sum 0.

    Raises:
        UsageError: no values, a NaN or +inf among them, or a block below 1.
    """
    _check(x)
    if block < 1:
        raise UsageError(f"block is {block}; it must be at least 1")
    steps: list[OnlineStep] = []
    m, total = -math.inf, 0.0
    for start in range(0, len(x), block):
        values = tuple(float(value) for value in x[start : start + block])
        m_new = max(m, *values)
        rescale = _exp_difference(m, m_new)
        total = total * rescale + math.fsum(_exp_difference(value, m_new) for value in values)
        steps.append(OnlineStep(values, m_new, rescale if steps else None, total))
        m = m_new
    return tuple(steps)


def normalise(x: Sequence[float], final: OnlineStep) -> tuple[float, ...]:
    """The probabilities, from the statistics of the last step; zeros when every value is masked."""
    if final.sum == 0.0:
        return (0.0,) * len(x)
    return tuple(_exp_difference(value, final.max) / final.sum for value in x)


def safe_softmax(x: Sequence[float]) -> tuple[float, ...]:
    """The three-pass softmax: maximum, sum of exp(x − max), divide. Zeros when every value is masked.

    Raises:
        UsageError: no values, or a NaN or +inf among them.
    """
    _check(x)
    largest = max(x)
    if largest == -math.inf:
        return (0.0,) * len(x)
    terms = [math.exp(value - largest) for value in x]
    total = math.fsum(terms)
    return tuple(term / total for term in terms)


@dataclass(frozen=True, slots=True)
class NaiveHalfSoftmax:
    """Softmax without subtracting the maximum, every result rounded to fp16, as a naive half-precision kernel has it.

    Attributes:
        exponentials: exp(x); inf above 65,504, the largest fp16, which it is from x = 11.09 on.
        sum: their sum, rounded after each addition.
        probabilities: exponential / sum; NaN where that is inf / inf or 0 / 0.
    """

    exponentials: tuple[float, ...]
    sum: float
    probabilities: tuple[float, ...]


def naive_half_softmax(x: Sequence[float]) -> NaiveHalfSoftmax:
    """What comes of ``exp(x) / sum(exp(x))`` in fp16: the trap that the maximum is there for.

    Raises:
        UsageError: no values, or a NaN or +inf among them.
    """
    _check(x)
    exponentials = tuple(_half(_exp(_half(value))) for value in x)
    total = 0.0
    for term in exponentials:
        total = _half(total + term)
    return NaiveHalfSoftmax(exponentials, total, tuple(_half_quotient(term, total) for term in exponentials))


def _half(value: float) -> float:
    """The nearest fp16, ties to even; inf beyond the largest."""
    try:
        (rounded,) = struct.unpack("e", struct.pack("e", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(rounded)


def _half_quotient(numerator: float, denominator: float) -> float:
    if denominator == 0.0 or math.isinf(numerator):
        return math.nan  # 0 / 0, as no term of a sum that is 0 is anything else; inf / inf, as its sum is inf too
    return _half(numerator / denominator)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _check(x: Sequence[float]) -> None:
    if not x:
        raise UsageError("softmax of no values", "give at least one number, e.g. 1,3,2,4")
    for value in x:
        if math.isnan(value) or value == math.inf:
            raise UsageError(f"softmax of {value} is undefined", "give finite numbers, or -inf for a masked one")


def _exp_difference(value: float, m: float) -> float:
    return 0.0 if value == -math.inf else math.exp(value - m)
