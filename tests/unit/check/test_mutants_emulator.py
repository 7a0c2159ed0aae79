"""The real kernels pass the numerics check on the emulator, and each broken one fails it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.check.cases import cases_for
from attnprof.check.faults import check_faults
from attnprof.check.numerics import check_numerics
from attnprof.check.rows import CheckStatus
from attnprof.check.workloads import NumericsCase, small_set
from attnprof.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.emulator.finder import EmulatorFaultFinder
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload
from tests.mutants.mutants import (
    MISSING_BARRIER,
    MISSING_EXCHANGE_BARRIER,
    MISSING_TREE_BARRIER,
    MUTANTS,
    VARIANT_MUTANTS,
    Mutant,
    materialise,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def executor() -> EmulatorExecutor:
    return EmulatorExecutor(Compiler(), find("A100-SXM4-80GB"))


@pytest.mark.parametrize("spec", builtin(), ids=lambda spec: spec.name)
def test_the_kernel_as_shipped_passes(spec, executor: EmulatorExecutor) -> None:
    rows = list(check_numerics(spec, cases_for(spec, full=False), executor))
    types = 3 if spec.operation == "softmax" else 2
    assert [row.status for row in rows] == [CheckStatus.PASS] * types, [row.detail for row in rows]


def intact(mutant: Mutant) -> KernelSpec:
    """What the mutant was before."""
    (spec,) = (spec for spec in builtin() if spec.name == mutant.kernel)
    return spec if mutant.variant is None else spec.variant(mutant.variant)


def telling_case(mutant: Mutant) -> NumericsCase:
    """One small workload that shows the fault: a mutant needs only one to fail, and compiling is what takes time."""
    if mutant.variant is not None:
        # 3 warps a row, the last of them partly idle; a row of one warp where registers hold it.
        columns = 1000 if mutant.kernel == "softmax-fused" else 6000
        return NumericsCase(Workload.of(7, seq_kv=columns, heads=1), operation="softmax")
    if mutant.kernel.startswith("softmax"):
        large = mutant.fault == "no max subtraction"
        # 5001 fp16 columns: more than a warp, and every row starts at another offset.
        workload = Workload.of(7, seq_kv=5001, heads=1)
        return NumericsCase(workload, Distribution.LARGE_LOGITS if large else Distribution.NORMAL, "softmax")
    shapes = {
        "scale dropped": NumericsCase(Workload.of(16, heads=2, head_dim=64)),
        "last tile dropped": NumericsCase(Workload.of(16, seq_kv=70, heads=2, head_dim=64)),
        "mask top-left": NumericsCase(Workload.of(5, seq_kv=2, heads=2, head_dim=64, causal=True)),
        "wrong KV head": NumericsCase(Workload.of(16, heads=4, kv_heads=2, head_dim=64)),
        "half of d unwritten": NumericsCase(Workload.of(16, heads=2, head_dim=64)),
        "written past d": NumericsCase(Workload.of(17, heads=2, head_dim=40)),
        "no max subtraction": NumericsCase(Workload.of(16, heads=2, head_dim=64), Distribution.LARGE_LOGITS),
        # More than the 640 keys that fa1 keeps at a time, and than the 80 that it works on.
        "earlier steps not weighted": NumericsCase(Workload.of(17, seq_kv=700, heads=2, head_dim=64)),
        "first values for all keys": NumericsCase(Workload.of(17, seq_kv=200, heads=2, head_dim=64)),
        "split dropped": NumericsCase(Workload.of(2, seq_kv=1000, heads=2, kv_heads=1, head_dim=64)),
        "parts not rescaled": NumericsCase(Workload.of(2, seq_kv=1000, heads=2, kv_heads=1, head_dim=64)),
        "D dropped": NumericsCase(Workload.of(17, heads=2, head_dim=64)),
        "one head of a group": NumericsCase(Workload.of(17, heads=4, kv_heads=2, head_dim=64)),
        "log-sum-exp ignored": NumericsCase(Workload.of(17, heads=2, head_dim=64)),
    }
    return shapes[mutant.fault]


@pytest.mark.parametrize("mutant", [*MUTANTS, *VARIANT_MUTANTS], ids=lambda mutant: mutant.id)
def test_the_mutant_fails(mutant: Mutant, executor: EmulatorExecutor, tmp_path: Path) -> None:
    case = telling_case(mutant)
    (good,) = check_numerics(intact(mutant), (case,), executor)
    assert good.status is CheckStatus.PASS, good.detail
    (bad,) = check_numerics(materialise(mutant, tmp_path), (case,), executor)
    assert bad.status is CheckStatus.FAIL
    # It ran, and its result is wrong: not a refused compilation or a crash.
    assert any(word in bad.detail for word in ("relative error", "row", "never written", "nan", "inf", "are off")), (
        bad.detail
    )


@pytest.mark.parametrize(
    "mutant", [MISSING_BARRIER, MISSING_EXCHANGE_BARRIER, MISSING_TREE_BARRIER], ids=lambda mutant: mutant.id
)
def test_a_missing_barrier_is_a_fault_that_the_emulator_names(mutant: Mutant, tmp_path: Path) -> None:
    watchful = EmulatorExecutor(Compiler(), find("A100-SXM4-80GB"), mode=Mode.CHECKS)
    # At 64 no warps of fa2-bwd share keys, and so none wait for one another.
    case = NumericsCase(Workload.of(130, heads=1, head_dim=128 if mutant is MISSING_EXCHANGE_BARRIER else 64))
    if mutant is MISSING_TREE_BARRIER:
        case = telling_case(mutant)
    (good,) = check_numerics(intact(mutant), (case,), watchful)
    assert good.status is CheckStatus.PASS, good.detail
    (bad,) = check_numerics(materialise(mutant, tmp_path), (case,), watchful)
    assert bad.status is CheckStatus.FAIL
    assert "data-race" in bad.detail


@pytest.mark.parametrize("spec", builtin(), ids=lambda spec: spec.name)
def test_the_kernel_as_shipped_has_no_faults(spec: KernelSpec, executor: EmulatorExecutor) -> None:
    rows = list(check_faults(spec, executor, EmulatorFaultFinder(Compiler(), executor.device)))
    types = 3 if spec.operation == "softmax" else 2
    assert [(row.status, row.value) for row in rows] == [(CheckStatus.PASS, 0)] * types, [row.detail for row in rows]


@pytest.mark.parametrize(
    ("mutant", "kernel", "line"),
    [
        pytest.param(MISSING_BARRIER, "fa2_forward", "ldmatrix_x4(q[m]", id="fa2"),
        pytest.param(MISSING_EXCHANGE_BARRIER, "fa2_backward_gradients", "accumulate_others(dv_rmem", id="fa2-bwd"),
        pytest.param(MISSING_TREE_BARRIER, "softmax_safe", "return block_max(", id="softmax-safe-tree"),
    ],
)
def test_a_missing_barrier_that_the_numerics_pass_fails_the_check_for_faults(
    mutant: Mutant, kernel: str, line: str, executor: EmulatorExecutor, tmp_path: Path
) -> None:
    broken = materialise(mutant, tmp_path)
    numerics = list(check_numerics(broken, cases_for(broken, full=False)[:4], executor))
    assert {row.status for row in numerics} == {CheckStatus.PASS}
    finder = EmulatorFaultFinder(Compiler(), executor.device)
    for row in check_faults(broken, executor, finder):
        assert row.status is CheckStatus.FAIL
        assert row.value not in (None, 0)
        assert f"{kernel}: data-race: " in row.detail
        shown = re.search(r" at (\S+\.cu):(\d+) `([^`]*)`", row.detail)
        assert shown is not None, row.detail
        assert line in shown[3]
        assert line in Path(shown[1]).read_text(encoding="utf-8").splitlines()[int(shown[2]) - 1]


def test_the_telling_cases_are_part_of_what_check_runs() -> None:
    """Each fault shows in the small set too: its shapes are at least as awkward as the telling ones."""
    small = [(case.workload, case.distribution) for case in small_set()]
    assert any(w.causal and (w.seq_q, w.seq_kv) == (5, 2) for w, _ in small)
    assert any(w.seq_kv % 64 for w, _ in small)
    assert any(1 < w.kv_heads < w.heads for w, _ in small)
    assert any(d is Distribution.LARGE_LOGITS for _, d in small)


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_the_log_sum_exp_of_fa2_is_right(dtype: Dtype, causal: bool, executor: EmulatorExecutor) -> None:
    from attnprof.kernels.ladder import fa2

    (spec,) = fa2.SPECS
    cases = tuple(
        NumericsCase(Workload.of(q, seq_kv=kv, heads=2, head_dim=64, dtype=dtype, causal=causal), distribution)
        for q, kv, distribution in (
            (5, 2, Distribution.NORMAL),
            (70, 70, Distribution.NORMAL),
            (70, 70, Distribution.LARGE_LOGITS),
        )
    )
    (row,) = check_numerics(replace(spec, plan=fa2.plan_lse), cases, executor)
    assert row.status is CheckStatus.PASS, row.detail
