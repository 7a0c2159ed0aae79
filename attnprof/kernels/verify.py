"""Whether a kernel's output is right, judged by what its roundings allow.

The reference is float64 on the same rounded inputs. The yardstick is the same mathematics in NumPy, rounded where the
kernel rounds (`KernelSpec.rounds`): a kernel may err at most twice as much. Three guards stand beside that one number,
because a norm over a large tensor hides much: no element of the whole output may be NaN, infinite or unwritten; rows
that the mask leaves empty must be exactly 0; and no single row may err far more than its neighbours' yardstick.

Every comparison is written ``not (error <= limit)``, so NaN fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprof.kernels import sampling
from attnprof.kernels.spec import RoundingPoint
from attnprof.model.dtypes import Dtype
from attnprof.model.reference import attention_rows
from attnprof.model.rounding import decode
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float64]

# The kernel's relative L2 error may be this many times that of the yardstick.
ERROR_FACTOR = 2.0
# A single row may err this many times as much as the worst yardstick row of its chunk: rows of one chunk see about
# the same keys, and the error of a row of 64 elements or more scatters by far less than this.
ROW_FACTOR = 4.0
# A yardstick that came out better than this many unit roundoffs was lucky (rounding O alone costs about 0.4): in a row
# or two of few keys that happens, and no kernel should have to be as lucky.
LUCK = 0.25
# float64 work that a verification may spend: about a second on two cores.
WORK_LIMIT_FLOPS = 16_000_000_000
# Chunks of rows that it may compare: each takes some 0.1 ms besides.
MOST_CHUNKS = 4096
# Rows of a chunk when every row is checked.
WHOLE_CHUNK = 128

# Elements searched for NaN at once: what a core's cache holds.
_SCAN_ELEMENTS = 1 << 19

# Unit roundoff of each type: half the distance from 1 to the next value.
UNIT_ROUNDOFF = {Dtype.FP16: 2.0**-11, Dtype.BF16: 2.0**-8, Dtype.FP32: 2.0**-24}
# Where each type has its exponent: all ones are infinities and NaN.
EXPONENT_BITS = {Dtype.FP16: 0x7C00, Dtype.BF16: 0x7F80, Dtype.FP32: 0x7F800000}


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on one output.

    Attributes:
        passed: every comparison held.
        rel_error: ||o − reference|| / ||reference|| over the checked rows; None when the output is not finite.
        limit: what ``rel_error`` may be at most; None when it did not come to that.
        rows_checked: rows compared with the reference.
        rows_total: rows of the output; all of them were searched for NaN, infinities and unwritten elements.
        detail: what failed and where, or what was compared, in one line.
    """

    passed: bool
    rel_error: float | None
    limit: float | None
    rows_checked: int
    rows_total: int
    detail: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive query rows [start, stop) of one head."""

    batch: int
    head: int
    start: int
    stop: int


def verify(
    workload: Workload,
    rounds: Sequence[RoundingPoint],
    inputs: Mapping[str, Array],
    o: Array,
    lse: Array | None = None,
    *,
    work_limit_flops: int = WORK_LIMIT_FLOPS,
) -> Verification:
    """Judge a forward output.

    Args:
        workload: what was computed.
        rounds: where the kernel rounds to the element type besides its inputs.
        inputs: ``q``, ``k`` and ``v`` in storage form.
        o: the output in storage form, (batch, heads, seq_q, head_dim), poisoned before the run.
        lse: the log-sum-exp, fp32, (batch, heads, seq_q), of a kernel that has one.
        work_limit_flops: rows are sampled when the reference of all of them would cost more.
    """
    fault = _element_fault(workload, o, lse)
    if fault is not None:
        return Verification(False, None, None, 0, workload.rows, fault)
    chunks = sample_rows(workload, work_limit_flops)
    tally = _Tally(workload, tuple(rounds))
    for (batch, kv_head), group in _by_kv_head(workload, chunks):
        k = decode(inputs["k"][batch, kv_head], workload.dtype).astype(np.float64)
        v = decode(inputs["v"][batch, kv_head], workload.dtype).astype(np.float64)
        for chunk in group:
            rows = (chunk.batch, chunk.head, slice(chunk.start, chunk.stop))
            q = decode(inputs["q"][rows], workload.dtype).astype(np.float64)
            tally.add(chunk, q, k, v, decode(o[rows], workload.dtype), None if lse is None else lse[rows])
    return tally.verdict()


def sample_rows(workload: Workload, work_limit_flops: int = WORK_LIMIT_FLOPS) -> tuple[Chunk, ...]:
    """The rows to check: all of them where that is cheap, else those of `attnprof.kernels.sampling`."""
    w = workload
    # Forward FLOPs of three products over [V, |V|] and of the yardstick, against 4·d a pair.
    cost_per_row = 10 * w.seq_kv * w.head_dim
    chunks_of_all = w.batch * w.heads * -(-w.seq_q // WHOLE_CHUNK)
    if w.rows * cost_per_row <= work_limit_flops and chunks_of_all <= MOST_CHUNKS:
        length = WHOLE_CHUNK
        chosen = [(head, start) for head in range(w.batch * w.heads) for start in range(0, w.seq_q, length)]
    else:
        length = sampling.CHUNK
        affordable = min(max(work_limit_flops // (cost_per_row * length), 1), MOST_CHUNKS)
        chosen = sampling.sampled_chunks(w.batch * w.heads, w.seq_q, affordable)
    return tuple(Chunk(*divmod(head, w.heads), start, min(start + length, w.seq_q)) for head, start in chosen)


def _by_kv_head(workload: Workload, chunks: Sequence[Chunk]) -> Iterator[tuple[tuple[int, int], list[Chunk]]]:
    groups: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        kv_head = chunk.head // (workload.heads // workload.kv_heads)
        groups.setdefault((chunk.batch, kv_head), []).append(chunk)
    yield from groups.items()


def empty_rows(workload: Workload) -> int:
    """How many leading query rows of each head the mask leaves without a key."""
    return max(workload.seq_q - workload.seq_kv, 0) if workload.causal else 0


def element_fault(name: str, values: Array, dtype: Dtype) -> str | None:
    """Where an output (batch, heads, rows, head_dim) is NaN, infinite or unwritten, or None."""
    bits: Array = values.view(np.uint32 if dtype is Dtype.FP32 else np.uint16)
    poison = 2 ** (8 * dtype.itemsize) - 1  # what an element holds that the kernel never wrote
    exponent = EXPONENT_BITS[dtype]
    flat = bits.reshape(-1)
    for start in range(0, flat.size, _SCAN_ELEMENTS):
        wild = (flat[start : start + _SCAN_ELEMENTS] & exponent) == exponent
        if wild.any():
            batch, head, row, column = np.unravel_index(start + int(np.argmax(wild)), values.shape)
            value = bits[batch, head, row, column]
            what = "never written" if value == poison else str(decode(values[batch, head, row], dtype)[column])
            others = int(np.count_nonzero((bits[batch, head] & exponent) == exponent))
            return f"{name}[{batch}, {head}, {row}, {column}] is {what} ({others} such elements in this head)"
    return None


def _element_fault(workload: Workload, o: Array, lse: Array | None) -> str | None:
    """What is wrong with single elements of the whole output, or None."""
    rows = (workload.batch, workload.heads, workload.seq_q)
    if o.shape != (*rows, workload.head_dim):
        return f"o has shape {o.shape}, not {(*rows, workload.head_dim)}"
    fault = element_fault("o", o, workload.dtype)
    if fault is not None:
        return fault
    empty = empty_rows(workload)
    if empty and np.any(decode(o[:, :, :empty], workload.dtype)):
        return f"o is not 0 in rows that the mask leaves empty (the first {empty} of each head)"
    if lse is None:
        return None
    if lse.shape != rows:
        return f"lse has shape {lse.shape}, not {rows}"
    if np.isnan(lse).any():
        place = ", ".join(str(int(index)) for index in np.argwhere(np.isnan(lse))[0])
        return f"lse[{place}] is NaN or was never written"
    if not np.all(np.isneginf(lse[:, :, :empty])):
        return "lse is not -inf in a row that the mask leaves empty"
    if not np.all(np.isfinite(lse[:, :, empty:])):
        return "lse is infinite in a row that has keys"
    return None


@dataclass
class _Tally:
    """Sums of squares over the checked rows, and the worst single row."""

    workload: Workload
    rounds: tuple[RoundingPoint, ...]
    error: float = 0.0
    yardstick: float = 0.0
    reference: float = 0.0
    magnitude: float = 0.0
    rows: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, chunk: Chunk, q: Floats, k: Floats, v: Floats, o: Array, lse: Array | None) -> None:
        """Compare the rows of a chunk; ``k`` and ``v`` are those of its whole KV head."""
        w = self.workload
        self.rows += chunk.stop - chunk.start
        seq_q = w.seq_q
        if w.causal:
            # The last row of the chunk sees `keys` keys: cutting off the others saves their work, and leaves a
            # bottom-right mask that ends at that row.
            keys = chunk.stop + w.seq_kv - w.seq_q
            if keys <= 0:
                return  # all rows empty: compared element by element already
            k, v, seq_q = k[:keys], v[:keys], chunk.stop
        rows = np.arange(chunk.start, chunk.stop)
        # |V| beside V: its weighted sum is what a row's error is measured against, because the row itself may cancel.
        both, exact_lse = attention_rows(
            q, k, np.hstack([v, np.abs(v)]), rows, seq_q=seq_q, causal=w.causal, scale=w.scale
        )
        exact, size = both[:, : w.head_dim], np.linalg.norm(both[:, w.head_dim :], axis=1)
        rounded, _ = attention_rows(
            q,
            k,
            v,
            rows,
            seq_q=seq_q,
            causal=w.causal,
            scale=w.scale,
            rounds=self.rounds,
            dtype=w.dtype,
            # A kernel that hands S through memory normalises it there; a fused one divides O at the end.
            normalised_p="s" in self.rounds,
        )
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.linalg.norm(o - exact, axis=1)
        yardstick = np.linalg.norm(rounded - exact, axis=1)
        row_size = np.linalg.norm(exact, axis=1)
        self.error += float(np.sum(error**2))
        self.yardstick += float(np.sum(yardstick**2))
        self.reference += float(np.sum(row_size**2))
        self.magnitude += float(np.sum(size**2))
        self._guard_rows(chunk, error, yardstick, row_size, size)
        if lse is not None:
            self._guard_lse(chunk, lse.astype(np.float64), exact_lse)

    def _guard_rows(self, chunk: Chunk, error: Floats, yardstick: Floats, row_size: Floats, size: Floats) -> None:
        worst = float(np.max(np.divide(yardstick, size, out=np.zeros_like(size), where=size > 0)))
        allowed = ROW_FACTOR * np.maximum(worst * size, LUCK * UNIT_ROUNDOFF[self.workload.dtype] * row_size)
        bad = ~(error <= allowed)
        if bad.any():
            row = int(np.argmax(np.where(bad, error - allowed, -np.inf)))
            self.faults.append(
                f"row {chunk.start + row} of batch {chunk.batch}, head {chunk.head} is off by {error[row]:.3g} "
                f"where {allowed[row]:.3g} is allowed"
            )

    def _guard_lse(self, chunk: Chunk, lse: Floats, exact: Floats) -> None:
        finite = np.isfinite(exact)
        # fp32 dot products and the approximate exp2 err by a few 2^-23 of the scores; S in the element type by its
        # unit roundoff of the largest score, which exceeds the log-sum-exp by nothing.
        relative = 2.0**-19 + (UNIT_ROUNDOFF[self.workload.dtype] if "s" in self.rounds else 0.0)
        allowed = 2.0**-13 + relative * np.abs(exact[finite])
        difference = np.abs(lse[finite] - exact[finite])
        bad = ~(difference <= allowed)
        if bad.any():
            row = int(np.flatnonzero(finite)[np.argmax(bad)])
            self.faults.append(
                f"lse of row {chunk.start + row} of batch {chunk.batch}, head {chunk.head} is {lse[row]:.6g}, "
                f"not {exact[row]:.6g}"
            )

    def verdict(self) -> Verification:
        """Compare the sums, and put what failed into words."""
        unit = UNIT_ROUNDOFF[self.workload.dtype]
        # Where the output cancels to nearly 0, errors are relative to what was summed.
        scale = max(sqrt(self.reference), 1e-6 * sqrt(self.magnitude))
        if scale == 0.0:
            rel_error, limit = sqrt(self.error), 0.0
        else:
            rel_error = sqrt(self.error) / scale
            limit = ERROR_FACTOR * max(sqrt(self.yardstick), LUCK * unit * sqrt(self.reference)) / scale
        if not (rel_error <= limit):
            detail = f"relative error {rel_error:.3g}, at most {limit:.3g} is allowed"
            if self.faults:
                detail += f"; {self.faults[0]}"
        elif self.faults:
            detail = self.faults[0]
        else:
            checked = f"all {self.rows}" if self.rows == self.workload.rows else f"{self.rows} of {self.workload.rows}"
            return Verification(True, rel_error, limit, self.rows, self.workload.rows, f"{checked} rows")
        return Verification(False, rel_error, limit, self.rows, self.workload.rows, detail)
