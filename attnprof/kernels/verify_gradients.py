"""Whether a backward's dQ, dK and dV are right, by the policy of `attnprof.kernels.verify`.

Small workloads are compared whole, with the true gradients: O and the log-sum-exp are computed in float64 too. Of large
ones some rows of dQ and some keys of dK and dV are, and those keys take O and the log-sum-exp as the kernel got them,
because their exact values would cost a whole forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprof.kernels.sampling import CHUNK, sampled_chunks
from attnprof.kernels.spec import RoundingPoint
from attnprof.kernels.verify import (
    ERROR_FACTOR,
    LUCK,
    ROW_FACTOR,
    UNIT_ROUNDOFF,
    WHOLE_CHUNK,
    WORK_LIMIT_FLOPS,
    Verification,
    element_fault,
    empty_rows,
)
from attnprof.model.dtypes import Dtype
from attnprof.model.reference import attention_rows, gradient_scores
from attnprof.model.rounding import decode, round_to
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float64]

# A kernel adds up in fp32, of which the yardstick knows nothing: where dP and D cancel exactly (a row with one key),
# this much of what was added up may be left.
FP32_SUMS = 2.0**-20
# Float64 FLOPs a pair and element of the head dim: forward, gradients, yardstick and magnitudes are some 15 products.
_FLOPS_A_PAIR = 30
# Scores held at once, as in `attnprof.model.reference`.
_SCORES_AT_ONCE = 1 << 21
# KV heads, over all batches, that are compared whole, and chunks that are where not all are: each takes milliseconds.
_MOST_GROUPS, _MOST_CHUNKS = 256, 512


def verify_gradients(
    workload: Workload,
    rounds: Sequence[RoundingPoint],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    *,
    work_limit_flops: int = WORK_LIMIT_FLOPS,
) -> Verification:
    """Judge the outputs of a backward.

    Args:
        workload: what was computed.
        rounds: where the kernel rounds to the element type besides its inputs.
        inputs: ``q``, ``k``, ``v``, ``o`` and ``dout`` in storage form, and the fp32 ``lse``.
        outputs: ``dq``, ``dk`` and ``dv`` in storage form, poisoned before the run.
        work_limit_flops: rows and keys are sampled when the reference of all of them would cost more.

    Returns:
        The verdict; its error and limit are those of the gradient that comes closest to its limit, and its rows are
        those of all three.
    """
    w = workload
    total = w.rows + 2 * w.batch * w.kv_heads * w.seq_kv
    fault = _fault(w, outputs)
    if fault is not None:
        return Verification(False, None, None, 0, total, fault)
    sums = {name: _Sums(name, w.dtype) for name in ("dq", "dk", "dv")}
    flops = _FLOPS_A_PAIR * w.head_dim * w.rows * w.seq_kv
    if flops <= work_limit_flops and w.batch * w.kv_heads <= _MOST_GROUPS:
        for batch, kv_head in np.ndindex(w.batch, w.kv_heads):
            _Group(w, rounds, inputs, outputs, batch, kv_head, sums).whole()
    else:
        for batch, kv_head, chunks in _samples(w, work_limit_flops):
            group = _Group(w, rounds, inputs, outputs, batch, kv_head, sums)
            for kind, start in chunks:
                (group.queries if kind == "queries" else group.keys)(start)
    checked = sum(each.rows for each in sums.values())
    closest = max(sums.values(), key=lambda each: each.closeness)
    detail = next((each.fault for each in sums.values() if each.fault), None)
    value, limit = closest.error_and_limit()
    if detail is not None:
        return Verification(False, value, limit, checked, total, detail)
    scope = f"all {total}" if checked == total else f"{checked} of {total}"
    return Verification(True, value, limit, checked, total, f"{scope} rows; closest to its limit: {closest.name}")


def _fault(workload: Workload, outputs: Mapping[str, Array]) -> str | None:
    """What is wrong with single elements, or None."""
    w = workload
    query_shape = (w.batch, w.heads, w.seq_q, w.head_dim)
    key_shape = (w.batch, w.kv_heads, w.seq_kv, w.head_dim)
    for name, shape in (("dq", query_shape), ("dk", key_shape), ("dv", key_shape)):
        if outputs[name].shape != shape:
            return f"{name} has shape {outputs[name].shape}, not {shape}"
        fault = element_fault(name, outputs[name], w.dtype)
        if fault is not None:
            return fault
    empty = empty_rows(w)
    if empty and np.any(decode(outputs["dq"][:, :, :empty], w.dtype)):
        return f"dq is not 0 in rows that the mask leaves empty (the first {empty} of each head)"
    return None


def _samples(workload: Workload, work_limit_flops: int) -> Iterator[tuple[int, int, list[tuple[str, int]]]]:
    """Chunks of queries and of keys, by batch and KV head: see `attnprof.kernels.sampling`."""
    w = workload
    group = w.heads // w.kv_heads
    cost = _FLOPS_A_PAIR * w.head_dim * CHUNK * (w.seq_kv + group * w.seq_q)  # of a chunk of each kind
    affordable = min(max(work_limit_flops // cost, 1), _MOST_CHUNKS)
    chosen: dict[int, list[tuple[str, int]]] = {}
    for kind, length in (("queries", w.seq_q), ("keys", w.seq_kv)):
        for head, start in sampled_chunks(w.batch * w.kv_heads, length, affordable):
            chosen.setdefault(head, []).append((kind, start))
    for head, chunks in sorted(chosen.items()):
        yield head // w.kv_heads, head % w.kv_heads, chunks


@dataclass
class _Block:
    """P and dS of some rows and keys: exact, as the kernel rounds them, and how large what dS is made of was."""

    p: Floats
    ds: Floats
    rounded_p: Floats
    rounded_ds: Floats
    ds_size: Floats


class _Group:
    """The query heads of one KV head, in float64."""

    def __init__(
        self,
        workload: Workload,
        rounds: Sequence[RoundingPoint],
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        batch: int,
        kv_head: int,
        sums: Mapping[str, _Sums],
    ) -> None:
        self._w = workload
        self._rounds = tuple(rounds)
        self._sums = sums
        self._batch = batch
        self._kv_head = kv_head
        group = workload.heads // workload.kv_heads
        self._heads = range(kv_head * group, (kv_head + 1) * group)
        self._inputs = inputs
        self._outputs = outputs
        self._k = self._decoded(inputs["k"], kv_head)
        self._v = self._decoded(inputs["v"], kv_head)

    def whole(self) -> None:
        """Compare everything, with the true gradients."""
        w = self._w
        keys = slice(0, w.seq_kv)
        step = max(1, min(WHOLE_CHUNK, _SCORES_AT_ONCE // w.seq_kv))
        totals = _KeyTotals(w)
        for head in self._heads:
            for start in range(0, w.seq_q, step):
                rows = slice(start, min(start + step, w.seq_q))
                block = self._block(head, rows, keys, exact=True)
                self._take_dq(head, rows, block)
                totals.add(block, self._rows(head, "q", rows), self._rows(head, "dout", rows))
        for start in range(0, w.seq_kv, WHOLE_CHUNK):
            self._take_keys(slice(start, min(start + WHOLE_CHUNK, w.seq_kv)), totals, first=0)

    def queries(self, start: int) -> None:
        """Compare a chunk of dQ in the last head of the group, and in another one for each place."""
        rows = slice(start, min(start + CHUNK, self._w.seq_q))
        for head in sorted({self._heads[start // CHUNK % len(self._heads)], self._heads[-1]}):
            self._take_dq(head, rows, self._block(head, rows, slice(0, self._w.seq_kv), exact=True))

    def keys(self, start: int) -> None:
        """Compare a chunk of dK and dV."""
        w = self._w
        keys = slice(start, min(start + CHUNK, w.seq_kv))
        totals = _KeyTotals(w, keys.stop - keys.start)
        step = _SCORES_AT_ONCE // CHUNK
        for head in self._heads:
            for first in range(0, w.seq_q, step):
                rows = slice(first, min(first + step, w.seq_q))
                block = self._block(head, rows, keys, exact=False)
                totals.add(block, self._rows(head, "q", rows), self._rows(head, "dout", rows))
        self._take_keys(keys, totals, first=keys.start)

    def _decoded(self, tensor: Array, head: int, rows: slice = slice(None)) -> Floats:
        return decode(tensor[self._batch, head, rows], self._w.dtype).astype(np.float64)

    def _rows(self, head: int, name: str, rows: slice) -> Floats:
        return self._decoded(self._inputs[name], head, rows)

    def _block(self, head: int, rows: slice, keys: slice, *, exact: bool) -> _Block:
        w = self._w
        q, do, o = (self._rows(head, name, rows) for name in ("q", "dout", "o"))
        k, v = self._k[keys], self._v[keys]
        given_lse = self._inputs["lse"][self._batch, head, rows].astype(np.float64)
        given_d = (do * o).sum(axis=1)
        which_rows, which_keys = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
        if exact:
            o, lse = attention_rows(q, self._k, self._v, which_rows, seq_q=w.seq_q, causal=w.causal, scale=w.scale)
            d = (do * o).sum(axis=1)
        else:
            lse, d = given_lse, given_d

        def scores(lse: Floats, d: Floats, rounds: Sequence[RoundingPoint]) -> tuple[Floats, Floats]:
            return gradient_scores(
                q,
                k,
                v,
                do,
                lse,
                d,
                which_rows,
                which_keys,
                offset=w.seq_kv - w.seq_q,
                causal=w.causal,
                scale=w.scale,
                rounds=rounds,
                dtype=w.dtype,
            )

        p, ds = scores(lse, d, ())
        rounded_p, rounded_ds = scores(given_lse, given_d, self._rounds)
        return _Block(p, ds, rounded_p, rounded_ds, np.abs(ds) + 2 * p * np.abs(d)[:, None])

    def _take_dq(self, head: int, rows: slice, block: _Block) -> None:
        scale = self._w.scale
        self._sums["dq"].add(
            f"row {{}} of batch {self._batch}, head {head}",
            rows.start,
            self._decoded(self._outputs["dq"], head, rows),
            scale * (block.ds @ self._k),
            self._output(scale * (block.rounded_ds @ self._k)),
            scale * (block.ds_size @ np.abs(self._k)),
        )

    def _take_keys(self, keys: slice, totals: _KeyTotals, first: int) -> None:
        part = slice(keys.start - first, keys.stop - first)
        for name, scale in (("dk", self._w.scale), ("dv", 1.0)):
            exact, rounded, size = (scale * total[part] for total in totals.of[name])
            self._sums[name].add(
                f"key {{}} of batch {self._batch}, KV head {self._kv_head}",
                keys.start,
                self._decoded(self._outputs[name], self._kv_head, keys),
                exact,
                self._output(rounded),
                size,
            )

    def _output(self, values: Floats) -> Floats:
        return round_to(values, self._w.dtype) if "o" in self._rounds else values


class _KeyTotals:
    """dK and dV of some keys, added up over rows: exact, rounded, and the magnitudes; dK without the scale."""

    def __init__(self, workload: Workload, keys: int | None = None) -> None:
        shape = (workload.seq_kv if keys is None else keys, workload.head_dim)
        self.of = {name: tuple(np.zeros(shape) for _ in range(3)) for name in ("dk", "dv")}

    def add(self, block: _Block, q: Floats, do: Floats) -> None:
        for name, rows, scores in (
            ("dk", q, (block.ds, block.rounded_ds, block.ds_size)),
            ("dv", do, (block.p, block.rounded_p, block.p)),
        ):
            exact, rounded, size = self.of[name]
            exact += scores[0].T @ rows
            rounded += scores[1].T @ rows
            size += scores[2].T @ np.abs(rows)


@dataclass
class _Sums:
    """Sums of squares over the checked rows of one gradient, and the first row that is off by too much."""

    name: str
    dtype: Dtype
    error: float = 0.0
    yardstick: float = 0.0
    reference: float = 0.0
    magnitude: float = 0.0
    rows: int = 0
    bad_row: str | None = field(default=None)

    def add(self, place: str, first: int, got: Floats, exact: Floats, rounded: Floats, size: Floats) -> None:
        """Compare rows; ``size`` is what would have been added up without cancellation, ``place`` names a row."""
        norm: Callable[[Floats], Floats] = lambda rows: np.linalg.norm(rows, axis=1)  # noqa: E731
        error, yardstick, row_size, sizes = norm(got - exact), norm(rounded - exact), norm(exact), norm(size)
        self.rows += len(got)
        self.error += float(np.sum(error**2))
        self.yardstick += float(np.sum(yardstick**2))
        self.reference += float(np.sum(row_size**2))
        self.magnitude += float(np.sum(sizes**2))
        worst = float(np.max(np.divide(yardstick, sizes, out=np.zeros_like(sizes), where=sizes > 0)))
        allowed = ROW_FACTOR * np.maximum(max(worst, FP32_SUMS) * sizes, LUCK * UNIT_ROUNDOFF[self.dtype] * row_size)
        bad = ~(error <= allowed)
        if bad.any() and self.bad_row is None:
            row = int(np.argmax(np.where(bad, error - allowed, -np.inf)))
            where = place.format(first + row)
            self.bad_row = f"{where} is off by {error[row]:.3g} where {allowed[row]:.3g} is allowed"

    def error_and_limit(self) -> tuple[float, float]:
        """The relative L2 error, and what it may be."""
        # Where a gradient cancels to nearly 0, errors are relative to what was added up.
        scale = max(sqrt(self.reference), 1e-6 * sqrt(self.magnitude))
        if scale == 0.0:
            return sqrt(self.error), 0.0
        lucky = LUCK * UNIT_ROUNDOFF[self.dtype] * sqrt(self.reference)
        allowed = max(sqrt(self.yardstick), lucky, FP32_SUMS * sqrt(self.magnitude))
        return sqrt(self.error) / scale, ERROR_FACTOR * allowed / scale

    @property
    def closeness(self) -> float:
        """Error over limit."""
        error, limit = self.error_and_limit()
        return error / limit if limit > 0.0 else (0.0 if error == 0.0 else float("inf"))

    @property
    def fault(self) -> str | None:
        """What is wrong, in words, or None."""
        error, limit = self.error_and_limit()
        said = [] if error <= limit else [f"relative error {error:.3g}, at most {limit:.3g} is allowed"]
        said += [self.bad_row] if self.bad_row else []
        return f"{self.name}: {'; '.join(said)}" if said else None
