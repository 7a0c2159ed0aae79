"""The rules by which tests/gpu compares the emulator's outputs with a GPU's: what they let pass, and what not."""

from __future__ import annotations

import numpy as np
import pytest

from attnprof.check.workloads import NumericsCase
from attnprof.compiler import Compiler
from attnprof.emulator import EmulatorExecutor
from attnprof.kernels.catalogue import select
from attnprof.kernels.ladder import softmax
from attnprof.kernels.trial import inputs_for
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.reference import attention, attention_backward
from attnprof.model.rounding import decode, encode
from attnprof.model.workload import Pass, Workload
from tests.gpu.emulator_outputs import (
    SPECS,
    Agreement,
    Array,
    Floats,
    agreement,
    cases,
    compare,
    emulated,
    magnitudes,
    markdown,
    shared_plan,
)

(FA2,) = select(["fa2"])
(BWD,) = select(["fa2-bwd"])
CASE = NumericsCase(Workload.of(65, seq_kv=40, batch=1, heads=2, kv_heads=1, head_dim=64, causal=True))


@pytest.fixture(scope="module")
def exact() -> tuple[Floats, Floats]:
    """O of a case in float64, and the magnitudes that are added up for it."""
    inputs = inputs_for(FA2, CASE.workload)
    q, k, v = (decode(inputs[name], Dtype.FP16) for name in ("q", "k", "v"))
    o, _ = attention(q, k, v, causal=True)
    return o, magnitudes(FA2, CASE.workload, inputs)["o"]


def judged(o: Floats, changed: Array, size: Floats | None, case: NumericsCase = CASE) -> Agreement:
    return agreement(FA2, case, "o", changed, encode(o, case.workload.dtype), size)


def next_up(values: Array) -> Array:
    """The neighbour of greater magnitude."""
    return (values.view(np.uint16) + np.uint16(1)).view(values.dtype)


def test_equal_outputs_agree_with_nothing_differing(exact: tuple[Floats, Floats]) -> None:
    o, size = exact
    row = judged(o, encode(o, Dtype.FP16), size)
    assert (row.differing, row.norm, row.of_norm_limit, row.of_element_limit) == (0, 0.0, 0.0, 0.0)
    assert row.agrees


def test_values_that_round_to_the_other_side_agree(exact: tuple[Floats, Floats]) -> None:
    o, size = exact
    changed = encode(o, Dtype.FP16).copy()
    changed[:, :, 25:, ::7] = next_up(changed[:, :, 25:, ::7])  # the first 25 rows see no key
    row = judged(o, changed, size)
    assert row.differing == changed[:, :, 25:, ::7].size
    assert 0.0 < row.of_norm_limit < 1.0
    assert row.agrees


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
def test_an_output_off_by_more_than_twice_the_rounding_everywhere_fails(
    dtype: Dtype, exact: tuple[Floats, Floats]
) -> None:
    o, size = exact
    case = NumericsCase(Workload.of(65, seq_kv=40, heads=2, kv_heads=1, head_dim=64, dtype=dtype, causal=True))
    unit = {Dtype.FP16: 2.0**-11, Dtype.BF16: 2.0**-8}[dtype]
    assert judged(o, encode(o * (1 + unit), dtype), size, case).agrees
    row = judged(o, encode(o * (1 + 3 * unit), dtype), size, case)
    assert row.of_norm_limit > 1.0
    assert not row.agrees


def test_one_wrong_element_is_not_lost_in_the_norm(exact: tuple[Floats, Floats]) -> None:
    o, size = exact
    changed = encode(o, Dtype.FP16).copy()
    changed[0, 1, 40, 3] += np.float16(0.004)
    row = judged(o, changed, size)
    assert row.of_norm_limit < 1.0
    assert row.of_element_limit > 1.0
    assert not row.agrees


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_only_one_of_them_makes_infinite_or_nan_fails(value: float, exact: tuple[Floats, Floats]) -> None:
    o, size = exact
    changed = encode(o, Dtype.FP16).copy()
    changed[0, 0, 64, 0] = value
    assert not judged(o, changed, size).agrees
    assert not agreement(FA2, CASE, "o", encode(o, Dtype.FP16), changed, size).agrees


def test_a_row_that_the_mask_leaves_empty_allows_nothing(exact: tuple[Floats, Floats]) -> None:
    o, size = exact
    assert not o[0, 0, 0].any()
    changed = encode(o, Dtype.FP16).copy()
    changed[0, 0, 0, 0] = np.float16(2.0**-24)
    row = judged(o, changed, size)
    assert row.of_element_limit == np.inf
    assert not row.agrees


def test_infinities_and_nan_that_both_have_agree() -> None:
    values = np.array([np.nan, -np.inf, 1.0], np.float16)
    row = judged(values.astype(np.float64), values, None)
    assert row.agrees
    assert row.differing == 0


def test_subnormals_may_be_a_step_apart() -> None:
    one, other = np.array([5, 6], np.uint16).view(np.float16), np.array([6, 6], np.uint16).view(np.float16)
    assert agreement(FA2, CASE, "o", one, other, None).agrees
    two_apart = np.array([4, 4], np.uint16).view(np.float16)
    assert not agreement(FA2, CASE, "o", two_apart, other, None).agrees


def test_the_magnitudes_bound_the_gradients() -> None:
    """No gradient exceeds the sum of the magnitudes behind it, and where nothing cancels they are the same."""
    workload = Workload.of(33, seq_kv=50, heads=4, kv_heads=2, head_dim=64, causal=True, direction=Pass.BWD)
    inputs = inputs_for(BWD, workload)
    q, k, v, do = (decode(inputs[name], Dtype.FP16) for name in ("q", "k", "v", "dout"))
    sizes = magnitudes(BWD, workload, inputs)
    for name, exact in zip(("dq", "dk", "dv"), attention_backward(q, k, v, do, causal=True), strict=True):
        assert np.all(np.abs(exact) <= sizes[name] * (1 + 1e-12)), name
    positive = {**inputs, "dout": np.abs(inputs["dout"])}
    dv = attention_backward(q, k, v, np.abs(do), causal=True)[2]
    np.testing.assert_allclose(magnitudes(BWD, workload, positive)["dv"], dv, rtol=1e-12)


def test_rows_that_need_a_cluster_get_a_plan_that_the_emulator_runs() -> None:
    (fused,) = [spec for spec in softmax.SPECS if spec.name == "softmax-fused"]
    blackwell = find("RTX 5090")  # clusters, and less shared memory than the longest rows of the set would need
    (long,) = {case.workload for case in cases(fused) if case.workload.seq_kv == 160_001}
    assert "CLUSTER" in dict(fused.plan(long, blackwell).launches[0].build.defines)
    assert "CLUSTER" not in dict(shared_plan(fused, long, blackwell).launches[0].build.defines)
    short = Workload.of(7, seq_kv=100, heads=1)
    assert shared_plan(fused, short, blackwell) == fused.plan(short, blackwell)


def test_every_kernel_has_cases_of_every_type_it_takes() -> None:
    for spec in SPECS:
        dtypes = {case.workload.dtype for case in cases(spec)}
        assert dtypes >= {Dtype.FP16, Dtype.BF16}, spec.name


def test_a_log_sum_exp_is_held_to_fp32_whatever_the_type() -> None:
    lse = np.array([[[-np.inf, 0.1, 700.0]]], np.float32)
    row = agreement(FA2, CASE, "lse", lse, lse, None)
    assert (row.dtype, row.differing, row.agrees) == (Dtype.FP32, 0, True)
    assert agreement(FA2, CASE, "lse", lse + np.float32([0, 1e-6, 1e-3]), lse, None).agrees
    assert not agreement(FA2, CASE, "lse", lse + np.float32([0, 1e-5, 0]), lse, None).agrees
    assert not agreement(FA2, CASE, "lse", np.nan_to_num(lse, neginf=-100.0), lse, None).agrees


def test_the_table_has_a_line_for_each_output_and_type() -> None:
    (naive,) = select(["softmax-naive"])
    device = find("A100-SXM4-80GB")
    rows = compare(naive, EmulatorExecutor(Compiler(), device), emulated(naive, device, None))
    assert len(rows) == len(list(cases(naive)))
    assert {row.differing for row in rows} == {0}
    lines = markdown(rows).splitlines()
    assert [line.split(" | ")[:3] for line in lines[2:]] == [
        ["| `softmax-naive`", "y", "fp16"],
        ["| `softmax-naive`", "y", "fp32"],
        ["| `softmax-naive`", "y", "bf16"],
    ]
