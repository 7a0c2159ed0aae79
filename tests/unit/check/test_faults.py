"""The check for faults with a finder that says what a test wants; on real kernels it is in test_mutants_emulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from attnprof.check.faults import fault_cases
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.runner import CheckOptions, compilations, run_checks
from attnprof.check.softmax_workloads import place_set
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.softmax_placement import fused_builds, fused_layout
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, CompileError, UnsupportedWorkload
from attnprof.model.workload import Workload
from tests.fakes import FakeExecutor, fake_spec

A100 = find("A100-SXM4-80GB")
FAULTS = frozenset({Check.FAULTS})
RACE = "fake: data-race: reads what thread (3, 0, 0) wrote, with no barrier in between at fake.cu:52 `sum += row[i];`"


@dataclass
class FakeFinder:
    """Finds what it is told, by element type; ``error`` is raised instead."""

    faults: Mapping[Dtype, tuple[str, ...]] = field(default_factory=dict)
    error: AttnprofError | None = None
    runs: list[tuple[LaunchPlan, set[str]]] = field(default_factory=list)

    def find(self, plan: LaunchPlan, inputs: Mapping[str, Any]) -> tuple[str, ...]:
        if self.error is not None:
            raise self.error
        self.runs.append((plan, set(inputs)))
        return self.faults.get(plan.tensors[0].dtype, ())


def rows_of(finder: FakeFinder | None, spec: KernelSpec | None = None, **changes: Any) -> list[CheckRow]:
    executor = FakeExecutor(**{"backend": "emulator", "device": A100, "arch": "sm_80"} | changes)
    options = CheckOptions(checks=FAULTS, finder=finder)
    rows = list(run_checks([spec or fake_spec()], executor, executor, options))
    json.dumps([row.as_row() for row in rows], allow_nan=False)
    return rows


def test_without_a_fault_each_type_passes() -> None:
    finder = FakeFinder()
    rows = rows_of(finder)
    assert [(row.status, row.value, row.limit, row.unit) for row in rows] == [
        (CheckStatus.PASS, 0, 0, "faults, bf16"),
        (CheckStatus.PASS, 0, 0, "faults, fp16"),
    ]
    assert all(names == {"q", "k", "v"} for _, names in finder.runs)
    assert [case.status for row in rows for case in row.cases] == [CheckStatus.PASS] * 4


def test_a_fault_fails_its_type_and_the_first_is_told() -> None:
    bf16, fp16 = rows_of(FakeFinder({Dtype.BF16: (RACE, "another", "a third")}))
    assert fp16.status is CheckStatus.PASS
    assert (bf16.status, bf16.value, bf16.limit) == (CheckStatus.FAIL, 3, 0)
    assert bf16.detail == f"2 of 2 bf16 workloads; b1 h2/1 q140/kv660 d128 bf16: {RACE} (and 2 more)"
    assert bf16.as_row()["cases"] == [
        {"workload": case.workload, "status": "fail", "value": 3, "limit": 0, "detail": f"{RACE} (and 2 more)"}
        for case in bf16.cases
    ]


def test_what_cannot_be_run_fails_with_the_reason() -> None:
    for row in rows_of(FakeFinder(error=CompileError("fake.cu(3): expected a ';'"))):
        assert (row.status, row.value, row.limit, row.unit) == (CheckStatus.FAIL, None, None, None)
        assert "fake.cu(3): expected a ';'" in row.detail


def test_what_the_kernel_does_not_take_is_skipped() -> None:
    (row,) = rows_of(FakeFinder(), fake_spec(unsupported=lambda _: "takes nothing"))
    assert (row.status, row.detail) == (CheckStatus.SKIPPED, "takes nothing")
    (row, _) = rows_of(FakeFinder(error=UnsupportedWorkload("not on this device")))
    assert (row.status, row.detail) == (CheckStatus.SKIPPED, "not on this device")
    (row,) = rows_of(FakeFinder(), fake_spec(arches=("sm_90a",)))
    assert (row.status, row.detail) == (CheckStatus.SKIPPED, "needs sm_90a, this GPU is sm_80")


def test_on_a_gpu_there_is_no_such_check_and_nothing_is_compiled_for_it() -> None:
    assert rows_of(None, backend="gpu", device=find("H200"), arch="sm_90a") == []
    options = CheckOptions(checks=FAULTS)
    assert list(compilations([fake_spec()], FakeExecutor(), options)) == []


def test_what_it_runs_is_compiled_ahead() -> None:
    executor = FakeExecutor(backend="emulator", arch="sm_80")
    jobs = set(compilations([fake_spec()], executor, CheckOptions(checks=FAULTS, finder=FakeFinder())))
    finder = FakeFinder()
    rows_of(finder)
    assert jobs == {(launch.build, "sm_80", "ptx") for plan, _ in finder.runs for launch in plan.launches}


@pytest.mark.parametrize("spec", builtin(), ids=lambda spec: spec.name)
def test_every_kernel_is_watched_in_each_type(spec: KernelSpec) -> None:
    cases = fault_cases(spec)
    workloads = [case.workload for case in cases]
    assert all(spec.unsupported(workload) is None and workload.direction is spec.direction for workload in workloads)
    types = set(Dtype) if spec.operation == "softmax" else {Dtype.FP16, Dtype.BF16}
    assert {workload.dtype for workload in workloads} == types
    if spec.operation == "attention":
        assert {(w.dtype, w.causal) for w in workloads} == {(w.dtype, c) for w in workloads for c in (False, True)}
        assert all(w.kv_heads < w.heads for w in workloads)
        assert all(w.seq_kv % 16 for w in workloads)
        assert len(workloads) <= 6


def test_a_kernel_with_its_own_ideas_gets_what_it_takes() -> None:
    def picky(workload: Workload) -> str | None:
        fits = workload.heads == workload.kv_heads and workload.seq_q % 64 == 0 and not workload.causal
        return None if fits and workload.head_dim == 64 else "picky"

    spec = replace(fake_spec(), unsupported=picky)
    assert [case.label for case in fault_cases(spec)] == ["b1 h2 s256 d64 fp16", "b1 h2 s256 d64 bf16"]


def test_each_place_of_a_row_is_watched_in_each_type() -> None:
    """Of an SM of compute capability 8.0, for which the emulator compiles; the last beyond what one holds."""
    layouts = [fused_layout(case.workload, A100) for case in place_set()]
    assert {layout.build for layout in layouts} == set(fused_builds(A100))
    beyond = [case.workload.dtype for case, layout in zip(place_set(), layouts, strict=True) if layout.resident_columns]
    assert beyond == list(Dtype)
