from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from attnprof.check import resources
from attnprof.check.rows import Case, Check, CheckRow, CheckStatus
from attnprof.check.runner import CheckOptions, compilations, run_checks
from attnprof.check.workloads import full_set, small_set
from attnprof.kernels.attention import GRID_YZ_MAX
from attnprof.kernels.executor import Compiled
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.plan import Build, LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import CompileError, ContextLost, EnvironmentProblem, KernelFault
from attnprof.model.reference import attention
from attnprof.model.rounding import decode, encode
from attnprof.model.workload import Workload
from tests.fakes import FakeExecutor, attend, fake_compiled, fake_demand, fake_spec, is_causal, scale_of

A100 = find("A100-SXM4-80GB")
NUMERICS = frozenset({Check.NUMERICS})


@dataclass
class FakeCompiler:
    """Compiles anything to the same resources, or fails as told."""

    registers: int = 96
    spill_bytes: int = 0
    static_smem_bytes: int = 0
    error: Callable[[Build, str], Exception | None] = lambda _build, _arch: None
    compiled: list[tuple[Build, str]] = field(default_factory=list)

    def compile(self, build: Build, arch: str) -> Compiled:
        error = self.error(build, arch)
        if error is not None:
            raise error
        self.compiled.append((build, arch))
        return fake_compiled(
            build,
            arch,
            registers=self.registers,
            spill_bytes=self.spill_bytes,
            static_smem_bytes=self.static_smem_bytes,
        )


def rows_of(
    executor: FakeExecutor,
    compiler: FakeCompiler | None = None,
    specs: list[KernelSpec] | None = None,
    **options: Any,
) -> list[CheckRow]:
    rows = list(run_checks(specs or [fake_spec()], executor, compiler or FakeCompiler(), CheckOptions(**options)))
    json.dumps([row.as_row() for row in rows], allow_nan=False)
    return rows


def resource_rows(compiler: FakeCompiler, specs: list[KernelSpec] | None = None) -> list[CheckRow]:
    """Of the checks that a compiler alone can answer."""
    return rows_of(FakeExecutor(), compiler, specs, checks=resources.CHECKS)


def verdicts(rows: list[CheckRow], check: Check) -> dict[str | None, CheckStatus]:
    return {row.arch: row.status for row in rows if row.check is check}


# -- the layout


def turned(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Heads and sequence exchanged."""
    return {name: values.swapaxes(1, 2) if values.ndim == 4 else values for name, values in tensors.items()}


def with_bshd() -> KernelSpec:
    """A kernel that also takes tensors with the heads inside the sequence."""
    spec = fake_spec("both")

    def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        plain = spec.plan(workload, device)
        tensors = (
            replace(t, shape=(t.shape[0], t.shape[2], t.shape[1], t.shape[3])) if len(t.shape) == 4 else t
            for t in plain.tensors
        )
        return LaunchPlan(tuple(tensors), (replace(plain.launches[0], stage="inside"),))

    return replace(spec, bshd=lambda: replace(spec, layout="bshd", plan=plan))


def either(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return turned(attend(plan, turned(memory))) if plan.launches[0].stage == "inside" else attend(plan, memory)


def blind(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Takes the bytes of tensors with the heads inside for such with the heads outside."""
    if plan.launches[0].stage != "inside":
        return attend(plan, memory)
    outside = {name: turned({name: values})[name].shape for name, values in memory.items()}
    outputs = attend(plan, {name: values.reshape(outside[name]) for name, values in memory.items()})
    return {name: values.reshape(memory[name].shape) for name, values in outputs.items()}


def strided_cases(rows: list[CheckRow]) -> list[Case]:
    return [case for row in rows for case in row.cases if case.workload.endswith(" bshd")]


@pytest.mark.parametrize(("full", "count"), [(False, 1), (True, 24)])
def test_the_strided_layout_is_checked_too(full: bool, count: int) -> None:
    """Of d 64 and 128, which the fake takes."""
    rows = rows_of(FakeExecutor(compute=either), specs=[with_bshd()], checks=NUMERICS, full=full)
    assert [row.status for row in rows] == [CheckStatus.PASS, CheckStatus.PASS]
    assert len(strided_cases(rows)) == count
    assert not strided_cases(rows_of(FakeExecutor(), checks=NUMERICS, full=full))


def test_a_kernel_that_takes_one_layout_for_the_other_fails() -> None:
    rows = rows_of(FakeExecutor(compute=blind), specs=[with_bshd()], checks=NUMERICS, full=False)
    failed = [case for row in rows for case in row.cases if case.status is CheckStatus.FAIL]
    assert failed
    assert failed == strided_cases(rows)


# -- the whole list


def test_a_right_kernel_passes_every_check() -> None:
    rows = rows_of(FakeExecutor(compute=attend_once), full=False, determinism_runs=10)
    assert {row.status for row in rows if row.check is not Check.LARGE_TENSORS} == {CheckStatus.PASS}
    assert {row.check for row in rows} == set(Check) - {Check.OVERFLOW, Check.FAULTS, Check.TRAP}  # of others
    for check in (Check.COMPILE, Check.SPILLS, Check.SHARED_MEMORY, Check.OCCUPANCY):
        assert set(verdicts(rows, check)) == {"sm_80", "sm_90a"}


def test_only_the_chosen_checks_yield_rows() -> None:
    assert {row.check for row in rows_of(FakeExecutor(), checks=NUMERICS, full=False)} == NUMERICS


def test_checks_that_need_a_run_alone_compile_nothing_for_other_architectures() -> None:
    compiler = FakeCompiler()
    rows_of(FakeExecutor(), compiler, checks=NUMERICS, full=False)
    assert compiler.compiled == []
    rows_of(FakeExecutor(), compiler, checks=frozenset({Check.SPILLS}))
    assert {arch for _, arch in compiler.compiled} == {"sm_80", "sm_90a"}


@pytest.mark.parametrize("backend", ["gpu", "emulator"])
@pytest.mark.parametrize("checks", [resources.CHECKS | NUMERICS, NUMERICS, resources.CHECKS], ids=len)
def test_what_will_be_compiled_is_known_beforehand(backend: str, checks: frozenset[Check]) -> None:
    executor, compiler = FakeExecutor(backend=backend, arch="sm_80"), FakeCompiler()
    specs = [fake_spec("one"), fake_spec("other", arches=("sm_90a",))]
    options = CheckOptions(checks=checks, full=False)
    known = list(compilations(specs, executor, options))
    list(run_checks(specs, executor, compiler, options))
    cubins = list(dict.fromkeys((build, arch) for build, arch, target in known if target == "cubin"))
    assert cubins[: len(compiler.compiled)] == compiler.compiled
    ran = {(build, arch, "ptx" if backend == "emulator" else "cubin") for build, arch in executor._cache}
    assert set(known) == {(build, arch, "cubin") for build, arch in compiler.compiled} | ran


def test_nothing_is_planned_ahead_of_what_a_kernel_cannot_run() -> None:
    plan = fake_spec().plan

    def strict(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        assert workload.head_dim == 64
        return plan(workload, device)

    only_64 = fake_spec(plan=strict, unsupported=lambda w: None if w.head_dim == 64 else "head_dim must be 64")
    options = CheckOptions(checks=frozenset({Check.NUMERICS}), full=False)
    assert list(compilations([only_64], FakeExecutor(), options))


def test_a_kernel_for_another_architecture_is_skipped() -> None:
    executor = FakeExecutor(device=find("RTX 4090"), arch="sm_89")
    specs = [fake_spec("hopper", arches=("sm_90a",))]
    rows = rows_of(executor, specs=specs, checks=frozenset({Check.NUMERICS, Check.DETERMINISM}))
    assert [row.status for row in rows] == [CheckStatus.SKIPPED] * 2
    assert rows[0].detail == "needs sm_90a, this GPU is sm_89"


def test_a_kernel_that_says_it_varies_is_not_asked_to_repeat_itself() -> None:
    spec = replace(fake_spec(), varies="sums arrive in any order")
    (row,) = rows_of(FakeExecutor(), specs=[spec], checks=frozenset({Check.DETERMINISM}))
    assert (row.status, row.detail) == (CheckStatus.SKIPPED, "sums arrive in any order")


# -- resources


def test_a_refused_variant_fails_and_is_named() -> None:
    def refuse(build: Build, arch: str) -> Exception | None:
        bad = arch == "sm_80" and ("ELEMENT", "bf16") in build.defines
        return CompileError('error: identifier "foo" is undefined') if bad else None

    rows = resource_rows(FakeCompiler(error=refuse))
    assert verdicts(rows, Check.COMPILE) == {"sm_80": CheckStatus.FAIL, "sm_90a": CheckStatus.PASS}
    (row,) = (row for row in rows if row.status is CheckStatus.FAIL)
    assert "ELEMENT=bf16" in row.detail
    assert "foo" in row.detail
    assert set(verdicts(rows, Check.SPILLS)) == {"sm_90a"}


def test_a_missing_compiler_is_skipped_with_what_to_install() -> None:
    problem = EnvironmentProblem("NVRTC is not installed", "pip install attnprof[nvrtc]")
    rows = resource_rows(FakeCompiler(error=lambda build, arch: problem))
    compile_rows = [row for row in rows if row.check is Check.COMPILE]
    assert {row.status for row in compile_rows} == {CheckStatus.SKIPPED}
    assert compile_rows[0].detail == "NVRTC is not installed (pip install attnprof[nvrtc])"


def test_spilled_bytes_fail() -> None:
    rows = resource_rows(FakeCompiler(spill_bytes=8))
    assert set(verdicts(rows, Check.SPILLS).values()) == {CheckStatus.FAIL}
    row = next(row for row in rows if row.check is Check.SPILLS)
    assert (row.value, row.limit, row.unit) == (16, 0, "bytes")
    assert "attention with ELEMENT=fp16" in row.detail


def test_shared_memory_counts_static_and_dynamic_bytes_against_each_architecture() -> None:
    def rows_with(static: int) -> dict[str | None, CheckStatus]:
        return verdicts(resource_rows(FakeCompiler(static_smem_bytes=static)), Check.SHARED_MEMORY)

    sm_80 = 163 * 1024
    assert set(rows_with(sm_80 - 49152).values()) == {CheckStatus.PASS}
    assert rows_with(sm_80 - 49152 + 1) == {"sm_80": CheckStatus.FAIL, "sm_90a": CheckStatus.PASS}


def test_registers_that_keep_an_sm_below_what_the_schedule_asks_for_fail() -> None:
    # 128 threads: 128 registers a thread let four blocks in, 136 only three; the fake's schedule asks for four.
    spec = fake_spec(plan=with_smem(16384))
    assert set(verdicts(resource_rows(FakeCompiler(128), [spec]), Check.OCCUPANCY).values()) == {CheckStatus.PASS}
    rows = [row for row in resource_rows(FakeCompiler(136), [spec]) if row.check is Check.OCCUPANCY]
    assert {(row.status, row.value, row.limit) for row in rows} == {(CheckStatus.FAIL, 3, 4)}
    assert "limited by registers" in rows[0].detail


def test_a_smaller_sm_may_hold_fewer_blocks_for_want_of_shared_memory() -> None:
    spec = fake_spec(plan=with_smem(60_000), arches=("sm_80", "sm_89", "sm_90a"))
    rows = {row.arch: row for row in resource_rows(FakeCompiler(64), [spec]) if row.check is Check.OCCUPANCY}
    assert {arch: (row.status, row.value) for arch, row in rows.items()} == {
        "sm_80": (CheckStatus.PASS, 2),
        "sm_89": (CheckStatus.PASS, 1),
        "sm_90a": (CheckStatus.PASS, 3),
    }


def test_a_block_that_fits_no_sm_fails() -> None:
    rows = resource_rows(FakeCompiler(64), [fake_spec(plan=with_smem(200_000))])
    assert verdicts(rows, Check.OCCUPANCY) == {"sm_80": CheckStatus.FAIL, "sm_90a": CheckStatus.PASS}


def with_smem(smem_bytes: int) -> Callable[..., LaunchPlan]:
    plan = fake_spec().plan

    def plan_with(workload: Any, device: DeviceSpec) -> LaunchPlan:
        made = plan(workload, device)
        return replace(made, launches=tuple(replace(launch, smem_bytes=smem_bytes) for launch in made.launches))

    return plan_with


# -- numerics: every kind of broken kernel, computed in NumPy


def fused(
    plan: LaunchPlan,
    memory: Mapping[str, np.ndarray],
    *,
    scale: float = 1.0,
    keys_dropped: int = 0,
    top_left: bool = False,
    next_kv_head: bool = False,
    no_max: bool = False,
    half_written: bool = False,
) -> dict[str, np.ndarray]:
    """Attention with one thing wrong; rounded as a right fused kernel rounds."""
    dtype = plan.tensor("q").dtype
    q, k, v = (decode(memory[name], dtype).astype(np.float64) for name in ("q", "k", "v"))
    heads, (kv_heads, seq_q, seq_kv) = q.shape[1], (k.shape[1], q.shape[2], k.shape[2])
    kv_head = np.arange(heads) // (heads // kv_heads)
    if next_kv_head:
        kv_head = np.arange(heads) % kv_heads
    k, v = k[:, kv_head], v[:, kv_head]
    s = scale * scale_of(plan) * q @ k.swapaxes(-1, -2)
    if is_causal(plan):
        offset = 0 if top_left else seq_kv - seq_q
        s[..., np.arange(seq_kv)[None, :] > np.arange(seq_q)[:, None] + offset] = -np.inf
    if keys_dropped and seq_kv > keys_dropped:
        s[..., seq_kv // keys_dropped * keys_dropped - (seq_kv % keys_dropped == 0) * keys_dropped :] = -np.inf
    m = np.zeros(s.shape[:-1]) if no_max else s.max(axis=-1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        p = np.exp((s - np.where(np.isneginf(m), 0, m)[..., None]).astype(np.float32))
        total = p.sum(axis=-1)
        o = decode(encode(p, dtype), dtype) @ v / np.where(total == 0, np.nan if no_max else 1, total)[..., None]
        lse = m + np.log(total)
    stored = encode(o, dtype)
    if half_written:
        stored.view(np.uint16)[..., stored.shape[-1] // 2 :] = 0xFFFF
    return {"o": stored, "lse": lse.astype(np.float32)}


MUTATIONS: dict[str, dict[str, Any]] = {
    "scale dropped": {"scale": 8.0},
    "scale a little off": {"scale": 1.05},
    "last tile dropped": {"keys_dropped": 64},
    "top-left mask": {"top_left": True},
    "wrong KV head": {"next_kv_head": True},
    "no max subtraction": {"no_max": True},
    "half of d unwritten": {"half_written": True},
}


def test_the_unmutated_computation_passes() -> None:
    rows = rows_of(FakeExecutor(compute=fused), checks=NUMERICS, full=False)
    assert [row.status for row in rows] == [CheckStatus.PASS, CheckStatus.PASS], [row.detail for row in rows]


@pytest.mark.parametrize("mutation", list(MUTATIONS))
def test_every_mutation_fails_in_both_types(mutation: str) -> None:
    def compute(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return fused(plan, memory, **MUTATIONS[mutation])

    rows = rows_of(FakeExecutor(compute=compute), checks=NUMERICS, full=False)
    assert [row.status for row in rows] == [CheckStatus.FAIL, CheckStatus.FAIL]


def test_a_failing_row_counts_the_workloads_and_names_the_first() -> None:
    rows = rows_of(
        FakeExecutor(compute=lambda plan, memory: fused(plan, memory, top_left=True)), checks=NUMERICS, full=False
    )
    for row in rows:
        failed = [case for case in row.cases if case.status is CheckStatus.FAIL]
        assert 0 < len(failed) < len(row.cases)  # only causal workloads of unequal lengths
        assert all("causal" in case.workload and "/kv" in case.workload for case in failed)
        assert f"{len(failed)} of {len(row.cases)}" in row.detail
        assert failed[0].workload in row.detail


def test_an_output_that_is_never_written_fails() -> None:
    rows = rows_of(FakeExecutor(compute=lambda plan, memory: {}), checks=NUMERICS, full=False)
    assert {row.status for row in rows} == {CheckStatus.FAIL}
    assert "never written" in rows[0].detail


def test_a_fault_fails_its_workload_and_the_others_run() -> None:
    def fault(plan: LaunchPlan) -> None:
        if plan.tensor("q").shape[2] == 65:
            raise KernelFault("illegal address")

    rows = rows_of(FakeExecutor(on_launch=fault), checks=NUMERICS, full=False)
    cases = [case for row in rows for case in row.cases]
    assert {case.workload.split()[2] for case in cases if case.status is CheckStatus.FAIL} == {"s65"}
    assert len(cases) == sum(case.workload.head_dim in (64, 128) for case in small_set())  # what the fake takes


def test_a_lost_context_is_named_and_ends_what_needs_the_device() -> None:
    def lose(plan: LaunchPlan) -> None:
        raise ContextLost("illegal address: the context is lost")

    rows = rows_of(FakeExecutor(on_launch=lose), specs=[fake_spec("bad"), fake_spec("good")], full=False)
    device_rows = [row for row in rows if row.check in (Check.NUMERICS, Check.DETERMINISM)]
    assert [(row.kernel, row.status.value) for row in device_rows] == [
        ("bad", "fail"),
        ("bad", "skipped"),
        ("good", "skipped"),
        ("good", "skipped"),
    ]
    assert "context lost: bad crashed" in device_rows[-1].detail
    assert {row.status for row in rows if row.check is Check.COMPILE} == {CheckStatus.PASS}


def test_a_kernel_that_supports_no_workload_is_skipped_with_its_reason() -> None:
    spec = fake_spec(unsupported=lambda workload: "only on Sundays")
    rows = rows_of(FakeExecutor(), specs=[spec])
    for row in rows:
        if row.check in (Check.NUMERICS, Check.LARGE_TENSORS, Check.DETERMINISM):
            assert row.status is CheckStatus.SKIPPED
            assert row.detail.endswith("only on Sundays")


# -- determinism


def test_a_kernel_that_differs_now_and_then_is_unstable() -> None:
    runs = 0

    def compute(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal runs
        runs += 1
        outputs = attend_once(plan, memory)
        if runs % 10 == 0:
            outputs["o"].view(np.uint16)[0, 0, 0, 0] ^= 1
        return outputs

    rows = rows_of(FakeExecutor(compute=compute), checks=frozenset({Check.DETERMINISM}), determinism_runs=30)
    (row,) = rows
    assert (row.status, row.value, row.limit) == (CheckStatus.FAIL, 3, 0)
    assert row.detail.startswith("3 of 30 runs differ from the first")
    assert "1 bytes of o" in row.detail


def test_a_run_that_writes_nothing_differs() -> None:
    runs = 0

    def compute(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal runs
        runs += 1
        return {} if runs == 7 else attend_once(plan, memory)

    (row,) = rows_of(FakeExecutor(compute=compute), checks=frozenset({Check.DETERMINISM}), determinism_runs=10)
    assert (row.status, row.value) == (CheckStatus.FAIL, 1)


def test_runs_that_differ_in_the_sign_of_zero_differ() -> None:
    runs = 0

    def compute(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal runs
        runs += 1
        zeros = {name: np.zeros_like(memory[name]) for name in ("o", "lse")}
        return {name: -values if runs == 5 and name == "lse" else values for name, values in zeros.items()}

    (row,) = rows_of(FakeExecutor(compute=compute), checks=frozenset({Check.DETERMINISM}), determinism_runs=10)
    assert row.status is CheckStatus.FAIL


def test_the_emulator_has_nothing_to_say_about_determinism() -> None:
    rows = rows_of(FakeExecutor(backend="emulator"), checks=frozenset({Check.DETERMINISM}))
    assert [(row.status, row.detail) for row in rows] == [
        (CheckStatus.SKIPPED, "the emulator runs in one fixed order: nothing could differ")
    ]


_ONCE: dict[tuple[Any, ...], dict[str, np.ndarray]] = {}


def attend_once(plan: LaunchPlan, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`attend`, computed once a plan and input: many runs on the same give the same."""
    key = (plan.tensors, plan.launches, *(hash(memory[name].tobytes()) for name in ("q", "k", "v")))
    if key not in _ONCE:
        _ONCE[key] = attend(plan, memory)
    return {name: values.copy() for name, values in _ONCE[key].items()}


# -- the workloads


@pytest.mark.parametrize("cases", [full_set, small_set], ids=["full", "small"])
def test_the_sets_cover_what_kernels_get_wrong(cases: Callable[[], Any]) -> None:
    found = list(cases())
    assert found == list(cases())
    assert len({case.label for case in found}) == len(found)
    workloads = [case.workload for case in found]
    for dtype in (Dtype.FP16, Dtype.BF16):
        of_type = [w for w in workloads if w.dtype is dtype]
        assert {w.head_dim for w in of_type} > {64, 128}
        assert any(w.seq_q <= 16 and w.seq_kv >= 300 and w.kv_heads < w.heads for w in of_type)  # a cache to split
        assert {w.causal for w in of_type} == {False, True}
        assert any(w.kv_heads < w.heads and w.kv_heads > 1 for w in of_type)
        assert any(w.kv_heads == 1 < w.heads for w in of_type)
        assert any(w.causal and w.seq_q > w.seq_kv for w in of_type)
        assert any(w.causal and w.seq_q < w.seq_kv for w in of_type)
        assert any(w.batch > 1 for w in of_type)
        of_attention = set(Distribution) - {Distribution.MASKED}  # MASKED is of a softmax's matrix
        assert {case.distribution for case in found if case.workload.dtype is dtype} == of_attention
    assert any(w.causal and (w.seq_q, w.seq_kv) == (5, 2) for w in workloads)
    assert any(w.head_dim % 32 for w in workloads)
    assert any(w.softmax_scale is not None for w in workloads)


def test_a_fake_demand_is_what_the_fake_moves() -> None:
    workload = next(iter(small_set())).workload
    assert fake_demand(workload, A100).hbm_bytes == 2 * 2 * (workload.q_elements + workload.kv_elements)


def test_fused_without_a_mutation_is_attention() -> None:
    workload = next(case.workload for case in small_set() if case.workload.causal)
    plan = fake_spec().plan(workload, A100)
    rng = np.random.default_rng(0)
    memory = {name: encode(rng.standard_normal(plan.tensor(name).shape), workload.dtype) for name in ("q", "k", "v")}
    o = decode(fused(plan, memory)["o"], workload.dtype)
    exact, _ = attention(*(decode(memory[name], workload.dtype) for name in "qkv"), causal=True)
    assert np.abs(o - exact).max() < 2e-2


def test_the_full_set_has_more_heads_than_a_grid_dimension_holds() -> None:
    assert any(case.workload.batch * case.workload.heads > GRID_YZ_MAX for case in full_set())
