"""The checklist on a real device: every kernel passes it, and each broken one fails it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.check.cases import cases_for
from attnprof.check.numerics import check_determinism, check_numerics
from attnprof.check.rows import Check, CheckStatus
from attnprof.check.runner import CheckOptions, compilations
from attnprof.check.workers import Workers
from attnprof.check.workloads import NumericsCase
from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.host import available_cores
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.ladder import fa2, fa2_bwd
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Pass, Workload
from tests.mutants.mutants import MISSING_BARRIER, MUTANTS, Mutant, materialise

pytestmark = pytest.mark.gpu

FA2_LSE = replace(fa2.SPECS[0], name="fa2-lse", plan=fa2.plan_lse)
SPECS = (*builtin(), FA2_LSE)
ATTENTION = tuple(spec for spec in SPECS if spec.operation == "attention")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Half of the cores: pytest-xdist may run several of these modules at once."""
    with Workers(available_cores() // 2) as pool:
        yield pool


def passes(
    spec: KernelSpec, cases: tuple[NumericsCase, ...], executor: GpuExecutor, workers: Workers | None = None
) -> None:
    rows = list(check_numerics(spec, cases, executor, workers=workers))
    assert rows
    assert {row.status for row in rows} == {CheckStatus.PASS}, [row.detail for row in rows]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_kernel_is_right_on_every_awkward_workload(
    spec: KernelSpec, executor: GpuExecutor, workers: Workers
) -> None:
    jobs = compilations([spec], executor, CheckOptions(checks=frozenset({Check.NUMERICS})))
    with executor.ahead(build for build, _, _ in jobs):
        passes(spec, cases_for(spec, full=True), executor, workers)


@pytest.mark.parametrize("spec", ATTENTION, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seq", [4097, 65_536, 65_537])
def test_long_sequences_are_right_in_the_rows_that_are_sampled(
    spec: KernelSpec, seq: int, executor: GpuExecutor
) -> None:
    queries = seq if spec.unsupported(Workload.of(seq)) is None else 8  # of a kernel for decoding
    cases = tuple(
        NumericsCase(Workload.of(queries, seq_kv=seq, heads=heads, head_dim=head_dim, dtype=dtype, causal=causal))
        for heads, head_dim, dtype, causal in ((2, 64, Dtype.FP16, True), (1, 128, Dtype.BF16, False))
    )
    passes(spec, cases, executor)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.varies is None], ids=lambda spec: spec.name)
def test_fifty_runs_are_bitwise_equal(spec: KernelSpec, executor: GpuExecutor) -> None:
    row = check_determinism(spec, executor, runs=50)
    assert row.status is CheckStatus.PASS, row.detail


def test_a_backward_that_adds_dq_in_any_order_repeats_dk_and_dv(executor: GpuExecutor) -> None:
    workload = Workload.of(1000, batch=2, heads=8, kv_heads=4, causal=True, direction=Pass.BWD)
    with executor.prepare(fa2_bwd.plan(workload, executor.device)) as run:
        for name, values in inputs_for(fa2_bwd.SPECS[0], workload, executor=executor).items():
            run.write(name, values)
        runs = []
        for _ in range(20):
            run.poison()
            run.launch()
            runs.append({name: run.read(name).tobytes() for name in ("dk", "dv")})
    assert all(each == runs[0] for each in runs)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_mutant_fails(mutant: Mutant, executor: GpuExecutor, tmp_path: Path) -> None:
    broken = materialise(mutant, tmp_path)
    rows = list(check_numerics(broken, cases_for(broken, full=False), executor))
    assert {row.status for row in rows} == {CheckStatus.FAIL}, [row.detail for row in rows]


def test_a_kernel_with_a_missing_barrier_is_unstable(executor: GpuExecutor, tmp_path: Path) -> None:
    """Without the barrier of its inner loop fa2 reads tiles that others are still copying."""
    broken = materialise(MISSING_BARRIER, tmp_path)
    unstable = check_determinism(broken, executor, runs=50).status is CheckStatus.FAIL
    large = NumericsCase(Workload.of(2048, heads=32, head_dim=128), Distribution.NORMAL)
    (wrong,) = check_numerics(broken, (large,), executor)
    assert unstable or wrong.status is CheckStatus.FAIL
