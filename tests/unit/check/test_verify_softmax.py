"""What the verification of a softmax passes, and every way to be wrong that it sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnprof.kernels.inputs import Distribution, make_matrix
from attnprof.kernels.verify_softmax import verify_softmax
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import decode, encode, storage_dtype
from attnprof.model.softmax_reference import softmax, softmax_rounded
from attnprof.model.workload import Workload

DISTRIBUTIONS = [d for d in Distribution if d is not Distribution.TINY]


def case(
    dtype: Dtype = Dtype.FP16, rows: int = 10, columns: int = 1000, distribution: Distribution = Distribution.NORMAL
) -> tuple[Workload, Any, Any]:
    """A workload, its matrix, and the softmax rounded to the type."""
    workload = Workload.of(rows, seq_kv=columns, heads=1, dtype=dtype)
    x = make_matrix(workload, distribution=distribution)["x"]
    return workload, x, encode(softmax(decode(x, dtype)), dtype)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("columns", [1, 2, 1000])
def test_the_rounded_softmax_passes(dtype: Dtype, distribution: Distribution, columns: int) -> None:
    workload, x, y = case(dtype, columns=columns, distribution=distribution)
    verdict = verify_softmax(workload, x, y)
    assert verdict.passed, verdict.detail
    assert verdict.rows_checked == 10
    assert verdict.rel_error is not None
    assert verdict.limit is not None
    assert verdict.rel_error <= verdict.limit


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_softmax_in_fp32_arithmetic_passes(dtype: Dtype) -> None:
    workload, x, _ = case(dtype, distribution=Distribution.LARGE_LOGITS)
    values = decode(x, dtype)
    e = np.exp2((values - values.max(axis=1, keepdims=True)) * np.float32(np.log2(np.e)))
    y = encode(e * (np.float32(1) / e.sum(axis=1, keepdims=True, dtype=np.float32)), dtype)
    assert verify_softmax(workload, x, y).passed


def wrong(name: str, y: Any) -> Any:
    """The output with one fault."""
    y = y.copy()
    if name == "one element off by two per cent":
        y[7, 500] *= 1.02
    elif name == "row not normalised":
        y[3] *= 1.01
    elif name == "one element infinite":
        y[2, 1] = np.inf
    elif name == "one element NaN":
        y[2, 1] = np.nan
    elif name == "never written":
        y.view(np.uint16)[9, 999] = 0xFFFF
    elif name == "rows swapped":
        y[[0, 1]] = y[[1, 0]]
    elif name == "all zero":
        y[:] = 0
    elif name == "last element dropped":
        y[:, -1] = 0
    return y


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("one element off by two per cent", "y[7, 500]"),
        ("row not normalised", "y[3, "),
        ("one element infinite", "y[2, 1] is inf"),
        ("one element NaN", "y[2, 1] is nan"),
        ("never written", "y[9, 999] was never written"),
        ("rows swapped", "y[0, "),
        ("all zero", "y[0, 0] is 0"),
        ("last element dropped", "y[0, 999] is 0"),
    ],
)
def test_a_fault_is_seen_and_placed(fault: str, place: str) -> None:
    workload, x, y = case()
    verdict = verify_softmax(workload, x, wrong(fault, y))
    assert not verdict.passed
    assert verdict.detail.startswith(place), verdict.detail


def test_a_wrong_shape_fails() -> None:
    workload, x, y = case()
    assert "shape" in verify_softmax(workload, x, y.T).detail


def test_a_row_without_a_softmax_must_be_nan_throughout() -> None:
    workload, x, y = case(distribution=Distribution.MASKED)
    assert np.isneginf(x[3].astype(np.float32)).all()
    assert np.isnan(y[3].astype(np.float32)).all()
    for replaced in (0.0, 1e-3):
        zeros = y.copy()
        zeros[3] = replaced
        assert not verify_softmax(workload, x, zeros).passed
        half = y.copy()
        half[3, :500] = replaced
        assert not verify_softmax(workload, x, half).passed


def test_a_row_of_the_lowest_number_is_uniform() -> None:
    for dtype in Dtype:
        _, x, y = case(dtype, distribution=Distribution.MASKED)
        assert len(np.unique(x[4])) == 1
        assert np.isfinite(decode(x, dtype)[4]).all()
        assert decode(y, dtype)[4] == pytest.approx(1e-3, rel=2.0**-8)


def test_large_matrices_are_sampled_and_searched_whole() -> None:
    workload, x, y = case(rows=64)
    verdict = verify_softmax(workload, x, y, work_limit_elements=5000)
    assert verdict.passed
    assert (verdict.rows_checked, verdict.rows_total) == (5, 64)
    y = y.copy()
    y[5, 17] = np.nan  # not among the sampled rows 0, 16, 32, 47, 63
    assert "y[5, 17] is nan" in verify_softmax(workload, x, y, work_limit_elements=5000).detail


def test_the_reference_against_hand_computed_values() -> None:
    assert softmax([[1.0, 3.0, 2.0, 4.0]])[0] == pytest.approx([0.0320586, 0.2368828, 0.0871443, 0.6439143], abs=1e-7)
    assert softmax([[0.0, -np.inf]])[0].tolist() == [1.0, 0.0]
    assert np.isnan(softmax([[-np.inf, -np.inf], [np.inf, 0.0], [np.nan, 0.0]])).all()
    assert softmax_rounded([[0.0, 0.0, 0.0]], Dtype.FP16)[0, 0] == np.float16(1 / 3)


def test_matrices_repeat_and_are_read_only() -> None:
    workload, x, _ = case()
    assert np.array_equal(make_matrix(workload)["x"], x)
    assert not np.array_equal(make_matrix(workload, seed=1)["x"], x)
    assert x.dtype == storage_dtype(Dtype.FP16)
    assert not x.flags.writeable
    with pytest.raises(ValueError, match="tiny"):
        make_matrix(workload, distribution=Distribution.TINY)
