"""Shapes, allowed pairs and FLOPs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UsageError
from attnprof.model.workload import Pass, Workload


@given(seq_q=st.integers(1, 40), seq_kv=st.integers(1, 40), causal=st.booleans())
def test_allowed_pairs_are_those_of_the_mask(seq_q: int, seq_kv: int, causal: bool) -> None:
    w = Workload.of(seq_q, seq_kv=seq_kv, heads=3, batch=2, causal=causal)
    counted = sum(1 for i in range(seq_q) for j in range(seq_kv) if not causal or j <= i + seq_kv - seq_q)
    assert w.pairs_per_head == counted
    assert w.pairs == 6 * counted


@pytest.mark.parametrize(
    ("seq", "head_dim", "heads", "batch", "causal", "flops"),
    [
        (1024, 64, 16, 64, False, 274_877_906_944),
        (1024, 64, 16, 64, True, 137_573_171_200),
        (32768, 128, 1, 1, False, 549_755_813_888),
        (32768, 128, 1, 1, True, 274_886_295_552),
    ],
)
def test_published_flop_counts(seq: int, head_dim: int, heads: int, batch: int, causal: bool, flops: int) -> None:
    w = Workload.of(seq, head_dim=head_dim, heads=heads, batch=batch, causal=causal)
    assert w.flops == flops
    assert Workload.of(
        seq, head_dim=head_dim, heads=heads, batch=batch, causal=causal, direction=Pass.BWD
    ).flops * 2 == (5 * flops)


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "pairs"), [(128, 4096, 516_160), (4096, 128, 8_256), (1, 4096, 4_096), (5, 2, 3)]
)
def test_bottom_right_pairs(seq_q: int, seq_kv: int, pairs: int) -> None:
    assert Workload.of(seq_q, seq_kv=seq_kv, causal=True).pairs_per_head == pairs


def test_huge_counts_stay_exact() -> None:
    w = Workload.of(2**30, heads=2**5, head_dim=2**7)
    assert w.flops == 2**74


def test_the_scale_is_the_usual_one_unless_given() -> None:
    assert Workload.of(10, head_dim=64).scale == 0.125
    own = Workload.of(10, head_dim=64, softmax_scale=0.5)
    assert own.scale == 0.5
    assert own.label.endswith(" scale 0.5")
    assert own != Workload.of(10, head_dim=64)


@pytest.mark.parametrize("value", [0.0, -0.125, float("nan"), float("inf"), 1e-40, 1e40])
def test_a_scale_is_positive_and_within_fp32(value: float) -> None:
    with pytest.raises(UsageError, match="between 1e-30 and 1e"):
        Workload.of(10, softmax_scale=value)


def test_keys_count_once_a_kv_head() -> None:
    w = Workload.of(10, seq_kv=20, heads=8, kv_heads=2, head_dim=4, batch=3)
    assert w.q_elements == 3 * 8 * 10 * 4
    assert w.kv_elements == 3 * 2 * 20 * 4


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_sizes_are_positive_integers(value: object) -> None:
    with pytest.raises(UsageError, match="positive integer"):
        Workload(value, 1, 1, 1, 1, 1)  # type: ignore[arg-type]


def test_kv_heads_must_divide_heads() -> None:
    with pytest.raises(UsageError) as caught:
        Workload.of(16, heads=12, kv_heads=5)
    assert caught.value.hint == "choose one of 1, 2, 3, 4, 6, 12"


def test_label_names_what_differs_from_the_plain_case() -> None:
    assert Workload.of(4096, causal=True).label == "b1 h32 s4096 d128 fp16 causal"
    w = Workload.of(1, seq_kv=9, kv_heads=8, dtype=Dtype.BF16, direction=Pass.BWD)
    assert w.label == "b1 h32/8 q1/kv9 d128 bf16 bwd"
