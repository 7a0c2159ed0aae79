"""Kernels that are not our own: a mistake in a description is one line, a bug of ours stays a bug."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnprof.bench.runner import BenchOptions, bench
from attnprof.check.rows import Check
from attnprof.check.runner import CheckOptions, run_checks
from attnprof.kernels import catalogue, described
from attnprof.kernels.candidates import Candidate, no_candidates
from attnprof.kernels.guard import Origin, guarded
from attnprof.kernels.plan import LaunchPlan, Pointer, Scalar
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import DescriptionError, UnsupportedWorkload
from attnprof.model.workload import Workload
from tests.fakes import FakeExecutor, fake_demand, fake_plan, fake_spec

DEVICE = find("H200")
WORKLOAD = Workload.of(64, heads=2, head_dim=64)
FILE = Path("/nowhere/fake.cu")
ORIGIN = Origin("mine.py", Path(__file__).resolve())  # this file stands for a user's


def own(**changes: Any) -> KernelSpec:
    return guarded(fake_spec("mine", **changes), ORIGIN)


def planned(change: Callable[[LaunchPlan], Any]) -> KernelSpec:
    return own(plan=lambda workload, device: change(fake_plan(FILE, workload)))


def launched(**changes: Any) -> KernelSpec:
    return planned(lambda plan: replace(plan, launches=(replace(plan.launches[0], **changes),)))


def demanded(change: Callable[[Demand], Any]) -> KernelSpec:
    return own(demand=lambda workload, device: change(fake_demand(workload, device)))


def first_tensor(**changes: Any) -> KernelSpec:
    return planned(lambda plan: replace(plan, tensors=(replace(plan.tensors[0], **changes), *plan.tensors[1:])))


def staged(**changes: Any) -> KernelSpec:
    return demanded(lambda demand: replace(demand, stages=(replace(demand.stages[0], **changes),)))


PLANS = {
    "nothing": (planned(lambda _: None), "returned None, not a LaunchPlan", "return?"),
    "a number": (planned(lambda _: 3), "returned 3, a int, not a LaunchPlan", None),
    "a pointer": (launched(args=(Pointer("Q"),)), "argument 0 of attention points to 'Q'", "they are q, k, v, o"),
    "an argument": (launched(args=("q",)), "argument 0 of attention is 'q'", 'Pointer("q")'),
    "a kind": (launched(args=(Scalar("i16", 1),)), "the kind of argument 0 of attention is 'i16'", "i32, i64, f32"),  # type: ignore[arg-type]
    "a fraction": (launched(args=(Scalar("i32", 1.5),)), "argument 0 of attention is 1.5, not a whole number", None),
    "too wide": (launched(args=(Scalar("i32", 2**31),)), "is 2147483648, which 32 bits do not hold", None),
    "a grid": (launched(grid=(32 / 4, 1, 1)), "grid of attention is (8.0, 1, 1)", "ceil_div(a, b)"),
    "no blocks": (launched(grid=(0, 1, 1)), "grid of attention is (0, 1, 1)", "from 1 on"),
    "a flat block": (launched(block=128), "block of attention is 128", "it is three"),
    "shared memory": (launched(smem_bytes=-1), "smem_bytes of attention is -1", "from 0 on"),
    "a build": (launched(build="mine.cu"), "has 'mine.cu' where a Build is needed", None),
    "no launch": (planned(lambda plan: replace(plan, launches=())), "launches nothing", None),
    "tensors": (planned(lambda plan: replace(plan, tensors=None)), "tensors is None, not a tuple", None),
    "a tensor": (planned(lambda plan: replace(plan, tensors=("q",))), "tensors has 'q', not a TensorSpec", None),
    "twice": (first_tensor(name="k"), "two tensors are called k", None),
    "no input": (first_tensor(name="Q"), "has no input tensor 'q'", "it has Q (in), k (in), v (in), o (out)"),
    "a role": (first_tensor(role="input"), "the role of tensor q is 'input'", "in, out, scratch"),
    "a type": (first_tensor(dtype="half"), "the type of tensor q is 'half'", "Dtype.FP32"),
    "an extent": (first_tensor(shape=(1, 2, 64.0, 64)), "the shape of tensor q is (1, 2, 64.0, 64)", "whole numbers"),
    "a shape": (first_tensor(shape=(2, 64, 64)), "tensor q is fp16 (2, 64, 64)", "must be fp16 (1, 2, 64, 64)"),
    "another type": (first_tensor(dtype=Dtype.BF16), "tensor q is bf16", "must be fp16"),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_no_plan_can_be(case: str) -> None:
    spec, says, hints = PLANS[case]
    with pytest.raises(DescriptionError) as caught:
        spec.plan(WORKLOAD, DEVICE)
    assert caught.value.message.startswith("mine: plan on b1 h2 s64 d64 fp16, in mine.py, line ")
    assert says in caught.value.message
    assert (hints or "docs/how-to/your-own-kernel.md") in (caught.value.hint or "")


OTHERS = {
    "no demand": (lambda: demanded(lambda _: None).demand(WORKLOAD, DEVICE), "returned None, not a Demand"),
    "half a byte": (
        lambda: demanded(lambda demand: replace(demand, footprint_bytes=0.5)).demand(WORKLOAD, DEVICE),
        "footprint_bytes is 0.5",
    ),
    "FLOPs": (lambda: staged(tensor_flops=-1).demand(WORKLOAD, DEVICE), "tensor_flops of stage attention is -1"),
    "a line": (lambda: staged(ledger=("q",)).demand(WORKLOAD, DEVICE), "ledger of stage attention has 'q'"),
    "a schedule": (lambda: staged(schedule=4).demand(WORKLOAD, DEVICE), "the schedule of stage attention is 4"),
    "a refusal": (lambda: own(unsupported=lambda _: True).unsupported(WORKLOAD), "returned True, a bool, not a str"),
    "builds": (lambda: own(builds=lambda _: None).builds(DEVICE), "mine: builds, in mine.py, line"),
    "no builds": (lambda: own(builds=lambda _: (FILE,)).builds(DEVICE), "where a Build is needed"),
    "variants": (lambda: own(variants=lambda: ("plain",)).variants(), "returned 'plain', a str, not a KernelSpec"),
    "candidates": (
        lambda: own(candidates=lambda *_: ("64x64",)).candidates(WORKLOAD, DEVICE), "'64x64', a str, not Candidates"
    ),
    "a candidate's plan": (
        lambda: own(candidates=one_candidate).candidates(WORKLOAD, DEVICE)[0].plan(), "mine: plan of 64x64, in mine.py"
    ),
    "another layout": (lambda: own(bshd=lambda: None).laid_out("bshd"), "mine: bshd, in mine.py, line"),
    "the log-sum-exp": (
        lambda: called(own(plan_lse=lambda *_: None).plan_lse), "mine: plan_lse on b1 h2 s64 d64 fp16, in mine.py"
    ),
}  # fmt: skip


def one_candidate(workload: Workload, device: Any) -> tuple[Candidate, ...]:
    return (Candidate("64x64", "d64", plan=lambda: None, demand=lambda: fake_demand(workload, device)),)  # type: ignore[arg-type, return-value]


def called(callback: Callable[..., Any] | None) -> None:
    assert callback is not None
    callback(WORKLOAD, DEVICE)


@pytest.mark.parametrize("case", OTHERS)
def test_what_the_other_callbacks_cannot_return(case: str) -> None:
    call, says = OTHERS[case]
    with pytest.raises(DescriptionError) as caught:
        call()
    assert says in caught.value.message


def misspelt(workload: Workload, device: Any) -> Any:
    return worklod  # type: ignore[name-defined]  # noqa: F821


LINE = misspelt.__code__.co_firstlineno + 1


@pytest.mark.parametrize("name", ["plan", "demand", "candidates"])
def test_an_exception_names_kernel_callback_workload_file_and_line(name: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        getattr(own(**{name: misspelt}), name)(WORKLOAD, DEVICE)
    assert caught.value.message == (
        f"mine: {name} on b1 h2 s64 d64 fp16 failed in mine.py, line {LINE}: NameError: name 'worklod' is not defined"
    )


def test_the_line_is_that_of_the_description_and_not_of_what_it_calls() -> None:
    with pytest.raises(DescriptionError, match=r"failed in mine\.py, line \d+: numpy.linalg.LinAlgError: "):
        own(plan=lambda *_: np.linalg.inv(np.zeros((2, 2)))).plan(WORKLOAD, DEVICE)


def test_other_arguments_than_it_is_called_with() -> None:
    with pytest.raises(DescriptionError, match=r"failed in mine\.py, line \d+: TypeError: .* takes 0 positional"):
        own(plan=lambda: None).plan(WORKLOAD, DEVICE)
    with pytest.raises(DescriptionError, match=r"failed in mine\.py: TypeError: 'int' object is not callable"):
        own(plan=3).plan(WORKLOAD, DEVICE)


def test_the_code_of_a_package_goes_by_its_own_file() -> None:
    with pytest.raises(DescriptionError, match=rf"failed in {__file__}, line {LINE}: NameError"):
        guarded(fake_spec("theirs", plan=misspelt), Origin("entry point theirs")).plan(WORKLOAD, DEVICE)


def test_leaving_the_interpreter_is_a_mistake_too() -> None:
    def leave(*_: object) -> None:
        raise SystemExit(0)

    with pytest.raises(DescriptionError, match=r"line \d+: SystemExit: 0"):
        own(demand=leave).demand(WORKLOAD, DEVICE)


@pytest.mark.parametrize("error", [UnsupportedWorkload("not on Sundays"), KeyboardInterrupt()])
def test_what_is_raised_in_our_own_words_passes(error: BaseException) -> None:
    def refuse(*_: object) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        own(plan=refuse).plan(WORKLOAD, DEVICE)
    assert caught.value is error


def test_a_bug_of_ours_stays_a_bug() -> None:
    """A callback that is ours, in a description that is not, and that no code of the description called."""
    broken = partial(described._listed, None)
    with pytest.raises(TypeError, match="not iterable"):
        own(variants=broken).variants()


def test_built_in_kernels_are_called_as_they_are() -> None:
    assert catalogue.select(["fa2"])[0] is catalogue.builtin()[[s.name for s in catalogue.builtin()].index("fa2")]


def test_no_choice_of_tiles_stays_none() -> None:
    assert own().candidates is no_candidates


@pytest.mark.parametrize("spec", catalogue.builtin(), ids=lambda spec: spec.name)
@pytest.mark.parametrize("gpu", ["A100-SXM4-80GB", "H200"])
def test_nothing_that_a_built_in_kernel_returns_is_taken_for_a_mistake(spec: KernelSpec, gpu: str) -> None:
    device = find(gpu)
    ours = guarded(spec, ORIGIN)
    assert ours.builds(device) == spec.builds(device)
    for each in (ours, *ours.variants(), *([ours.laid_out("bshd")] if spec.bshd else [])):
        for seq_q, seq_kv, head_dim, causal in ((1, 4096, 64, False), (200, 200, 128, True), (4096, 4096, 64, False)):
            workload = Workload.of(
                *(seq_q,),
                seq_kv=seq_kv,
                heads=8,
                kv_heads=2,
                head_dim=head_dim,
                causal=causal,
                direction=spec.direction,
            )
            each.demand(workload, device)
            if each.unsupported(workload) is None:
                each.plan(workload, device)
                for candidate in each.candidates(workload, device)[:2]:
                    candidate.plan()
                    candidate.demand()


def test_a_mistake_ends_a_check_and_a_benchmark() -> None:
    spec = own(plan=misspelt)
    for check in (Check.OCCUPANCY, Check.NUMERICS, Check.DETERMINISM):
        executor = FakeExecutor()
        options = CheckOptions(checks=frozenset({check}), full=False, determinism_runs=2)
        with pytest.raises(DescriptionError):
            list(run_checks([spec], executor, executor, options))
    for broken in (spec, own(demand=misspelt)):
        with pytest.raises(DescriptionError):
            list(bench([broken], [WORKLOAD], FakeExecutor(), BenchOptions()))
