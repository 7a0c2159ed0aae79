"""Element types in NumPy: rounding to them, and the form in which arrays of them are stored.

Storage form: fp16 is ``np.float16``, fp32 is ``np.float32``; NumPy has no bf16, so bf16 is its bit pattern in
``np.uint16``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnprof.model.dtypes import Dtype

Storage = NDArray[np.generic]
Float64 = NDArray[np.float64]


def storage_dtype(dtype: Dtype) -> np.dtype[Any]:
    """The NumPy type of the storage form."""
    return np.dtype({Dtype.FP16: np.float16, Dtype.BF16: np.uint16, Dtype.FP32: np.float32}[dtype])


def encode(values: ArrayLike, dtype: Dtype) -> Storage:
    """Round to nearest, ties to even, into storage form.

    float64 is rounded once, not through float32 first. Subnormals are kept, overflow becomes infinity, NaN stays NaN.

    Args:
        values: an array of floats, any shape.
        dtype: the element type to round to.
    """
    array = np.asarray(values)
    if array.dtype != np.float32:
        array = array.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        if dtype is Dtype.BF16:
            return _bf16_bits(array if array.dtype == np.float32 else _float32_for_bf16(array))
        return array.astype(storage_dtype(dtype))


def decode(storage: Storage, dtype: Dtype) -> NDArray[np.float32]:
    """The values of an array in storage form, exactly.

    Raises:
        ValueError: the array's NumPy type is not the storage form of ``dtype``.
    """
    if storage.dtype != storage_dtype(dtype):
        raise ValueError(f"{dtype} is stored as {storage_dtype(dtype)}, not {storage.dtype}")
    if dtype is Dtype.BF16:
        return (storage.astype(np.uint32) << 16).view(np.float32)
    return storage.astype(np.float32)


def round_to(values: ArrayLike, dtype: Dtype) -> Float64:
    """The nearest values that ``dtype`` has, as float64."""
    return decode(encode(values, dtype), dtype).astype(np.float64)


def _float32_for_bf16(array: Float64) -> NDArray[np.float32]:
    """float32 values that round to the same bf16 as the float64 values do."""
    # A bf16 significand ends at bit 45 of a float64: round there, and the conversion to float32 is exact or overflows.
    bits = np.ascontiguousarray(array).view(np.uint64).reshape(array.shape)
    rounded = (bits + (np.uint64(2**44 - 1) + ((bits >> np.uint64(45)) & np.uint64(1)))) & ~np.uint64(2**45 - 1)
    result = rounded.view(np.float64).astype(np.float32)
    # Subnormals have fewer bits, and adding to the payload of a NaN may carry out of it.
    special = ~(np.abs(array) >= 2.0**-126) & (array != 0)
    if special.any():
        result[special] = _to_odd_float32(array[special])
    return result


def _to_odd_float32(array: Float64) -> NDArray[np.float32]:
    """To float32 by rounding to odd, so that a second rounding to fewer bits is as if it were the only one.

    Inexact results are cut towards zero and get a 1 in the last place (S. Boldo and G. Melquiond, "Emulation of FMA
    and correctly rounded sums: proved algorithms using rounding to odd", 2008).
    """
    nearest = array.astype(np.float32)
    exact = nearest.astype(np.float64)
    inexact = (exact != array) & ~np.isnan(array)
    away = inexact & (np.abs(exact) > np.abs(array))
    cut = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
    odd: NDArray[np.float32] = (cut.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32)
    return odd


def _bf16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
    to_even = np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
    rounded = (bits + to_even) >> 16
    # Adding to a NaN's payload could carry into infinity: cut it, and set the quiet bit so that it stays a NaN.
    quiet = (bits >> 16) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
