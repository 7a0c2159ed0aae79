"""Whether a softmax kernel's output is right, element by element.

A softmax has no cancellation: every output is known to a few roundings relative to itself, so each element is held to
its own bound, and one wrong element in a row of a million is found. The relative L2 error is reported beside it, and
is held to the same rule as attention's: at most twice the error of the same mathematics rounded in NumPy.

Every comparison is written ``not (error <= limit)``, so NaN fails.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprof.kernels.verify import ERROR_FACTOR, EXPONENT_BITS, UNIT_ROUNDOFF, Verification
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import decode, round_to
from attnprof.model.softmax_reference import softmax
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float64]

# Elements that a verification compares: about a second.
WORK_LIMIT_ELEMENTS = 1 << 23
# Elements searched for NaN at once.
_SCAN_ELEMENTS = 1 << 24

# Distance between subnormals, below which a type has nothing; bf16 and fp32 results below 2^-126 may be flushed to 0
# (PTX ISA, ex2.approx.ftz).
_LEAST = {Dtype.FP16: 2.0**-24, Dtype.BF16: 2.0**-126, Dtype.FP32: 2.0**-126}

# Relative error of fp32 arithmetic whatever the exponent: ex2.approx errs by 2^-22 at most (PTX ISA), in each of the
# summands too, and the sum, its reciprocal and the product by a few 2^-24 more.
_ARITHMETIC = 2.0**-20
# For each unit of |x - m|: the rounding of the difference, of log2(e) and of their product, 2^-24 each at most.
_PER_EXPONENT = 3 * 2.0**-24


def verify_softmax(
    workload: Workload, x: Array, y: Array, *, work_limit_elements: int = WORK_LIMIT_ELEMENTS
) -> Verification:
    """Judge the output of a softmax kernel.

    Args:
        workload: whose score matrix it is.
        x: the input in storage form, (rows, seq_kv).
        y: the output in storage form, poisoned before the run.
        work_limit_elements: rows are sampled evenly when there are more elements; all of ``y`` is searched for NaN,
            infinities and unwritten elements.
    """
    rows, columns = workload.rows, workload.seq_kv
    fault = _shape_fault(workload, y) or _wild_row(workload, x, y)
    if fault is not None:
        return Verification(False, None, None, 0, rows, fault)
    wanted = max(2, work_limit_elements // columns)
    chosen = np.arange(rows) if wanted >= rows else np.unique(np.linspace(0, rows - 1, wanted).round().astype(np.int64))
    tally = _Tally(workload)
    step = max(1, (1 << 20) // columns)
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        tally.add(part, decode(x[part], workload.dtype).astype(np.float64), decode(y[part], workload.dtype))
        if tally.fault is not None:
            break
    return tally.verdict()


def _shape_fault(workload: Workload, y: Array) -> str | None:
    expected = (workload.rows, workload.seq_kv)
    return None if y.shape == expected else f"y has shape {y.shape}, not {expected}"


def _bits(workload: Workload, y: Array) -> Array:
    return y.view(np.uint32 if workload.dtype is Dtype.FP32 else np.uint16)


def _wild_row(workload: Workload, x: Array, y: Array) -> str | None:
    """What is wrong with the first row that is not finite, or is where it should not be; None when nothing is."""
    bits = _bits(workload, y)
    exponent = EXPONENT_BITS[workload.dtype]
    ones = np.iinfo(bits.dtype).max
    step = max(1, _SCAN_ELEMENTS // workload.seq_kv)
    for start in range(0, workload.rows, step):
        part = bits[start : start + step]
        wild = (part & exponent) == exponent
        for index in np.flatnonzero(wild.any(axis=1)):
            row = start + int(index)
            column = int(np.argmax(wild[index]))
            # The output was filled with 0xFF bytes before the run.
            if np.any(part[index] == ones):
                return f"y[{row}, {int(np.argmax(part[index] == ones))}] was never written"
            if not np.isnan(softmax(decode(x[row : row + 1], workload.dtype))).all():
                return f"y[{row}, {column}] is {decode(y[row], workload.dtype)[column]}"
            if not np.isnan(decode(y[row], workload.dtype)).all():
                return f"row {row} has no softmax and must be NaN throughout"
    return None


class _Tally:
    """Sums of squares over the compared rows, and the first element out of bounds."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._error = self._yardstick = self._reference = 0.0
        self._rows = 0
        self.fault: str | None = None

    def add(self, rows: NDArray[np.int64], x: Floats, y: NDArray[np.float32]) -> None:
        """Compare some rows, finite or NaN as they must be."""
        dtype = self._workload.dtype
        exact = softmax(x)
        defined = ~np.isnan(exact).any(axis=1)
        self._rows += len(rows)
        undefined_but_finite = ~defined & ~np.isnan(y).all(axis=1)
        if undefined_but_finite.any():
            self.fault = f"row {rows[np.argmax(undefined_but_finite)]} has no softmax and must be NaN throughout"
            return
        rows, x, exact, got = rows[defined], x[defined], exact[defined], y[defined].astype(np.float64)
        if not len(rows):
            return
        error = np.abs(got - exact)
        self._error += float(np.sum(error**2))
        self._yardstick += float(np.sum((round_to(exact, dtype) - exact) ** 2))
        self._reference += float(np.sum(exact**2))
        below = np.minimum(np.max(x, axis=1, keepdims=True) - x, 200.0)  # e^-200 is 0 in fp32: bounds stay finite
        # Half again the type's own rounding: a result that falls between two numbers may round either way.
        allowed = (1.5 * UNIT_ROUNDOFF[dtype] + _ARITHMETIC + _PER_EXPONENT * below) * exact + _LEAST[dtype]
        bad = ~(error <= allowed)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            self.fault = (
                f"y[{rows[row]}, {column}] is {got[row, column]:.6g}, not {exact[row, column]:.6g} "
                f"({int(np.count_nonzero(bad))} elements of {len(rows)} rows are off)"
            )

    def verdict(self) -> Verification:
        """Compare the sums, and put what failed into words."""
        total = self._workload.rows
        unit = UNIT_ROUNDOFF[self._workload.dtype]
        size = sqrt(self._reference)
        if size == 0.0:  # every row that was compared is NaN, as it must be
            rel_error, limit = 0.0, 0.0
        else:
            rel_error = sqrt(self._error) / size
            limit = ERROR_FACTOR * max(sqrt(self._yardstick) / size, unit / 2) + _ARITHMETIC
        if self.fault is None and not (rel_error <= limit):
            self.fault = f"relative error {rel_error:.3g}, at most {limit:.3g} is allowed"
        if self.fault is not None:
            return Verification(False, rel_error, limit, self._rows, total, self.fault)
        checked = f"all {self._rows}" if self._rows == total else f"{self._rows} of {total}"
        return Verification(True, rel_error, limit, self._rows, total, f"{checked} rows")
