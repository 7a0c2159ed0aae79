"""The mutants cover every fault for every kernel, and each patch still finds its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnprof.kernels.catalogue import builtin
from attnprof.model.devices import find
from attnprof.model.workload import Pass, Workload
from tests.mutants.mutants import (
    MISSING_BARRIER,
    MISSING_EXCHANGE_BARRIER,
    MISSING_TREE_BARRIER,
    MUTANTS,
    OFFSET_MUTANTS,
    SPLIT_STORES,
    VARIANT_MUTANTS,
    Mutant,
    materialise,
)

# Of a kernel that splits the keys of a row over blocks.
# Of a kernel whose keys go in blocks, and those in parts, with the output passed on through memory.
STEP_FAULTS = {"earlier steps not weighted", "first values for all keys"}
SPLIT_FAULTS = {"split dropped", "parts not rescaled"}
SOFTMAX_FAULTS = {"edge dropped", "warps not combined", "no max subtraction"}
A100 = find("A100-SXM4-80GB")
BACKWARD_FAULTS = {
    "scale dropped",
    "last tile dropped",
    "mask top-left",
    "wrong KV head",
    "half of d unwritten",
    "D dropped",
    "one head of a group",
    "log-sum-exp ignored",
}
# Of a kernel whose tiles may be wider than a head.
WIDTH_FAULTS = {"written past d"}
FAULTS = {
    "scale dropped",
    "last tile dropped",
    "mask top-left",
    "wrong KV head",
    "half of d unwritten",
    "no max subtraction",
}


ALL = [
    *MUTANTS,
    *VARIANT_MUTANTS,
    *OFFSET_MUTANTS,
    MISSING_BARRIER,
    MISSING_EXCHANGE_BARRIER,
    MISSING_TREE_BARRIER,
    SPLIT_STORES,
]


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.id)
def test_the_patch_applies_and_the_plan_runs_the_patched_file(mutant: Mutant, tmp_path: Path) -> None:
    spec = materialise(mutant, tmp_path)
    broken = spec.file if mutant.header is None else tmp_path / "common" / mutant.header
    assert mutant.new in broken.read_text(encoding="utf-8")
    plan = spec.plan(Workload.of(64, heads=2, direction=spec.direction), A100)
    assert {launch.build.file for launch in plan.launches} == {spec.file}
    assert {build.file for build in spec.builds(A100)} == {spec.file}
    assert {launch.build for launch in plan.launches} <= set(spec.builds(A100))


def test_a_patch_whose_place_is_gone_or_ambiguous_is_an_error(tmp_path: Path) -> None:
    for old in ("no such text", "row"):
        with pytest.raises(ValueError, match="renew the patch"):
            materialise(replace(MUTANTS[0], old=old), tmp_path)


def test_every_kernel_has_every_fault_of_its_operation_and_pass() -> None:
    sources = {(spec.file, spec.operation): spec for spec in builtin() if spec.direction is Pass.BWD}
    # Variants of one backward source share its mutants.
    backward = [
        min((spec for spec in builtin() if spec.file == file), key=lambda spec: spec.name) for file, _ in sources
    ]
    for spec in [*(spec for spec in builtin() if spec.direction is Pass.FWD), *backward]:
        expected = SOFTMAX_FAULTS if spec.operation == "softmax" else FAULTS
        if spec.direction is Pass.BWD:
            expected = BACKWARD_FAULTS
        if spec.largest_logit is not None:
            expected = expected - {"no max subtraction"}  # that is the kernel as shipped
        if spec.name == "fa1":
            expected = expected | STEP_FAULTS
        if spec.name == "fa2":
            expected = expected | WIDTH_FAULTS
        if spec.name == "fa2-decode":
            expected = expected | SPLIT_FAULTS
        assert {mutant.fault for mutant in MUTANTS if mutant.kernel == spec.name} == expected, spec.name
