"""Variants of the softmax kernels: as right as they are, and each with exactly the fault that it is named after."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from attnprof.check.cases import cases_for
from attnprof.check.numerics import check_numerics, check_overflow
from attnprof.check.rows import CheckStatus
from attnprof.check.softmax_workloads import overflow_case
from attnprof.compiler.compiler import Compiler
from attnprof.emulator.counter import EmulatorCounter
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.kernels.executor import Counted
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.ladder.softmax import SPECS
from attnprof.kernels.softmax_variants import VARIANTS
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for, judge
from attnprof.model.devices import find, standing_for
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UsageError
from attnprof.model.workload import Pass, Workload

H200, A100 = find("H200"), find("A100-SXM4-80GB")
# The emulator counts what a kernel asks for, whatever L2 might serve.
UNCACHED = replace(A100, l2_bytes=None)
ALL = [(base, variant) for base in SPECS for variant in base.variants()]
EACH = [pytest.param(base, variant, id=variant.name) for base, variant in ALL]
MACROS = {"ACCESS", "ALL_EDGE", "REDUCTION", "RESCALE", "NO_MAX"}


def matrix(rows: int, columns: int, dtype: Dtype = Dtype.FP16) -> Workload:
    return Workload.of(rows, seq_kv=columns, heads=1, dtype=dtype)


@cache
def counted(name: str, columns: int) -> Counted:
    spec = next(spec for spec in (*SPECS, *(variant for _, variant in ALL)) if spec.name == name)
    workload = matrix(4, columns)
    return EmulatorCounter(Compiler(), A100).count(spec.plan(workload, A100), inputs_for(spec, workload))


def test_names() -> None:
    assert {name: [spec.name for spec in specs] for name, specs in VARIANTS.items()} == {
        "softmax-safe": [f"softmax-safe[{name}]" for name in ("scalar", "narrow", "evict-last", "tree", "interleaved")],
        "softmax-online": [f"softmax-online[{name}]" for name in ("scalar", "evict-last", "tree", "per-element")],
        "softmax-fused": [f"softmax-fused[{name}]" for name in ("scalar", "streaming", "no-hint", "no-max")],
    }
    assert all(VARIANTS.get(base.name, ()) == base.variants() for base in SPECS)
    assert all(variant.variants() == () and variant.file == base.file for base, variant in ALL)


def test_an_unknown_variant_lists_those_there_are() -> None:
    with pytest.raises(UsageError) as error:
        SPECS[3].variant("narrow")
    assert error.value.hint == "it has scalar, streaming, no-hint, no-max"


@pytest.mark.parametrize("base", SPECS, ids=lambda spec: spec.name)
def test_the_kernel_itself_is_built_without_the_macros_of_its_variants(base: KernelSpec) -> None:
    for build in base.builds(H200):
        assert not MACROS & dict(build.defines).keys()


@pytest.mark.parametrize(("base", "variant"), EACH)
def test_builds_differ_in_one_thing_and_are_what_plans_launch(base: KernelSpec, variant: KernelSpec) -> None:
    ours = {frozenset(build.defines) for build in base.builds(H200)}
    for build in variant.builds(H200):
        defines = dict(build.defines)
        (macro,) = MACROS & defines.keys()
        del defines[macro]
        if variant.name == "softmax-fused[scalar]" and defines["PLACE"] == "PLACE_WARP":
            del defines["BLOCKS_PER_SM"]  # the default
        elif variant.name == "softmax-fused[scalar]":
            defines["BLOCKS_PER_SM"] = "2"
        assert frozenset(defines.items()) in ours
    launched = {
        launch.build
        for columns in (1, 64, 256, 512, 1024, 4096, 16_384, 20_000, 50_000, 100_000, 200_000, 400_000, 800_000)
        for dtype in Dtype
        if variant.unsupported(matrix(64, columns, dtype)) is None
        for launch in variant.plan(matrix(64, columns, dtype), H200).launches
    }
    assert launched == set(variant.builds(H200))


@pytest.mark.parametrize(("base", "variant"), EACH)
def test_emulated_it_computes_a_softmax(base: KernelSpec, variant: KernelSpec) -> None:
    """Without faults, at every place of a row that it takes, with each distribution that it is right on."""
    executor = EmulatorExecutor(Compiler(), A100, mode=Mode.CHECKS)
    cases = [case for case in cases_for(variant, full=False) if case.workload.seq_kv in (33, 1024, 1025, 5001)]
    rows = list(check_numerics(variant, cases, executor))
    assert [row.status for row in rows] == [CheckStatus.PASS] * 3, [row.detail for row in rows]
    seen = {case.distribution for case in cases}
    assert seen == {Distribution.NORMAL, Distribution.LARGE_LOGITS, Distribution.DOMINANT_KEY, Distribution.MASKED}


def test_emulated_without_the_maximum_it_overflows_as_documented() -> None:
    (no_max,) = (variant for _, variant in ALL if variant.largest_logit is not None)
    assert no_max.name == "softmax-fused[no-max]"
    row = check_overflow(no_max, overflow_case(), EmulatorExecutor(Compiler(), A100))
    assert row.status is CheckStatus.PASS, row.detail
    safe = replace(SPECS[3], largest_logit=no_max.largest_logit)
    row = check_overflow(safe, overflow_case(), EmulatorExecutor(Compiler(), A100))
    assert row.status is CheckStatus.FAIL


def test_emulated_a_whole_number_of_warps_that_is_no_power_of_two() -> None:
    workload = matrix(3, 6001)
    for variant in (SPECS[1].variant("tree"), SPECS[1].variant("interleaved"), SPECS[2].variant("tree")):
        plan, inputs = variant.plan(workload, A100), inputs_for(variant, workload)
        assert plan.launches[0].threads == 96
        with EmulatorExecutor(Compiler(), A100, mode=Mode.CHECKS).prepare(plan) as run:
            run.write("x", inputs["x"])
            run.poison()
            run.launch()
            verdict = judge(variant, workload, inputs, {"y": run.read("y")})
        assert verdict.passed, verdict.detail


@pytest.mark.parametrize("columns", [1024, 16_384])
@pytest.mark.parametrize("name", ["softmax-safe", "softmax-online", "softmax-fused"])
def test_emulated_element_by_element_touches_every_sector_again(name: str, columns: int) -> None:
    base, scalar = counted(name, columns), counted(f"{name}[scalar]", columns)
    assert scalar.global_bytes == base.global_bytes
    assert scalar.global_requests == 8 * base.global_requests
    assert scalar.global_sectors == 8 * base.global_sectors
    assert scalar.tensor_bytes == base.tensor_bytes


def test_emulated_an_element_a_lane_wastes_requests_and_no_sector() -> None:
    base, narrow = counted("softmax-safe", 16_384), counted("softmax-safe[narrow]", 16_384)
    assert narrow.global_sectors == base.global_sectors
    assert narrow.global_requests == 8 * base.global_requests


@pytest.mark.parametrize(("name", "reductions"), [("softmax-safe", 2), ("softmax-online", 1)])
def test_emulated_a_tree_takes_a_barrier_a_level(name: str, reductions: int) -> None:
    base, tree = counted(name, 16_384), counted(f"{name}[tree]", 16_384)
    assert base.barriers == 4 * reductions
    assert tree.barriers == 4 * reductions * (1 + 8)  # 256 threads
    assert tree.bank_conflicts == base.bank_conflicts == 0


def test_emulated_only_the_interleaved_tree_conflicts() -> None:
    tree, interleaved = counted("softmax-safe[tree]", 16_384), counted("softmax-safe[interleaved]", 16_384)
    assert interleaved.barriers == tree.barriers
    assert interleaved.bank_conflicts == 4 * 2 * 105
    assert tree.bank_conflicts == 0


@pytest.mark.parametrize(("base", "variant"), EACH)
def test_emulated_the_demand_is_what_is_evaluated(base: KernelSpec, variant: KernelSpec) -> None:
    demand = variant.demand(matrix(4, 16_384), UNCACHED)
    found = counted(variant.name, 16_384)
    assert demand.hbm_bytes == found.global_bytes
    assert demand.exponentials <= found.exponentials <= 1.06 * demand.exponentials
    more = 1.5 if variant.name == "softmax-online[per-element]" else 1.0
    intact = base.demand(matrix(4, 16_384), UNCACHED)
    assert demand.exponentials == more * intact.exponentials
    # Three operations more an element where each rescales the sum.
    fp32_flops, before = (sum(stage.fp32_flops for stage in each.stages) for each in (demand, intact))
    assert fp32_flops - before == (3 * 4 * 16_384 if more > 1.0 else 0)


def test_most_variants_of_the_fused_kernel_are_for_rows_in_registers() -> None:
    *in_registers, no_hint = (SPECS[3].variant(name) for name in ("scalar", "streaming", "no-max", "no-hint"))
    for columns in (40_000, 1_048_576):
        assert no_hint.unsupported(matrix(4, columns)) is None
    for variant in in_registers:
        for dtype, most in ((Dtype.FP16, 32_768), (Dtype.BF16, 32_768), (Dtype.FP32, 16_384)):
            assert variant.unsupported(matrix(4, most, dtype)) is None
            reason = variant.unsupported(matrix(4, most + 1, dtype))
            assert reason == f"{variant.name} takes rows of at most {most} {dtype} columns"
        assert not any(("PLACE", "PLACE_SHARED") in build.defines for build in variant.builds(H200))


@pytest.mark.parametrize(("base", "variant"), EACH)
def test_what_the_kernel_refuses_they_refuse_and_still_predict(base: KernelSpec, variant: KernelSpec) -> None:
    for workload in (matrix(4, 2**30 + 1), Workload.of(64, causal=True), Workload.of(64, direction=Pass.BWD)):
        assert base.unsupported(workload) is not None
        assert variant.unsupported(workload) is not None
        assert variant.demand(workload, H200).hbm_bytes == base.demand(workload, H200).hbm_bytes


@pytest.mark.parametrize(("base", "variant"), EACH)
def test_registers_do_not_explain_the_difference(base: KernelSpec, variant: KernelSpec) -> None:
    """None spills: what a variant costs is its trap."""
    compiler = Compiler()
    for arch, capability in (("sm_80", (8, 0)), ("sm_90a", (9, 0)), ("sm_120a", (12, 0))):
        device = standing_for(capability)
        assert device is not None
        for build in variant.builds(device):
            for entry in compiler.compile(build, arch).resources.values():
                assert entry.spill_store_bytes + entry.spill_load_bytes == 0, build.defines
