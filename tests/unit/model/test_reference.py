"""Float64 attention: plain, block-wise, by rows, rounded, backward."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprof.model import reference
from attnprof.model.dtypes import Dtype
from attnprof.model.reference import (
    attention,
    attention_backward,
    attention_rounded,
    attention_rows,
    flash_attention_2,
)
from attnprof.model.rounding import round_to

Array = np.ndarray


def tensors(
    seq_q: int, seq_kv: int, *, batch: int = 1, heads: int = 2, kv_heads: int = 1, d: int = 8, seed: int = 0
) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, heads, seq_q, d))
    k = rng.standard_normal((batch, kv_heads, seq_kv, d))
    v = rng.standard_normal((batch, kv_heads, seq_kv, d))
    return q, k, v


def by_the_book(q: Array, k: Array, v: Array, causal: bool, scale: float) -> tuple[Array, Array]:
    """Pure Python, one pair at a time."""
    batch, heads, seq_q, d = q.shape
    seq_kv, group = k.shape[2], heads // k.shape[1]
    o, lse = np.zeros(q.shape), np.full(q.shape[:3], -math.inf)
    for b, h, i in np.ndindex(batch, heads, seq_q):
        keys = [j for j in range(seq_kv) if not causal or j <= i + seq_kv - seq_q]
        if not keys:
            continue
        scores = [scale * math.fsum(q[b, h, i, c] * k[b, h // group, j, c] for c in range(d)) for j in keys]
        lse[b, h, i] = max(scores) + math.log(math.fsum(math.exp(s - max(scores)) for s in scores))
        for s, j in zip(scores, keys, strict=True):
            o[b, h, i] += math.exp(s - lse[b, h, i]) * v[b, h // group, j]
    return o, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(7, 7), (3, 9), (9, 3), (1, 6)])
def test_attention_is_what_the_formula_says(seq_q: int, seq_kv: int, causal: bool) -> None:
    q, k, v = tensors(seq_q, seq_kv, batch=2, heads=4, kv_heads=2)
    o, lse = attention(q, k, v, causal=causal, scale=0.3)
    expected_o, expected_lse = by_the_book(q, k, v, causal, 0.3)
    np.testing.assert_allclose(o, expected_o, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(
    seq_q=st.integers(1, 40),
    seq_kv=st.integers(1, 40),
    block_q=st.integers(1, 45),
    block_kv=st.integers(1, 45),
    kv_heads=st.sampled_from([1, 2, 4]),
    causal=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_blockwise_agrees_with_plain_for_any_tiles(
    seq_q: int, seq_kv: int, block_q: int, block_kv: int, kv_heads: int, causal: bool, seed: int
) -> None:
    q, k, v = tensors(seq_q, seq_kv, heads=4, kv_heads=kv_heads, seed=seed)
    o, lse = attention(q, k, v, causal=causal)
    o2, lse2 = flash_attention_2(q, k, v, block_q=block_q, block_kv=block_kv, causal=causal)
    assert np.abs(o - o2).max() < 1e-12
    seen = np.isfinite(lse)
    assert (np.isfinite(lse2) == seen).all()
    assert np.abs(lse[seen] - lse2[seen]).max(initial=0) < 1e-12


def test_large_scores_neither_overflow_nor_differ() -> None:
    q, k, v = tensors(16, 48)
    o, lse = attention(300 * q, k, v, scale=1.0)
    o2, lse2 = flash_attention_2(300 * q, k, v, block_q=5, block_kv=7, scale=1.0)
    assert np.abs(o - o2).max() < 1e-12
    np.testing.assert_allclose(lse, lse2, rtol=1e-14)
    assert lse.max() > 710  # exp of it overflows


@pytest.mark.parametrize("blockwise", [False, True])
def test_rows_that_see_no_key_are_zero(blockwise: bool) -> None:
    q, k, v = tensors(5, 2)
    if blockwise:
        o, lse = flash_attention_2(q, k, v, block_q=2, block_kv=1, causal=True)
    else:
        o, lse = attention(q, k, v, causal=True)
    assert (o[:, :, :3] == 0).all()
    assert not np.signbit(o[:, :, :3]).any()
    assert (lse[:, :, :3] == -np.inf).all()
    alone_o, alone_lse = attention(q[:, :, 3:], k, v, causal=True)
    np.testing.assert_allclose(o[:, :, 3:], alone_o, atol=1e-15)
    np.testing.assert_allclose(lse[:, :, 3:], alone_lse, atol=1e-15)
    rounded, _ = attention_rounded(q, k, v, causal=True, dtype=Dtype.FP16, normalised_p=False)
    assert (rounded[:, :, :3] == 0).all()


def test_no_keys_at_all_is_zero() -> None:
    q, k, v = tensors(3, 0)
    for o, lse in (attention(q, k, v), flash_attention_2(q, k, v, block_q=2, block_kv=2)):
        assert (o == 0).all()
        assert (lse == -np.inf).all()


def test_rows_by_sampling_agree_with_the_whole() -> None:
    q, k, v = tensors(50, 70, heads=2, kv_heads=1)
    rows = np.array([49, 0, 17, 3])
    for causal in (False, True):
        o, lse = attention(q, k, v, causal=causal)
        for h in range(2):
            part_o, part_lse = attention_rows(q[0, h, rows], k[0, 0], v[0, 0], rows, seq_q=50, causal=causal)
            np.testing.assert_allclose(part_o, o[0, h, rows], atol=1e-14)
            np.testing.assert_allclose(part_lse, lse[0, h, rows], atol=1e-14)


def test_rounded_rows_agree_with_the_rounded_whole() -> None:
    q, k, v = (round_to(array, Dtype.BF16) for array in tensors(20, 30))
    rows = np.array([5, 19])
    whole, _ = attention_rounded(q, k, v, causal=True, dtype=Dtype.BF16, normalised_p=True)
    part, _ = attention_rows(
        q[0, 1, rows],
        k[0, 0],
        v[0, 0],
        rows,
        seq_q=20,
        causal=True,
        rounds=("s", "p", "o"),
        dtype=Dtype.BF16,
        normalised_p=True,
    )
    np.testing.assert_array_equal(part, whole[0, 1, rows])


def test_long_sequences_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(33, 21)
    do = np.random.default_rng(5).standard_normal(q.shape)
    whole = (*attention(q, k, v, causal=True), *attention_backward(q, k, v, do, causal=True))
    monkeypatch.setattr(reference, "_SCORES_AT_ONCE", 100)
    parts = (*attention(q, k, v, causal=True), *attention_backward(q, k, v, do, causal=True))
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
@pytest.mark.parametrize("normalised_p", [False, True])
def test_rounding_errors_have_the_size_of_the_type(dtype: Dtype, normalised_p: bool) -> None:
    q, k, v = (round_to(array, dtype) for array in tensors(64, 256, d=64))
    exact, _ = attention(q, k, v)
    unit = {Dtype.FP16: 2.0**-11, Dtype.BF16: 2.0**-8}[dtype]
    errors = {}
    for rounds in (("o",), ("p", "o"), ("s", "p", "o")):
        o, _ = attention_rounded(q, k, v, rounds=rounds, dtype=dtype, normalised_p=normalised_p)
        np.testing.assert_array_equal(o, round_to(o, dtype))
        errors[rounds] = np.linalg.norm(o - exact) / np.linalg.norm(exact)
    assert 0 < errors["o",] < unit
    assert errors["o",] < errors["p", "o"] < errors["s", "p", "o"] < 8 * unit


def test_without_rounding_points_nothing_is_rounded() -> None:
    q, k, v = tensors(9, 12)
    exact, _ = attention(q, k, v)
    for normalised_p in (False, True):
        o, _ = attention_rounded(q, k, v, rounds=(), dtype=Dtype.BF16, normalised_p=normalised_p)
        np.testing.assert_allclose(o, exact, atol=1e-15)


def test_where_p_is_rounded_depends_on_its_form() -> None:
    """One key: a probability of exactly 1 either way. Three equal keys: 1/3 is rounded, exp(0) = 1 is not."""
    q, v = np.ones((1, 1, 1, 1)), np.ones((1, 1, 3, 1))
    k = np.zeros((1, 1, 3, 1))
    normalised, _ = attention_rounded(q, k, v, rounds=("p",), dtype=Dtype.FP16, normalised_p=True)
    unnormalised, _ = attention_rounded(q, k, v, rounds=("p",), dtype=Dtype.FP16, normalised_p=False)
    assert normalised[0, 0, 0, 0] == 3 * round_to([1 / 3], Dtype.FP16)[0]
    assert normalised[0, 0, 0, 0] != 1.0
    assert unnormalised[0, 0, 0, 0] == 1.0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(4, 6), (6, 4)])
def test_gradients_agree_with_finite_differences(seq_q: int, seq_kv: int, causal: bool) -> None:
    inputs = list(tensors(seq_q, seq_kv, heads=4, kv_heads=2, d=3, seed=3))
    do = np.random.default_rng(4).standard_normal(inputs[0].shape)
    gradients = attention_backward(*inputs, do, causal=causal, scale=0.7)
    step = 1e-5
    for index, gradient in enumerate(gradients):
        assert gradient.shape == inputs[index].shape
        numeric = np.empty(gradient.shape)
        for position in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = [array.copy() for array in inputs]
                moved[index][position] += sign * step
                o, _ = attention(moved[0], moved[1], moved[2], causal=causal, scale=0.7)
                ends.append((o * do).sum())
            numeric[position] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient, numeric, atol=1e-8)


def test_the_default_scale_uses_the_true_head_dim() -> None:
    q, k, v = tensors(4, 5, d=40)
    np.testing.assert_array_equal(attention(q, k, v)[0], attention(q, k, v, scale=1 / math.sqrt(40))[0])


def test_the_smallest_fp16_value_comes_back() -> None:
    q, k = np.zeros((1, 1, 1, 8)), np.zeros((1, 1, 1, 8))
    o, _ = attention_rounded(q, k, np.full((1, 1, 1, 8), 2.0**-24), dtype=Dtype.FP16, normalised_p=True)
    assert (o == 2.0**-24).all()


def test_heads_must_share_kv_heads_evenly() -> None:
    q, k, v = tensors(2, 2, heads=3, kv_heads=2)
    for call in (lambda: attention(q, k, v), lambda: flash_attention_2(q, k, v, block_q=1, block_kv=1)):
        with pytest.raises(ValueError, match="2 KV heads do not divide 3 heads"):
            call()
