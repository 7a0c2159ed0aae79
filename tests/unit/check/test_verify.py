"""What `verify` must pass, and the ways to be wrong that it must see: each as a change to a right output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attnprof.kernels.inputs import Distribution, make_inputs
from attnprof.kernels.verify import MOST_CHUNKS, WORK_LIMIT_FLOPS, Verification, element_fault, sample_rows, verify
from attnprof.model.dtypes import Dtype
from attnprof.model.reference import attention, attention_rounded, flash_attention_2
from attnprof.model.rounding import decode, encode, round_to
from attnprof.model.workload import Workload

ROUNDS = {"naive": ("s", "p", "o"), "fused": ("p", "o")}


def computed(
    workload: Workload, rounds: tuple[str, ...], distribution: Distribution = Distribution.NORMAL
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Inputs, and O and the log-sum-exp as a right kernel writes them."""
    inputs = dict(make_inputs(workload, distribution=distribution))
    q, k, v = (decode(inputs[name], workload.dtype) for name in ("q", "k", "v"))
    o, lse = attention_rounded(
        q, k, v, causal=workload.causal, rounds=rounds, dtype=workload.dtype, normalised_p="s" in rounds
    )
    if "s" in rounds:
        lse = attention(q, k, v, causal=workload.causal)[1]
    return inputs, encode(o, workload.dtype), lse.astype(np.float32)


def judge(workload: Workload, change: Callable[[np.ndarray, np.ndarray], None]) -> Verification:
    """The verdict on a right fused output after a change to O and the log-sum-exp."""
    inputs, o, lse = computed(workload, ROUNDS["fused"])
    change(o, lse)
    return verify(workload, ROUNDS["fused"], inputs, o, lse)  # type: ignore[arg-type]


SHAPES = [
    Workload.of(1, heads=8, head_dim=64),
    Workload.of(65, batch=2, heads=4, kv_heads=2, head_dim=64, causal=True),
    Workload.of(5, seq_kv=2, heads=4, head_dim=64, causal=True),
    Workload.of(129, seq_kv=64, heads=2, head_dim=128, causal=True, dtype=Dtype.BF16),
    Workload.of(64, seq_kv=200, heads=2, kv_heads=1, head_dim=128, dtype=Dtype.BF16),
]


@pytest.mark.parametrize("workload", SHAPES, ids=lambda workload: workload.label)
@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("rounds", list(ROUNDS))
def test_a_right_output_passes(workload: Workload, distribution: Distribution, rounds: str) -> None:
    inputs, o, lse = computed(workload, ROUNDS[rounds], distribution)
    verdict = verify(workload, ROUNDS[rounds], inputs, o, lse)  # type: ignore[arg-type]
    assert verdict.passed, verdict.detail
    assert verdict.rows_checked == verdict.rows_total == workload.rows


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
@pytest.mark.parametrize("distribution", list(Distribution))
def test_a_block_wise_kernel_that_rounds_in_other_places_of_the_same_kind_passes(
    dtype: Dtype, distribution: Distribution
) -> None:
    """P rounded against a running maximum, as a fused kernel has it, not against the final one."""
    workload = Workload.of(200, heads=2, head_dim=64, causal=True, dtype=dtype)
    inputs = make_inputs(workload, distribution=distribution)
    q, k, v = (decode(inputs[name], dtype).astype(np.float64) for name in ("q", "k", "v"))
    o = np.empty(q.shape)
    for h in range(2):
        s = workload.scale * q[0, h] @ k[0, h].T
        s[np.triu_indices(200, 1)] = -np.inf
        m = s[:, :64].max(axis=1)  # the first block's maximum stays, unless a later score is much above it
        m = np.where(s.max(axis=1) - m > 5, s.max(axis=1), m)[:, None]
        p = np.exp(s - m)
        o[0, h] = round_to(p, dtype) @ v[0, h] / p.sum(axis=1)[:, None]
    verdict = verify(workload, ("p", "o"), inputs, encode(o, dtype))
    assert verdict.passed, verdict.detail


WORKLOAD = Workload.of(200, batch=2, heads=4, kv_heads=2, head_dim=64, causal=True)


def nothing(o: np.ndarray, lse: np.ndarray) -> None:
    """A right output."""


def one_unwritten_element(o: np.ndarray, lse: np.ndarray) -> None:
    o.view(np.uint16)[1, 3, 199, 63] = 0xFFFF


def one_nan(o: np.ndarray, lse: np.ndarray) -> None:
    o[1, 3, 199, 63] = np.nan


def one_infinity(o: np.ndarray, lse: np.ndarray) -> None:
    o[0, 0, 100, 5] = -np.inf


def one_row_of_another_row(o: np.ndarray, lse: np.ndarray) -> None:
    o[1, 2, 77] = o[1, 2, 78]


def one_element_zero(o: np.ndarray, lse: np.ndarray) -> None:
    o[0, 1, 3, 9] = 0


def two_rows_swapped(o: np.ndarray, lse: np.ndarray) -> None:
    o[0, 0, [10, 11]] = o[0, 0, [11, 10]]


def all_rows_one_percent_large(o: np.ndarray, lse: np.ndarray) -> None:
    o *= np.float16(1.01)


def wrong_head(o: np.ndarray, lse: np.ndarray) -> None:
    o[0, [0, 1]] = o[0, [1, 0]]


def all_zero(o: np.ndarray, lse: np.ndarray) -> None:
    o[:] = 0


def unwritten_lse(o: np.ndarray, lse: np.ndarray) -> None:
    lse.view(np.uint32)[1, 1, 5] = 0xFFFFFFFF


def lse_in_base_two(o: np.ndarray, lse: np.ndarray) -> None:
    lse *= np.float32(np.log2(np.e))


def one_lse_a_little_off(o: np.ndarray, lse: np.ndarray) -> None:
    lse[1, 3, 150] += np.float32(1e-3)


def infinite_lse(o: np.ndarray, lse: np.ndarray) -> None:
    lse[0, 0, 0] = -np.inf


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (one_unwritten_element, "o[1, 3, 199, 63] is never written"),
        (one_nan, "o[1, 3, 199, 63] is nan"),
        (one_infinity, "o[0, 0, 100, 5] is -inf"),
        (one_row_of_another_row, "row 77 of batch 1, head 2"),
        (one_element_zero, "row 3 of batch 0, head 1"),
        (two_rows_swapped, "of batch 0, head 0"),
        (all_rows_one_percent_large, "relative error 0.00977"),
        (wrong_head, "relative error"),
        (all_zero, "relative error 1,"),
        (unwritten_lse, "lse[1, 1, 5] is NaN"),
        (lse_in_base_two, "lse of row"),
        (one_lse_a_little_off, "lse of row 150 of batch 1, head 3"),
        (infinite_lse, "lse is infinite"),
    ],
)
def test_a_wrong_output_fails_and_names_the_place(change: Callable[[np.ndarray, np.ndarray], None], word: str) -> None:
    assert judge(WORKLOAD, nothing).passed
    verdict = judge(WORKLOAD, change)
    assert not verdict.passed
    assert word in verdict.detail


def test_rows_without_keys_must_be_exactly_zero_and_their_lse_minus_infinity() -> None:
    workload = Workload.of(5, seq_kv=2, heads=4, head_dim=64, causal=True)

    def tiny_instead_of_zero(o: np.ndarray, lse: np.ndarray) -> None:
        o[0, 2, 2, 7] = np.float16(2**-24)

    def mean_of_the_values(o: np.ndarray, lse: np.ndarray) -> None:
        o[0, :, :3] = 0.5

    def finite_lse(o: np.ndarray, lse: np.ndarray) -> None:
        lse[0, 0, 0] = -1e30

    assert judge(workload, nothing).passed
    for change in (tiny_instead_of_zero, mean_of_the_values):
        assert "not 0 in rows that the mask leaves empty (the first 3 of each head)" in judge(workload, change).detail
    assert "not -inf" in judge(workload, finite_lse).detail


def test_the_smallest_fp16_value_must_come_back() -> None:
    workload = Workload.of(64, heads=2, head_dim=64)
    inputs = dict(make_inputs(workload))
    inputs["v"] = np.full(inputs["v"].shape, 2.0**-24, np.float16)
    right = np.full(inputs["q"].shape, 2.0**-24, np.float16)
    assert verify(workload, ("p", "o"), inputs, right).passed
    assert not verify(workload, ("p", "o"), inputs, np.zeros_like(right)).passed


def test_a_reference_of_zeros_divides_by_nothing() -> None:
    workload = Workload.of(64, heads=2, head_dim=64)
    inputs = dict(make_inputs(workload))
    inputs["v"] = np.zeros_like(inputs["v"])
    o = np.zeros(inputs["q"].shape, np.float16)
    verdict = verify(workload, ("p", "o"), inputs, o)
    assert verdict.passed
    assert (verdict.rel_error, verdict.limit) == (0.0, 0.0)
    o[0, 0, 0, 0] = 2.0**-24
    assert not verify(workload, ("p", "o"), inputs, o).passed


def test_values_that_cancel_to_almost_nothing_are_judged_by_what_was_summed() -> None:
    workload = Workload.of(64, heads=2, head_dim=64)
    inputs = dict(make_inputs(workload))
    inputs["k"] = np.zeros_like(inputs["k"])  # every key weighs the same
    v = np.ones(inputs["v"].shape, np.float16)
    v[..., 1::2, :] = -1
    inputs["v"] = v
    zero = np.zeros(inputs["q"].shape, np.float16)
    assert verify(workload, ("p", "o"), inputs, zero).passed
    assert not verify(workload, ("p", "o"), inputs, zero + np.float16(0.01)).passed


def test_a_nan_input_fails_rather_than_compares_equal() -> None:
    workload = Workload.of(17, heads=1, head_dim=64)
    inputs, o, _ = computed(workload, ROUNDS["fused"])
    inputs["v"] = inputs["v"].copy()
    inputs["v"][0, 0, 3, 3] = np.nan
    assert not verify(workload, ("p", "o"), inputs, o).passed


def test_a_wrong_shape_fails() -> None:
    inputs, o, lse = computed(WORKLOAD, ROUNDS["fused"])
    assert "shape" in verify(WORKLOAD, ("p", "o"), inputs, o[:, :, :-1]).detail
    assert "shape" in verify(WORKLOAD, ("p", "o"), inputs, o, lse[:, :-1]).detail


def test_small_outputs_are_checked_whole() -> None:
    chunks = sample_rows(WORKLOAD)
    assert sum(chunk.stop - chunk.start for chunk in chunks) == WORKLOAD.rows


@pytest.mark.parametrize(("seq", "heads"), [(4096, 32), (32768, 32), (65537, 8), (40_000, 1)])
def test_large_outputs_are_sampled_within_the_work_limit(seq: int, heads: int) -> None:
    workload = Workload.of(seq, heads=heads)
    limit = WORK_LIMIT_FLOPS
    chunks = sample_rows(workload, limit)
    assert chunks == sample_rows(workload, limit)
    rows = [(chunk.head, row) for chunk in chunks for row in range(chunk.start, chunk.stop)]
    assert len(rows) == len(set(rows)) < workload.rows
    assert 10 * len(rows) * seq * 128 <= limit
    assert {0, heads - 1} <= {head for head, _ in rows}
    seen = {row for _, row in rows}
    assert {0, seq - 1, 127, 128, (seq - 1) // 128 * 128} <= seen


def test_of_many_small_heads_some_are_sampled_the_first_and_the_last_among_them() -> None:
    chunks = sample_rows(Workload.of(2, seq_kv=3, batch=65_541, heads=1))
    assert 2000 < len(chunks) <= MOST_CHUNKS
    assert {0, 65_540} <= {chunk.batch for chunk in chunks}


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (2, 1, 4, 63), (1, 0, 3, 7)])
def test_the_place_of_an_element_that_is_not_finite_is_named(
    place: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnprof.kernels.verify._SCAN_ELEMENTS", 100)
    o = np.zeros((3, 2, 5, 64), np.float16)
    assert element_fault("o", o, Dtype.FP16) is None
    o[place] = np.inf
    o[(*place[:2], 4, 63)] = np.nan
    count = 1 if place[2:] == (4, 63) else 2
    what = "nan" if count == 1 else "inf"
    assert element_fault("o", o, Dtype.FP16) == f"o{list(place)} is {what} ({count} such elements in this head)"
    o.view(np.uint16)[place] = 0xFFFF
    assert "is never written" in str(element_fault("o", o, Dtype.FP16))


@pytest.mark.parametrize("first", [16, 32, 48])
def test_the_rows_of_one_warp_in_every_tile_of_a_sampled_output_are_missed(first: int) -> None:
    inputs, o, lse = computed(WORKLOAD, ROUNDS["fused"])
    for row in range(first, WORKLOAD.seq_q, 64):
        o[:, :, row : row + 16] = 0
    verdict = verify(WORKLOAD, ("p", "o"), inputs, o, lse, work_limit_flops=16 * 8 * 10 * WORKLOAD.seq_kv * 64)
    assert verdict.rows_checked < verdict.rows_total
    assert not verdict.passed


def test_sampling_never_fails_for_want_of_budget() -> None:
    chunks = sample_rows(Workload.of(2**20, heads=2), 1)
    assert len(chunks) == 1
    assert chunks[0].stop == 2**20


def test_a_sampled_output_is_searched_whole_for_what_is_not_finite() -> None:
    inputs, o, lse = computed(WORKLOAD, ROUNDS["fused"])
    few = verify(WORKLOAD, ("p", "o"), inputs, o, lse, work_limit_flops=2_000_000)
    assert few.passed
    assert 0 < few.rows_checked < few.rows_total
    assert f"{few.rows_checked} of {few.rows_total} rows" in few.detail
    unseen = next(
        row
        for row in range(200)
        if not any(c.batch == 1 and c.head == 1 and c.start <= row < c.stop for c in sample_rows(WORKLOAD, 2_000_000))
    )
    o[1, 1, unseen, 0] = np.nan
    assert not verify(WORKLOAD, ("p", "o"), inputs, o, lse, work_limit_flops=2_000_000).passed


def test_sampled_rows_agree_with_the_block_wise_algorithm_in_float64() -> None:
    """The rows' cut-off keys and shifted mask give what the whole problem gives."""
    workload = Workload.of(300, seq_kv=260, heads=2, head_dim=64, causal=True, dtype=Dtype.FP16)
    inputs = make_inputs(workload)
    q, k, v = (decode(inputs[name], workload.dtype) for name in ("q", "k", "v"))
    o, lse = flash_attention_2(q, k, v, block_q=64, block_kv=48, causal=True)
    verdict = verify(
        workload, ("o",), inputs, encode(o, workload.dtype), lse.astype(np.float32), work_limit_flops=10**7
    )
    assert verdict.passed, verdict.detail
    assert verdict.rel_error == pytest.approx(verdict.limit / 2, rel=0.2)  # type: ignore[operator]
