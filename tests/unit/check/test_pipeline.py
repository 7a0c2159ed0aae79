"""Inputs made and outputs judged elsewhere, while the device runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from attnprof.check import pipeline
from attnprof.check.numerics import _difference, check_numerics
from attnprof.check.pipeline import outcomes
from attnprof.check.softmax_workloads import matrix
from attnprof.check.workers import Workers
from attnprof.check.workloads import NumericsCase, small_set
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.plan import LaunchPlan, TensorSpec
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.verify import Verification
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import ContextLost, UnsupportedWorkload
from attnprof.model.rounding import decode, encode
from attnprof.model.softmax_reference import softmax
from attnprof.model.workload import Workload
from tests.fakes import FakeExecutor, attend, fake_spec

CASES = tuple(small_set())


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as pool:
        yield pool


def matrix_plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    shape = (workload.rows, workload.seq_kv)
    tensors = (TensorSpec("x", shape, workload.dtype, "in"), TensorSpec("y", shape, workload.dtype, "out"))
    return LaunchPlan(tensors, fake_spec().plan(Workload.of(1), device).launches)


SOFTMAX = fake_spec("m", operation="softmax", unsupported=lambda _: None, plan=matrix_plan)


def softmaxed(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    dtype = plan.tensor("x").dtype
    return {"y": encode(softmax(decode(memory["x"], dtype)), dtype)}


MATRICES = tuple(
    NumericsCase(matrix(7, columns, dtype), distribution, "softmax")
    for columns, dtype, distribution in (
        (100, Dtype.FP32, Distribution.NORMAL),
        (257, Dtype.FP16, Distribution.MASKED),
        (33, Dtype.BF16, Distribution.LARGE_LOGITS),
    )
)


@pytest.mark.parametrize(
    ("spec", "cases", "compute"),
    [(fake_spec(), CASES, attend), (SOFTMAX, MATRICES, softmaxed)],
    ids=["attention", "softmax"],
)
def test_verdicts_do_not_depend_on_who_judges(
    spec: KernelSpec, cases: tuple[NumericsCase, ...], compute: Any, workers: Workers
) -> None:
    alone = list(outcomes(spec, cases, FakeExecutor(compute=compute), workers=Workers(0)))
    beside = list(outcomes(spec, cases, FakeExecutor(compute=compute), workers=workers))
    assert [case for case, _ in alone] == list(cases)
    # Errors are equal only to themselves.
    plain = [[(case, getattr(outcome, "message", outcome)) for case, outcome in each] for each in (alone, beside)]
    assert plain[0] == plain[1]
    assert sum(isinstance(outcome, Verification) and outcome.passed for _, outcome in alone) >= 3


def test_only_the_callers_thread_touches_the_device(workers: Workers) -> None:
    threads = set()
    executor = FakeExecutor(
        compute=attend,
        on_prepare=lambda _: threads.add(threading.get_ident()),
        on_launch=lambda _: threads.add(threading.get_ident()),
    )
    assert all(row.status == "pass" for row in check_numerics(fake_spec(), CASES, executor, workers=workers))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("count", [0, 2])
def test_nothing_runs_after_a_lost_context(count: int, workers: Workers) -> None:
    launched = 0

    def crash(_: object) -> None:
        nonlocal launched
        launched += 1
        if launched == 3:
            raise ContextLost("illegal address")

    supported = [case for case in CASES if fake_spec().unsupported(case.workload) is None]
    found = list(
        outcomes(fake_spec(), supported, FakeExecutor(on_launch=crash), workers=workers if count else Workers(0))
    )
    assert launched == 3
    assert [type(outcome) for _, outcome in found] == [Verification, Verification, ContextLost]


def test_what_the_kernel_does_not_take_is_an_outcome_in_its_place() -> None:
    spec = fake_spec(unsupported=lambda workload: "odd" if workload.seq_q % 2 else None)
    kinds = [type(outcome) for _, outcome in outcomes(spec, CASES[:8], FakeExecutor(), workers=Workers(0))]
    assert kinds == [UnsupportedWorkload if case.workload.seq_q % 2 else Verification for case in CASES[:8]]


@dataclass
class Piece:
    nbytes: int


@pytest.mark.parametrize(("most", "nbytes", "ahead"), [(1, 1, 1), (4, 1, 4), (4, 40, 2), (4, 1000, 1)])
def test_so_many_wait_as_there_is_room_for(most: int, nbytes: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "WAITING_BYTES", 100)
    taken = 0

    def pieces() -> Iterator[Any]:
        nonlocal taken
        for _ in range(9):
            taken += 1
            yield Piece(nbytes)

    beyond = []
    for given, _ in enumerate(pipeline._kept_waiting(pieces(), most), 1):
        beyond.append(taken - given)
    assert len(beyond) == 9
    assert max(beyond) == ahead


@pytest.mark.parametrize("size", range(1, 18))
def test_one_differing_bit_is_found_in_outputs_of_any_size(size: int) -> None:
    first = {"o": np.full(size, 0xFF, np.uint8)}
    assert _difference(first, {"o": first["o"].copy()}) is None
    for place in range(size):
        other = first["o"].copy()
        other[place] ^= 1
        assert _difference(first, {"o": other}) == "1 bytes of o in the first that does"
