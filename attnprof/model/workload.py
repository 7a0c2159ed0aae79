"""What is computed: the shape, element type, mask and pass of one attention call, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UsageError


class Pass(StrEnum):
    """Forward, or the backward that yields dQ, dK and dV."""

    FWD = "fwd"
    BWD = "bwd"


# Scales outside these are not meant, and their products with scores would leave the range of fp32.
SCALE_MIN, SCALE_MAX = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class Workload:
    """One attention call: O = softmax(scale · Q Kᵀ + mask) V.

    Shapes: Q and O are (batch, heads, seq_q, head_dim); K and V are (batch, kv_heads, seq_kv, head_dim), row-major.
    ``kv_heads`` divides ``heads`` (grouped-query attention). A causal mask is bottom-right aligned: query i sees the
    keys j ≤ i + seq_kv − seq_q, so the last query sees every key. ``softmax_scale`` is the scale where it is not the
    usual one, see `scale`. :meth:`of` fills in the usual defaults.

    Raises:
        UsageError: a size is not a positive integer, kv_heads does not divide heads, or the scale is not a positive
            number from 1e-30 to 1e30.
    """

    seq_q: int
    seq_kv: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: Dtype = Dtype.FP16
    causal: bool = False
    direction: Pass = Pass.FWD
    softmax_scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("seq_q", "seq_kv", "batch", "heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} is {value!r}; it must be a positive integer")
        if self.heads % self.kv_heads:
            divisors = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            raise UsageError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}", f"choose one of {divisors}"
            )
        if self.softmax_scale is not None and not SCALE_MIN <= self.softmax_scale <= SCALE_MAX:
            raise UsageError(
                f"the scale is {self.softmax_scale!r}; it must lie between {SCALE_MIN} and {SCALE_MAX}",
                f"1/sqrt(head_dim) is {1.0 / math.sqrt(self.head_dim):.6g}",
            )

    @classmethod
    def of(
        cls,
        seq_q: int,
        *,
        seq_kv: int | None = None,
        batch: int = 1,
        heads: int = 32,
        kv_heads: int | None = None,
        head_dim: int = 128,
        dtype: Dtype = Dtype.FP16,
        causal: bool = False,
        direction: Pass = Pass.FWD,
        softmax_scale: float | None = None,
    ) -> Workload:
        """A workload with the command line's defaults: as many keys as queries, as many KV heads as heads."""
        return cls(
            seq_q=seq_q,
            seq_kv=seq_q if seq_kv is None else seq_kv,
            batch=batch,
            heads=heads,
            kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            causal=causal,
            direction=direction,
            softmax_scale=softmax_scale,
        )

    @property
    def scale(self) -> float:
        """What the scores are multiplied by: 1/sqrt(head_dim) unless the workload has a scale of its own."""
        return 1.0 / math.sqrt(self.head_dim) if self.softmax_scale is None else self.softmax_scale

    @property
    def q_elements(self) -> int:
        """Elements of Q, and of O."""
        return self.batch * self.heads * self.seq_q * self.head_dim

    @property
    def kv_elements(self) -> int:
        """Elements of K, and of V: counted once a KV head, however many query heads share it."""
        return self.batch * self.kv_heads * self.seq_kv * self.head_dim

    @property
    def rows(self) -> int:
        """Rows of the score matrix over all heads and batches."""
        return self.batch * self.heads * self.seq_q

    @property
    def pairs_per_head(self) -> int:
        """(query, key) pairs of one head that the mask allows, counted exactly."""
        if not self.causal:
            return self.seq_q * self.seq_kv
        # Query i allows clamp(i + 1 + seq_kv − seq_q, 0, seq_kv) keys: the last `n` queries allow
        # seq_kv, seq_kv − 1, … down to 1 key or to the first query, whichever comes first.
        n = min(self.seq_q, self.seq_kv)
        return n * (2 * self.seq_kv - n + 1) // 2

    @property
    def pairs(self) -> int:
        """Allowed (query, key) pairs over all heads and batches."""
        return self.batch * self.heads * self.pairs_per_head

    @property
    def flops(self) -> int:
        """Matrix FLOPs of the pass, the figure that published TFLOP/s divide by.

        4·d a pair forward (two products, two FLOPs a multiply-add), and 2.5 times that backward (five products,
        one of them recomputing S): Dao, FlashAttention-2 (arXiv:2307.08691), section 4.1. What a kernel really
        executes may differ and is its Demand.
        """
        forward = 4 * self.pairs * self.head_dim
        return forward if self.direction is Pass.FWD else forward * 5 // 2

    @property
    def label(self) -> str:
        """A short name for progress lines: ``b1 h32 s4096 d128 fp16 causal``."""
        heads = f"h{self.heads}" if self.heads == self.kv_heads else f"h{self.heads}/{self.kv_heads}"
        seq = f"s{self.seq_q}" if self.seq_q == self.seq_kv else f"q{self.seq_q}/kv{self.seq_kv}"
        mask = " causal" if self.causal else ""
        backward = " bwd" if self.direction is Pass.BWD else ""
        scale = "" if self.softmax_scale is None else f" scale {self.softmax_scale:g}"
        return f"b{self.batch} {heads} {seq} d{self.head_dim} {self.dtype}{mask}{backward}{scale}"
