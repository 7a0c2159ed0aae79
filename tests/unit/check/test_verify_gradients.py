"""What `verify_gradients` must pass, and the ways to be wrong that it must see: each as a change to right gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from attnprof.kernels.inputs import Distribution
from attnprof.kernels.ladder import fa2_bwd
from attnprof.kernels.trial import inputs_for
from attnprof.kernels.verify import Verification
from attnprof.kernels.verify_gradients import verify_gradients
from attnprof.model.dtypes import Dtype
from attnprof.model.reference import attention_backward, gradient_scores
from attnprof.model.rounding import decode, encode
from attnprof.model.workload import Pass, Workload

ROUNDS = ("p", "ds", "o")
Arrays = dict[str, np.ndarray]


def backward(seq_q: int, **options: object) -> Workload:
    return replace(Workload.of(seq_q, **options), direction=Pass.BWD)  # type: ignore[arg-type]


@cache
def computed(workload: Workload, distribution: Distribution = Distribution.NORMAL) -> tuple[Arrays, Arrays]:
    """Inputs, and the gradients that a right kernel writes: everything rounded where one rounds."""
    w = workload
    inputs = dict(inputs_for(fa2_bwd.SPECS[0], w, distribution=distribution))
    q, k, v, do, o = (decode(inputs[name], w.dtype).astype(np.float64) for name in ("q", "k", "v", "dout", "o"))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    group = w.heads // w.kv_heads
    for b, h in np.ndindex(w.batch, w.heads):
        g = h // group
        p, ds = gradient_scores(
            q[b, h],
            k[b, g],
            v[b, g],
            do[b, h],
            inputs["lse"][b, h],
            (do[b, h] * o[b, h]).sum(axis=1),
            np.arange(w.seq_q),
            np.arange(w.seq_kv),
            offset=w.seq_kv - w.seq_q,
            causal=w.causal,
            scale=w.scale,
            rounds=ROUNDS,
            dtype=w.dtype,
        )
        dq[b, h] = w.scale * ds @ k[b, g]
        dk[b, g] += w.scale * ds.T @ q[b, h]
        dv[b, g] += p.T @ do[b, h]
    return inputs, {name: encode(values, w.dtype) for name, values in (("dq", dq), ("dk", dk), ("dv", dv))}


def judge(workload: Workload, change: Callable[[Arrays], None], **options: int) -> Verification:
    """The verdict on right gradients after a change."""
    inputs, right = computed(workload)
    outputs = {name: values.copy() for name, values in right.items()}
    change(outputs)
    return verify_gradients(workload, ROUNDS, inputs, outputs, **options)


SHAPES = [
    backward(1, heads=4, head_dim=64),
    backward(65, batch=2, heads=4, kv_heads=2, head_dim=64, causal=True),
    backward(5, seq_kv=2, heads=4, head_dim=64, causal=True),
    backward(129, seq_kv=64, heads=2, head_dim=128, causal=True, dtype=Dtype.BF16),
    backward(64, seq_kv=200, heads=2, kv_heads=1, head_dim=128, dtype=Dtype.BF16),
]


@pytest.mark.parametrize("workload", SHAPES, ids=lambda workload: workload.label)
@pytest.mark.parametrize("distribution", list(Distribution))
def test_right_gradients_pass(workload: Workload, distribution: Distribution) -> None:
    inputs, outputs = computed(workload, distribution)
    verdict = verify_gradients(workload, ROUNDS, inputs, outputs)
    assert verdict.passed, verdict.detail
    assert verdict.rows_checked == verdict.rows_total
    assert verdict.rows_total == workload.rows + 2 * workload.batch * workload.kv_heads * workload.seq_kv


@pytest.mark.parametrize("workload", SHAPES[1:], ids=lambda workload: workload.label)
def test_the_true_gradients_pass(workload: Workload) -> None:
    inputs, _ = computed(workload)
    q, k, v, do = (decode(inputs[name], workload.dtype) for name in ("q", "k", "v", "dout"))
    exact = attention_backward(q, k, v, do, causal=workload.causal)
    outputs = {name: encode(values, workload.dtype) for name, values in zip(("dq", "dk", "dv"), exact, strict=True)}
    verdict = verify_gradients(workload, ROUNDS, inputs, outputs)
    assert verdict.passed, verdict.detail


WORKLOAD = backward(200, batch=2, heads=4, kv_heads=2, head_dim=64, causal=True)


def one_unwritten_element(outputs: Arrays) -> None:
    outputs["dk"].view(np.uint16)[1, 1, 199, 63] = 0xFFFF


def one_infinity(outputs: Arrays) -> None:
    outputs["dv"][0, 0, 100, 5] = -np.inf


def a_row_of_dq_of_another_row(outputs: Arrays) -> None:
    outputs["dq"][1, 2, 77] = outputs["dq"][1, 2, 78]


def a_key_of_dk_of_another_key(outputs: Arrays) -> None:
    outputs["dk"][1, 1, 77] = outputs["dk"][1, 1, 78]


def one_element_of_dv_zero(outputs: Arrays) -> None:
    outputs["dv"][0, 1, 3, 9] = 0


def dq_one_percent_large(outputs: Arrays) -> None:
    outputs["dq"] *= np.float16(1.01)


def dk_of_half_the_group(outputs: Arrays) -> None:
    outputs["dk"] *= np.float16(0.5)


def dv_zero(outputs: Arrays) -> None:
    outputs["dv"][:] = 0


def dq_and_dk_swapped(outputs: Arrays) -> None:
    outputs["dk"], outputs["dv"] = outputs["dv"], outputs["dk"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (one_unwritten_element, "dk[1, 1, 199, 63] is never written"),
        (one_infinity, "dv[0, 0, 100, 5] is -inf"),
        (a_row_of_dq_of_another_row, "row 77 of batch 1, head 2"),
        (a_key_of_dk_of_another_key, "key 77 of batch 1, KV head 1"),
        (one_element_of_dv_zero, "key 3 of batch 0, KV head 1"),
        (dq_one_percent_large, "dq: relative error"),
        (dk_of_half_the_group, "dk: relative error"),
        (dv_zero, "dv: relative error"),
        (dq_and_dk_swapped, "relative error"),
    ],
)
def test_a_wrong_gradient_fails_and_is_named(change: Callable[[Arrays], None], said: str) -> None:
    verdict = judge(WORKLOAD, change)
    assert not verdict.passed
    assert said in verdict.detail


def test_rows_that_see_no_key_must_have_no_gradient() -> None:
    def a_little(outputs: Arrays) -> None:
        outputs["dq"][0, 0, 1, 0] = 1e-4

    verdict = judge(SHAPES[2], a_little)
    assert not verdict.passed
    assert "empty" in verdict.detail


def test_a_shape_that_is_not_the_outputs_is_named() -> None:
    def shorter(outputs: Arrays) -> None:
        outputs["dv"] = outputs["dv"][:, :, :-1]

    assert "dv has shape" in judge(WORKLOAD, shorter).detail


FEW = 60_000_000  # some chunks of `WORKLOAD`, not all


def test_large_workloads_are_sampled() -> None:
    verdict = judge(WORKLOAD, lambda outputs: None, work_limit_flops=FEW)
    assert verdict.passed, verdict.detail
    assert 0 < verdict.rows_checked < verdict.rows_total
    assert f"{verdict.rows_checked} of {verdict.rows_total}" in verdict.detail


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_of_many_small_heads_the_last_is_among_the_samples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnprof.kernels.verify_gradients._MOST_GROUPS", 3)
    monkeypatch.setattr("attnprof.kernels.verify_gradients._MOST_CHUNKS", 3)
    workload = backward(2, seq_kv=3, batch=50, heads=1, head_dim=64)
    verdict = judge(workload, lambda outputs: None)
    assert verdict.passed, verdict.detail
    assert verdict.rows_checked == 3 * (2 + 3 + 3)

    def last(outputs: Arrays) -> None:
        outputs[name][-1, -1, -1] *= 2

    assert not judge(workload, last).passed


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_samples_reach_both_ends_of_every_gradient(name: str) -> None:
    def ends(outputs: Arrays) -> None:
        outputs[name][-1, -1, -1] *= 2

    verdict = judge(WORKLOAD, ends, work_limit_flops=FEW)
    assert not verdict.passed
    assert name in verdict.detail
