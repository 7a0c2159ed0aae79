"""Attention in float64: what every kernel is judged against.

Arrays are Q and O (batch, heads, seq_q, head_dim), K and V (batch, kv_heads, seq_kv, head_dim). A causal mask is
bottom-right aligned: query i sees keys j ≤ i + seq_kv − seq_q. A row that sees no key gives exactly 0, with a
log-sum-exp of −inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import round_to

Float64 = NDArray[np.float64]

# Scores held at once: 2^22 float64 are 32 MiB, so that 32k × 32k heads need no more memory than small ones.
_SCORES_AT_ONCE = 1 << 22


def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: bool = False, scale: float | None = None
) -> tuple[Float64, Float64]:
    """O and the log-sum-exp of scale · QKᵀ, natural logarithm, (batch, heads, seq_q).

    Args:
        q: (batch, heads, seq_q, head_dim).
        k: (batch, kv_heads, seq_kv, head_dim); kv_heads divides heads.
        v: as ``k``.
        causal: bottom-right mask.
        scale: 1/√head_dim unless given.
    """
    return attention_rounded(q, k, v, causal=causal, scale=scale, rounds=(), dtype=Dtype.FP32, normalised_p=True)


def attention_rounded(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    scale: float | None = None,
    rounds: Sequence[str] = ("s", "p", "o"),
    dtype: Dtype,
    normalised_p: bool,
) -> tuple[Float64, Float64]:
    """`attention`, rounded to ``dtype`` where a kernel rounds: the error that the element type alone makes.

    Args:
        q: the inputs, already rounded; likewise ``k`` and ``v``.
        k: see `attention`.
        v: see `attention`.
        causal: see `attention`.
        scale: see `attention`.
        rounds: any of ``s`` (the scaled scores), ``p`` (the probabilities, as the second product reads them), ``o``.
        dtype: the element type to round to.
        normalised_p: whether ``p`` holds probabilities (three-kernel attention), or exponentials whose sum, kept
            unrounded, divides O at the end (fused attention).
    """
    q64, k64, v64 = _float64(q), _float64(k), _float64(v)
    batch, heads, seq_q, _ = q64.shape
    group = _group(heads, k64.shape[1])
    o = np.empty((batch, heads, seq_q, v64.shape[3]))
    lse = np.empty((batch, heads, seq_q))
    rows = np.arange(seq_q)
    for b in range(batch):
        for h in range(heads):
            o[b, h], lse[b, h] = attention_rows(
                q64[b, h],
                k64[b, h // group],
                v64[b, h // group],
                rows,
                seq_q=seq_q,
                causal=causal,
                scale=scale,
                rounds=rounds,
                dtype=dtype,
                normalised_p=normalised_p,
            )
    return o, lse


def attention_rows(
    q_rows: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    rows: ArrayLike,
    *,
    seq_q: int,
    causal: bool = False,
    scale: float | None = None,
    rounds: Sequence[str] = (),
    dtype: Dtype = Dtype.FP32,
    normalised_p: bool = True,
) -> tuple[Float64, Float64]:
    """Some query rows of one head, so that long sequences can be checked by sampling.

    Args:
        q_rows: (n, head_dim), the chosen rows of Q.
        k: (seq_kv, head_dim), all keys of the head's KV head.
        v: (seq_kv, head_dim).
        rows: (n,), which query each row is.
        seq_q: how many queries the head has.
        causal: see `attention`.
        scale: see `attention`.
        rounds: see `attention_rounded`; none by default.
        dtype: see `attention_rounded`.
        normalised_p: see `attention_rounded`.

    Returns:
        O (n, head_dim) and the log-sum-exp (n,).
    """
    q64, k64, v64 = _float64(q_rows), _float64(k), _float64(v)
    index = np.asarray(rows)
    factor = _scale(scale, q64.shape[1])
    seq_kv = k64.shape[0]
    o = np.empty((q64.shape[0], v64.shape[1]))
    lse = np.empty(q64.shape[0])
    step = max(1, _SCORES_AT_ONCE // max(1, seq_kv))
    for start in range(0, q64.shape[0], step):
        part = slice(start, start + step)
        s = factor * (q64[part] @ k64.T)
        if "s" in rounds:
            s = round_to(s, dtype)
        if causal:
            s = np.where(_allowed(index[part], 0, seq_kv, seq_kv - seq_q), s, -np.inf)
        m, p, total = _softmax_parts(s)
        divisor = np.where(total == 0, 1.0, total)[:, None]
        if normalised_p:
            p = p / divisor
        if "p" in rounds:
            p = round_to(p, dtype)
        out = p @ v64
        if not normalised_p:
            out = out / divisor
        o[part] = round_to(out, dtype) if "o" in rounds else out
        lse[part] = _log_sum_exp(m, total)
    return o, lse


def attention_backward(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, do: ArrayLike, *, causal: bool = False, scale: float | None = None
) -> tuple[Float64, Float64, Float64]:
    """Gradients dQ, dK and dV of sum(dO ∘ O), shaped as Q, K and V; those of a shared KV head add up.

    dV = PᵀdO, dP = dO Vᵀ, dS = P ∘ (dP − rowsum(dO ∘ O)), dQ = scale · dS K, dK = scale · dSᵀ Q.
    """
    q64, k64, v64, do64 = _float64(q), _float64(k), _float64(v), _float64(do)
    batch, heads, seq_q, head_dim = q64.shape
    seq_kv = k64.shape[2]
    group = _group(heads, k64.shape[1])
    factor = _scale(scale, head_dim)
    dq, dk, dv = np.zeros_like(q64), np.zeros_like(k64), np.zeros_like(v64)
    step = max(1, _SCORES_AT_ONCE // max(1, seq_kv))
    for b in range(batch):
        for h in range(heads):
            g = h // group
            for start in range(0, seq_q, step):
                part = slice(start, min(start + step, seq_q))
                s = factor * (q64[b, h, part] @ k64[b, g].T)
                if causal:
                    s = np.where(_allowed(np.arange(part.start, part.stop), 0, seq_kv, seq_kv - seq_q), s, -np.inf)
                _, p, total = _softmax_parts(s)
                p = p / np.where(total == 0, 1.0, total)[:, None]
                d_out = do64[b, h, part]
                dp = d_out @ v64[b, g].T
                ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))
                dq[b, h, part] = factor * (ds @ k64[b, g])
                dk[b, g] += factor * (ds.T @ q64[b, h, part])
                dv[b, g] += p.T @ d_out
    return dq, dk, dv


def gradient_scores(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    do: ArrayLike,
    lse: ArrayLike,
    d: ArrayLike,
    rows: ArrayLike,
    keys: ArrayLike,
    *,
    offset: int,
    causal: bool = False,
    scale: float | None = None,
    rounds: Sequence[str] = (),
    dtype: Dtype = Dtype.FP32,
) -> tuple[Float64, Float64]:
    """P and dS of some rows and keys of one head, from which its gradients follow as in `attention_backward`.

    P = exp(scale · QKᵀ − LSE) and dS = P ∘ (dO Vᵀ − D), so that long sequences can be checked by sampling: dQ of a row
    needs all keys, dK and dV of a key need all rows.

    Args:
        q: (n, head_dim), the chosen rows of Q; likewise ``do``.
        k: (m, head_dim), the chosen keys; likewise ``v``.
        v: see ``k``.
        do: see ``q``.
        lse: (n,), the log-sum-exp of those rows.
        d: (n,), rowsum(dO ∘ O) of those rows.
        rows: (n,), which query each row is.
        keys: (m,), which key each one is.
        offset: seq_kv − seq_q.
        causal: see `attention`.
        scale: see `attention`.
        rounds: any of ``p`` (P, as it multiplies dO; dS is made from the unrounded P) and ``ds``.
        dtype: the element type to round to.
    """
    q64, do64 = _float64(q), _float64(do)
    exponent = _scale(scale, q64.shape[1]) * (q64 @ _float64(k).T) - _float64(lse)[:, None]
    if causal:
        exponent[np.asarray(keys)[None, :] > np.asarray(rows)[:, None] + offset] = -np.inf
    p = np.exp(exponent)
    ds = p * (do64 @ _float64(v).T - _float64(d)[:, None])
    return round_to(p, dtype) if "p" in rounds else p, round_to(ds, dtype) if "ds" in rounds else ds


def flash_attention_2(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    block_q: int,
    block_kv: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Float64, Float64]:
    """`attention` by the block-wise algorithm: online softmax, unnormalised O, one division at the end.

    Dao, FlashAttention-2 (arXiv:2307.08691), algorithm 1; any block sizes, ragged ends included.

    Args:
        q: see `attention`; likewise ``k`` and ``v``.
        k: see `attention`.
        v: see `attention`.
        block_q: queries a block, Br.
        block_kv: keys a block, Bc.
        causal: see `attention`.
        scale: see `attention`.
    """
    q64, k64, v64 = _float64(q), _float64(k), _float64(v)
    batch, heads, seq_q, head_dim = q64.shape
    group = _group(heads, k64.shape[1])
    factor = _scale(scale, head_dim)
    o = np.empty((batch, heads, seq_q, v64.shape[3]))
    lse = np.empty((batch, heads, seq_q))
    for b in range(batch):
        for h in range(heads):
            keys, values = k64[b, h // group], v64[b, h // group]
            for start in range(0, seq_q, block_q):
                rows = np.arange(start, min(start + block_q, seq_q))
                o[b, h, rows], lse[b, h, rows] = _query_block(
                    q64[b, h, rows], keys, values, rows, seq_q, block_kv, causal, factor
                )
    return o, lse


def _query_block(
    q: Float64, k: Float64, v: Float64, rows: NDArray[np.int_], seq_q: int, block_kv: int, causal: bool, scale: float
) -> tuple[Float64, Float64]:
    seq_kv = k.shape[0]
    m = np.full(len(rows), -np.inf)
    total = np.zeros(len(rows))
    acc = np.zeros((len(rows), v.shape[1]))
    for start in range(0, seq_kv, block_kv):
        stop = min(start + block_kv, seq_kv)
        s = scale * (q @ k[start:stop].T)
        if causal:
            s = np.where(_allowed(rows, start, stop, seq_kv - seq_q), s, -np.inf)
        m_new = np.maximum(m, s.max(axis=1))
        safe = np.where(np.isneginf(m_new), 0.0, m_new)
        rescale = np.exp(m - safe)
        p = np.exp(s - safe[:, None])
        total = total * rescale + p.sum(axis=1)
        acc = acc * rescale[:, None] + p @ v[start:stop]
        m = m_new
    return acc / np.where(total == 0, 1.0, total)[:, None], _log_sum_exp(m, total)


def _allowed(rows: NDArray[np.int_], start: int, stop: int, offset: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = np.arange(start, stop)[None, :] <= rows[:, None] + offset
    return mask


def _softmax_parts(s: Float64) -> tuple[Float64, Float64, Float64]:
    """Row maximum, exponentials relative to it, and their sum; an empty row has −inf, zeros and 0."""
    m = s.max(axis=1, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(m), 0.0, m)[:, None])
    return m, p, p.sum(axis=1)


def _log_sum_exp(m: Float64, total: Float64) -> Float64:
    return m + np.log(np.where(total == 0, 1.0, total))


def _group(heads: int, kv_heads: int) -> int:
    if heads % kv_heads:
        raise ValueError(f"{kv_heads} KV heads do not divide {heads} heads")
    return heads // kv_heads


def _scale(scale: float | None, head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim) if scale is None else scale


def _float64(array: ArrayLike) -> Float64:
    return np.asarray(array, dtype=np.float64)
