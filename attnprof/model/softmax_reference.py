"""The softmax of a matrix's rows in float64: what the softmax kernels are judged against."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import round_to

Float64 = NDArray[np.float64]


def softmax(x: ArrayLike) -> Float64:
    """Row-wise softmax, (rows, cols).

    −inf counts for nothing. A row of −inf alone, or with a NaN or +inf, is NaN: that is what the definition says
    (−inf − (−inf)) and what torch.softmax returns.
    """
    values = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(values - np.max(values, axis=1, keepdims=True))
        total: Float64 = exponentials / np.sum(exponentials, axis=1, keepdims=True)
    return total


def softmax_rounded(x: ArrayLike, dtype: Dtype) -> Float64:
    """`softmax` rounded to the element type: the error that the type alone makes."""
    return round_to(softmax(x), dtype)
