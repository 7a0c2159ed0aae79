"""The workloads that a numerics check runs: small, awkward, and always the same.

Each length sits at, just under or just over the edge of a tile, a fragment or a 16-byte vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from attnprof.kernels.inputs import Distribution
from attnprof.kernels.spec import Layout, Operation, workload_label
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload


@dataclass(frozen=True, slots=True)
class NumericsCase:
    """A workload, what its inputs look like, and how they lie."""

    workload: Workload
    distribution: Distribution = Distribution.NORMAL
    operation: Operation = "attention"
    layout: Layout = "bhsd"

    @property
    def label(self) -> str:
        """``b2 h4/2 s200 d64 fp16 causal large-logits``, or ``11 x 1025 fp16 masked`` of a matrix.

        With ``bshd`` at the end where the heads lie inside the sequence.
        """
        suffix = "" if self.distribution is Distribution.NORMAL else f" {self.distribution}"
        layout = "" if self.layout == "bhsd" else f" {self.layout}"
        return f"{workload_label(self.workload, self.operation)}{suffix}{layout}"


@dataclass(frozen=True, slots=True)
class _Shape:
    seq_q: int
    seq_kv: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    distribution: Distribution = Distribution.NORMAL


_LENGTHS = (1, 2, 17, 63, 64, 65, 127, 129, 200, 257)
# Queries and keys of different number, both ways; with a causal mask 5 × 2, 129 × 64 and 257 × 129 have empty rows.
_UNEQUAL = ((5, 2), (1, 257), (17, 200), (64, 129), (129, 64), (257, 129))
_UNUSUAL = (Distribution.LARGE_LOGITS, Distribution.DOMINANT_KEY, Distribution.TINY)

_FULL = (
    *(_Shape(n, n, batch=2, heads=4, kv_heads=4) for n in _LENGTHS),
    *(_Shape(q, kv, batch=2) for q, kv in _UNEQUAL),
    _Shape(200, 200, batch=2, heads=6, kv_heads=2),
    _Shape(65, 129, batch=2, heads=6, kv_heads=3),
    _Shape(129, 65, batch=2, heads=4, kv_heads=1),
    _Shape(1000, 1000, heads=3, kv_heads=1),
    _Shape(2048, 2048, heads=1, kv_heads=1),
    *(_Shape(200, 200, distribution=distribution) for distribution in _UNUSUAL),
)

# Few queries over a cache, whose keys a decode kernel splits: whole and ragged steps, a group of heads in one tile of
# 16, 32 and 64 rows or in two tiles, and masks that hide a whole split from a row.
_DECODE = (
    _Shape(1, 4096, batch=2, heads=8, kv_heads=2),
    _Shape(1, 1000, heads=3, kv_heads=3),
    _Shape(3, 2049, batch=3, heads=16, kv_heads=1),
    _Shape(8, 5000, heads=8, kv_heads=2),
    _Shape(15, 777, heads=12, kv_heads=2),
    _Shape(16, 1030, batch=2, heads=16, kv_heads=4),
    _Shape(16, 9, heads=4, kv_heads=2),
    _Shape(8, 3000, heads=4, kv_heads=1, distribution=Distribution.DOMINANT_KEY),
)

_SMALL = (
    _Shape(17, 17, batch=2),
    _Shape(65, 65),
    _Shape(5, 2, batch=2),
    _Shape(129, 64),
    _Shape(64, 129),
    _Shape(100, 130, heads=4, kv_heads=2),
    _Shape(130, 100, batch=2, heads=2, kv_heads=1),
    _Shape(1, 2100, heads=4, kv_heads=2),  # long enough to be split
    _Shape(9, 300, heads=4, kv_heads=1),
    _Shape(3, 150, distribution=Distribution.LARGE_LOGITS),
    *(_Shape(70, 70, distribution=distribution) for distribution in _UNUSUAL),
    _Shape(17, 1000),  # more keys than any kernel keeps on chip at a time
)

# Head dims that fill no tile, or tiles of their own, with each width's narrowest and widest.
_OTHER_HEAD_DIMS = (8, 32, 40, 72, 80, 96, 104, 120, 136, 160, 192, 200, 248, 256)
_FOR_OTHERS = (_Shape(200, 200, heads=4, kv_heads=2), _Shape(65, 129, batch=2), _Shape(257, 129))
# More heads over all batches than one dimension of a grid holds, beside x.
_MANY_HEADS = _Shape(2, 3, batch=65_541, heads=1, kv_heads=1)
# A scale that is not 1/sqrt(d): scores of standard deviation 5 to 9.
_OWN_SCALE = 0.75


def full_set() -> Iterator[NumericsCase]:
    """Every shape with both types and masks, two head dims or three, some with all: for a GPU, seconds a kernel."""
    for shape, dtype, head_dim, causal in product(_FULL + _DECODE, (Dtype.FP16, Dtype.BF16), (64, 128), (False, True)):
        yield _case(shape, dtype, head_dim, causal)
    for shape, dtype, causal in product(_DECODE, (Dtype.FP16, Dtype.BF16), (False, True)):
        yield _case(shape, dtype, 256, causal)
    for shape, dtype, head_dim, causal in product(
        _FOR_OTHERS, (Dtype.FP16, Dtype.BF16), _OTHER_HEAD_DIMS, (False, True)
    ):
        yield _case(shape, dtype, head_dim, causal)
    for dtype, causal in product((Dtype.FP16, Dtype.BF16), (False, True)):
        yield _case(_FOR_OTHERS[1], dtype, 64, causal, _OWN_SCALE)
    yield _case(_MANY_HEADS, Dtype.FP16, 64, True)


def small_set() -> Iterator[NumericsCase]:
    """Every small shape with both masks, types and head dims taking turns, a few with others: for the emulator."""
    for index, shape in enumerate(_SMALL):
        for causal in (False, True):
            dtype = (Dtype.FP16, Dtype.BF16)[(index + causal) % 2]
            yield _case(shape, dtype, (64, 128)[(index // 2 + causal) % 2], causal)
    # Each type has a head dim less than its tiles are wide.
    for index, head_dim in enumerate((40, 88, 160, 256)):
        yield _case(_Shape(70, 100), (Dtype.FP16, Dtype.BF16)[index % 2], head_dim, index // 2 == 1)
    yield _case(_Shape(17, 17, batch=2), Dtype.FP16, 64, True, _OWN_SCALE)


def strided_set(*, full: bool) -> Iterator[NumericsCase]:
    """Tensors with the heads inside the sequence, of kernels that take them; two cases for the emulator, one a type."""
    shapes, head_dims = (_FOR_OTHERS, (64, 72, 128, 192, 256)) if full else (_FOR_OTHERS[1:2], (64, 72))
    choices = product(shapes, head_dims, (Dtype.FP16, Dtype.BF16), (False, True))
    for shape, head_dim, dtype, causal in choices:
        if full or (dtype is Dtype.FP16) == causal == (head_dim == 64):
            yield replace(_case(shape, dtype, head_dim, causal), layout="bshd")


def _case(shape: _Shape, dtype: Dtype, head_dim: int, causal: bool, softmax_scale: float | None = None) -> NumericsCase:
    workload = Workload.of(
        shape.seq_q,
        seq_kv=shape.seq_kv,
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        causal=causal,
        softmax_scale=softmax_scale,
    )
    return NumericsCase(workload, shape.distribution)
