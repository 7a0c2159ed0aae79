"""The workloads that a numerics check runs: small, awkward, and always the same.

Each length sits at, just under or just over the edge of a tile, a fragment or a 16-byte vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from attnprof.kernels.inputs import Distribution
from attnprof.kernels.spec import Operation, workload_label
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload


@dataclass(frozen=True, slots=True)
class NumericsCase:
    """A workload and what its inputs look like."""

    workload: Workload
    distribution: Distribution = Distribution.NORMAL
    operation: Operation = "attention"

    @property
    def label(self) -> str:
        """``b2 h4/2 s200 d64 fp16 causal large-logits``, or ``11 x 1025 fp16 masked`` of a matrix."""
        suffix = "" if self.distribution is Distribution.NORMAL else f" {self.distribution}"
        return f"{workload_label(self.workload, self.operation)}{suffix}"


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

_SMALL = (
    _Shape(17, 17, batch=2),
    _Shape(65, 65),
    _Shape(5, 2, batch=2),
    _Shape(129, 64),
    _Shape(64, 129),
    _Shape(100, 130, heads=4, kv_heads=2),
    _Shape(130, 100, batch=2, heads=2, kv_heads=1),
    *(_Shape(70, 70, distribution=distribution) for distribution in _UNUSUAL),
)


def full_set() -> Iterator[NumericsCase]:
    """Every shape with both types, both head dims and both masks: for a GPU, some seconds a kernel."""
    for shape, dtype, head_dim, causal in product(_FULL, (Dtype.FP16, Dtype.BF16), (64, 128), (False, True)):
        yield _case(shape, dtype, head_dim, causal)


def small_set() -> Iterator[NumericsCase]:
    """Every small shape with both masks, each with another type, the head dims taking turns: for the emulator."""
    for index, shape in enumerate(_SMALL):
        for causal in (False, True):
            dtype = (Dtype.FP16, Dtype.BF16)[(index + causal) % 2]
            yield _case(shape, dtype, (64, 128)[(index // 2 + causal) % 2], causal)


def _case(shape: _Shape, dtype: Dtype, head_dim: int, causal: bool) -> NumericsCase:
    workload = Workload.of(
        shape.seq_q,
        seq_kv=shape.seq_kv,
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        causal=causal,
    )
    return NumericsCase(workload, shape.distribution)
