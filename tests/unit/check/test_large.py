"""Tensors past 2^31 elements: which, and what is said of those that do not fit. Small ones stand in for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from attnprof.check import large
from attnprof.check.large import check_large_tensors, large_cases
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.runner import CheckOptions, run_checks
from attnprof.kernels import inputs
from attnprof.kernels.attention import GRID_YZ_MAX
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.plan import LaunchPlan
from attnprof.model.devices import find
from attnprof.model.errors import ContextLost, KernelFault
from attnprof.model.workload import Workload
from tests.fakes import FakeExecutor, attend, fake_spec

BIG = 2**31


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_ATTENTION", (Workload.of(16, seq_kv=300), Workload.of(16, seq_kv=3, batch=9)))


def rows_of(executor: FakeExecutor, **changes: object) -> list[CheckRow]:
    return list(check_large_tensors(fake_spec(**changes), executor))


def test_each_tensor_is_past_the_limit_in_one_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for spec in builtin():
        plans = [spec.plan(case.workload, find("H200")) for case in large_cases(spec)]
        largest = {tensor.name: 0 for plan in plans for tensor in plan.tensors if tensor.role != "scratch"}
        for plan in plans:
            for tensor in plan.tensors:
                if tensor.name in largest:
                    largest[tensor.name] = max(largest[tensor.name], int(np.prod(tensor.shape, dtype=np.int64)))
        small_ones = {name for name, elements in largest.items() if elements <= BIG}
        assert small_ones <= {"lse"}, spec.name  # as many as there are rows
    assert max(w.batch for w in large._ATTENTION) > GRID_YZ_MAX


def test_every_kernel_takes_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for spec in builtin():
        assert {spec.unsupported(case.workload) for case in large_cases(spec)} == {None}, spec.name


def test_a_right_kernel_passes_in_a_row_a_workload() -> None:
    rows = rows_of(FakeExecutor())
    assert [row.status for row in rows] == [CheckStatus.PASS] * 2
    assert {row.check for row in rows} == {Check.LARGE_TENSORS}
    assert rows[0].detail.startswith("b1 h32 q16/kv300 d128 fp16: ")
    assert all(row.value is not None and row.limit is not None and row.value <= row.limit for row in rows)


def test_a_kernel_whose_last_rows_are_wrong_fails() -> None:
    def compute(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = attend(plan, memory)
        outputs["o"][-1, -1] = outputs["o"][0, 0]
        return outputs

    assert {row.status for row in rows_of(FakeExecutor(compute=compute))} == {CheckStatus.FAIL}


def test_what_the_device_or_the_host_cannot_hold_is_skipped_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _) = rows_of(FakeExecutor(memory_bytes=1000))
    assert first.status is CheckStatus.SKIPPED
    assert first.detail.endswith("0.00 GiB free")
    monkeypatch.setattr(large, "available_bytes", lambda: 2**20)
    (first, _) = rows_of(FakeExecutor())
    assert first.status is CheckStatus.SKIPPED
    assert "needs 1.0" in first.detail
    assert first.detail.endswith("0.00 GiB free on the host")
    monkeypatch.setattr(large, "available_bytes", lambda: None)
    assert [row.status for row in rows_of(FakeExecutor())] == [CheckStatus.PASS] * 2


def test_an_allocation_that_the_host_refuses_is_skipped() -> None:
    def refuse(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise MemoryError

    assert {row.status for row in rows_of(FakeExecutor(compute=refuse))} == {CheckStatus.SKIPPED}


def test_a_kernel_of_the_other_layout_needs_room_for_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _) = rows_of(FakeExecutor())
    monkeypatch.setattr(large, "_MARGIN_BYTES", 0)
    monkeypatch.setattr(large, "available_bytes", lambda: 6 * 2**20)  # Q, K, V and O take 5.2 MB
    assert rows_of(FakeExecutor())[0].status is first.status is CheckStatus.PASS
    assert rows_of(FakeExecutor(), layout="bshd")[0].status is CheckStatus.SKIPPED


def test_a_crash_fails_and_the_next_workload_still_runs() -> None:
    def fault(plan: LaunchPlan) -> None:
        if plan.tensor("q").shape[0] == 1:
            raise KernelFault("illegal instruction")

    rows = rows_of(FakeExecutor(on_launch=fault))
    assert [row.status for row in rows] == [CheckStatus.FAIL, CheckStatus.PASS]
    assert rows[0].detail.endswith("illegal instruction")


def test_a_lost_context_ends_it() -> None:
    def lose(plan: LaunchPlan) -> None:
        raise ContextLost("illegal address: the context is lost")

    (row,) = rows_of(FakeExecutor(on_launch=lose))
    assert row.context_lost
    assert row.status is CheckStatus.FAIL


def test_the_tensors_are_not_kept() -> None:
    rows_of(FakeExecutor())
    assert inputs._inputs.cache_info().currsize == 0


@pytest.mark.parametrize(("backend", "verdict"), [("gpu", CheckStatus.PASS), ("emulator", CheckStatus.SKIPPED)])
def test_they_are_for_a_gpu(backend: str, verdict: CheckStatus) -> None:
    options = CheckOptions(checks=frozenset({Check.LARGE_TENSORS}))
    rows = list(run_checks([fake_spec()], FakeExecutor(backend=backend), FakeExecutor(), options))
    assert {row.status for row in rows} == {verdict}


def test_a_kernel_without_such_workloads_says_why() -> None:
    rows = rows_of(FakeExecutor(), unsupported=lambda workload: "only on Sundays")
    assert {(row.status, row.detail.split(": ")[1]) for row in rows} == {(CheckStatus.SKIPPED, "only on Sundays")}
