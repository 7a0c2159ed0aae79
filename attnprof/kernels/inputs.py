"""The inputs of a run: random, seeded, in the element type's storage form, and quick to make at any size.

Random data, not zeros or constants: zeros switch fewer transistors, draw less power and clock higher, so a kernel
fed with them looks faster than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from enum import StrEnum
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from attnprof.kernels.host import available_cores
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import encode, storage_dtype
from attnprof.model.workload import Pass, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

# Elements a generator yields: the unit of parallel work, and what makes the values independent of the thread count.
CHUNK = 1 << 20
# Chunks of a tensor that are drawn; in a larger one they come again. A prime, so that an offset that lost bits, and is
# off by a power of two, finds other values.
PERIOD = 251

# The lowest finite number of each type.
LOWEST = {Dtype.FP16: -65504.0, Dtype.BF16: -(2.0 - 2.0**-7) * 2.0**127, Dtype.FP32: -(2.0 - 2.0**-23) * 2.0**127}


class Distribution(StrEnum):
    """What the inputs look like.

    ``NORMAL``: standard normal Q, K and V. ``LARGE_LOGITS``: scores near +120 and −120 in alternate rows, so that exp
    overflows and underflows unless the row maximum is subtracted. ``DOMINANT_KEY``: scores of standard deviation 16,
    so that one key takes nearly the whole row. ``TINY``: V near the smallest values of the type (fp16: its
    subnormals), and in the last column exactly 2^-24 (bf16: 2^-120). ``MASKED``: of a softmax's matrix only, see
    `make_matrix`.
    """

    NORMAL = "normal"
    LARGE_LOGITS = "large-logits"
    DOMINANT_KEY = "dominant-key"
    TINY = "tiny"
    MASKED = "masked"


def make_inputs(
    workload: Workload, *, distribution: Distribution = Distribution.NORMAL, seed: int = 0
) -> Mapping[str, Array]:
    """The tensors ``q``, ``k`` and ``v`` of a workload, in storage form and read-only; of a backward, ``dout`` too.

    The last set is kept, so that all kernels of a sweep get the same tensors for the price of one. Values depend on
    the shape, type, distribution and seed alone, not on the number of threads.
    """
    w = workload
    return _inputs(
        (w.batch, w.heads, w.seq_q, w.head_dim),
        (w.batch, w.kv_heads, w.seq_kv, w.head_dim),
        w.dtype,
        distribution,
        seed,
        backward=w.direction is Pass.BWD,
    )


def make_matrix(
    workload: Workload, *, distribution: Distribution = Distribution.NORMAL, seed: int = 0
) -> Mapping[str, Array]:
    """The input ``x`` of a softmax kernel, (rows, seq_kv), in storage form and read-only.

    ``NORMAL``: standard normal. ``LARGE_LOGITS``: near +10^4 and −10^4 in alternate rows. ``DOMINANT_KEY``: normal,
    but 30 in one column of each row. ``MASKED``: half of the entries −inf; and, repeating every five rows: only the
    last column finite; the first half of the row −inf; every entry −inf (the softmax is NaN); every entry the lowest
    finite number of the type, which some masks use instead of −inf (the softmax is uniform).
    The last matrix is kept, as in `make_inputs`.

    Raises:
        ValueError: a distribution that is not one of a matrix.
    """
    if distribution is Distribution.TINY:
        raise ValueError(f"{distribution} is a distribution of V")
    return _matrix(workload.rows, workload.seq_kv, workload.dtype, distribution, seed)


@lru_cache(maxsize=1)
def _matrix(rows: int, columns: int, dtype: Dtype, distribution: Distribution, seed: int) -> Mapping[str, Array]:
    x = _normal((rows, columns), dtype, (seed, 3), raw=distribution is not Distribution.NORMAL)
    if distribution is not Distribution.NORMAL:
        x = encode(_shaped_matrix(x.astype(np.float32), dtype, distribution, seed), dtype)
    x.flags.writeable = False
    return {"x": x}


def _shaped_matrix(x: NDArray[np.float32], dtype: Dtype, distribution: Distribution, seed: int) -> NDArray[np.float32]:
    """Standard normal values turned into those of another distribution of a matrix."""
    rows, columns = x.shape
    random = np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, 4))))
    if distribution is Distribution.LARGE_LOGITS:
        x *= 16.0
        x[::2] += 1e4
        x[1::2] -= 1e4
    elif distribution is Distribution.DOMINANT_KEY:
        x[np.arange(rows), random.integers(columns, size=rows)] = 30.0
    else:
        kept = x[:, -1].copy()
        x[random.random(x.shape, dtype=np.float32) < 0.5] = -np.inf
        x[:, -1] = kept  # a row of -inf alone comes only where it is meant
        x[1::5, :-1] = -np.inf
        x[2::5, : columns // 2] = -np.inf
        x[3::5] = -np.inf
        x[4::5] = LOWEST[dtype]
    return x


@lru_cache(maxsize=1)
def _inputs(
    q_shape: tuple[int, ...],
    kv_shape: tuple[int, ...],
    dtype: Dtype,
    distribution: Distribution,
    seed: int,
    *,
    backward: bool,
) -> Mapping[str, Array]:
    shapes = {"q": q_shape, "k": kv_shape, "v": kv_shape} | ({"dout": q_shape} if backward else {})
    tensors = {}
    for index, (name, shape) in enumerate(shapes.items()):
        values = _normal(shape, dtype, (seed, index), raw=distribution is not Distribution.NORMAL)
        if distribution is not Distribution.NORMAL:
            values = encode(_shaped(name, values.astype(np.float32), dtype, distribution), dtype)
        values.flags.writeable = False
        tensors[name] = values
    return tensors


def _shaped(name: str, values: NDArray[np.float32], dtype: Dtype, distribution: Distribution) -> NDArray[np.float32]:
    """Standard normal values turned into those of another distribution."""
    head_dim = values.shape[-1]
    if distribution is Distribution.LARGE_LOGITS and name == "q":
        values[..., ::2, 0] = 32.0
        values[..., 1::2, 0] = -32.0
    elif distribution is Distribution.LARGE_LOGITS and name == "k":
        values[..., 0] = 120.0 * sqrt(head_dim) / 32.0
    elif distribution is Distribution.DOMINANT_KEY and name == "q":
        values *= 16.0
    elif distribution is Distribution.TINY and name == "v":
        unit = 2.0**-24 if dtype is Dtype.FP16 else 2.0**-120
        np.abs(values, out=values)
        values += 1.0
        values *= 4.0 * unit
        values[..., -1] = unit
    return values


def forget_inputs() -> None:
    """Let go of the tensors that were kept."""
    _inputs.cache_clear()
    _matrix.cache_clear()


def _normal(shape: tuple[int, ...], dtype: Dtype, key: tuple[int, int], *, raw: bool) -> Array:
    """Standard normal values in storage form (``raw``: as fp32), chunk by chunk on all available cores.

    After `PERIOD` chunks they repeat: copying takes a fraction of the time that drawing does.
    """
    size = int(np.prod(shape, dtype=np.int64))
    kept = Dtype.FP32 if raw else dtype
    flat = np.empty(size, dtype=storage_dtype(kept))

    def part(chunk: int) -> slice:
        return slice(chunk * CHUNK, min((chunk + 1) * CHUNK, size))

    def draw(chunk: int) -> None:
        where = part(chunk)
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence((*key, chunk))))
        flat[where] = encode(generator.standard_normal(where.stop - where.start, dtype=np.float32), kept)

    def repeat(chunk: int) -> None:
        where, drawn = part(chunk), part(chunk % PERIOD)
        flat[where] = flat[drawn.start : drawn.start + where.stop - where.start]

    chunks = -(-size // CHUNK)
    threads = min(chunks, available_cores())
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        each = map if pool is None else pool.map
        list(each(draw, range(min(chunks, PERIOD))))
        list(each(repeat, range(PERIOD, chunks)))
    return flat.reshape(shape)
