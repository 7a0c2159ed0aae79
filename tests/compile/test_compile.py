"""Every kernel of the catalogue, for every architecture it names and in every variant, by NVRTC without a driver."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

import pytest

from attnprof.compiler import nvrtc
from attnprof.compiler.compiler import Compiler
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.executor import Compiled
from attnprof.kernels.plan import Build, Launch
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import DeviceSpec, standing_for
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import EnvironmentProblem
from attnprof.model.workload import Workload

# Powers of two and what lies halfway, for kernels whose variant depends on the length.
# Rows of a matrix may be longer than any sequence here.
MATRICES = [(8, 2**19), (8, 2**20)]
LENGTHS = [(n, n) for n in sorted({1, 1000, *(2**k for k in range(1, 19)), *(3 * 2**k for k in range(18))})]
# Few queries over many keys, for kernels that split the keys.
CACHES = [(1, 40_000), (16, 40_000)]
HEADER_LABELS = (
    "Rung",
    "Idea",
    "Change from the previous rung",
    "Traffic",
    "Tiles / threads / shared memory",
    "Limits",
    "References",
)
KERNELS = [pytest.param(spec, id=spec.name) for spec in builtin()]
ON_ARCHES = [pytest.param(spec, arch, id=f"{spec.name}-{arch}") for spec in builtin() for arch in spec.arches]


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    # The user's own disk cache: its key holds everything a build depends on, so a second run costs next to nothing.
    return Compiler()


def gpu(arch: str) -> DeviceSpec:
    """A GPU of the table with that architecture."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    assert match is not None
    found = standing_for((int(match[1]), int(match[2])))
    assert found is not None
    return found


def compile_or_skip(compiler: Compiler, build: Build, arch: str) -> Compiled:
    try:
        return compiler.compile(build, arch)
    except EnvironmentProblem as problem:
        # An older NVRTC lacks the newest architectures; without NVRTC at all there is nothing to test.
        pytest.skip(problem.message)


@cache
def launches(spec: KernelSpec, arch: str) -> tuple[Launch, ...]:
    """Launches of every kind of workload that the kernel takes."""
    device = gpu(arch)
    choices = product(
        LENGTHS + CACHES + (MATRICES if spec.operation == "softmax" else []),
        (1, 8),
        (32, 40, 64, 80, 96, 120, 128, 160, 192, 248, 256, 512),
        (Dtype.FP16, Dtype.BF16, Dtype.FP32),
        (False, True),
    )
    workloads = (
        Workload.of(
            seq_q,
            seq_kv=seq_kv,
            heads=8,
            kv_heads=kv,
            head_dim=d,
            dtype=dtype,
            causal=causal,
            direction=spec.direction,
        )
        for (seq_q, seq_kv), kv, d, dtype, causal in choices
    )
    plans = (plan for plan in (spec.plan, spec.plan_lse) if plan is not None)
    supported = [workload for workload in workloads if spec.unsupported(workload) is None]
    return tuple(launch for plan in plans for workload in supported for launch in plan(workload, device).launches)


@pytest.mark.parametrize(("spec", "arch"), ON_ARCHES)
def test_builds_are_exactly_what_plans_launch(spec: KernelSpec, arch: str) -> None:
    builds = spec.builds(gpu(arch))
    assert len(set(builds)) == len(builds)
    assert {launch.build for launch in launches(spec, arch)} == set(builds)


@pytest.mark.parametrize(("spec", "arch"), ON_ARCHES)
def test_no_variant_spills(spec: KernelSpec, arch: str, compiler: Compiler) -> None:
    for build in spec.builds(gpu(arch)):
        compiled = compile_or_skip(compiler, build, arch)
        assert compiled.resources, build.defines
        for entry in compiled.resources.values():
            spilled = (entry.spill_store_bytes, entry.spill_load_bytes)
            where = f"{entry.entry}: {entry.registers} registers, {build.defines}, NVRTC {nvrtc.version()}"
            assert spilled == (0, 0), where


@pytest.mark.parametrize(("spec", "arch"), ON_ARCHES)
def test_every_launch_is_within_the_limits_of_a_block(spec: KernelSpec, arch: str, compiler: Compiler) -> None:
    limits = gpu(arch).architecture
    assert limits is not None
    # One launch of each kind: grids and arguments vary with the length, the rest does not.
    kinds = {(launch.build, launch.entry, launch.threads, launch.smem_bytes): launch for launch in launches(spec, arch)}
    for launch in kinds.values():
        resources = compile_or_skip(compiler, launch.build, arch).resources
        assert launch.entry in resources, f"{launch.entry} is not among {sorted(resources)}"
        entry = resources[launch.entry]
        assert entry.static_smem_bytes + launch.smem_bytes <= limits.smem_per_block_bytes, launch
        assert launch.threads <= limits.max_threads_per_block, launch
        assert launch.threads * entry.registers <= limits.registers_per_block, launch


@pytest.mark.parametrize(("spec", "arch"), ON_ARCHES)
def test_every_grid_is_within_its_limits(spec: KernelSpec, arch: str) -> None:
    for launch in launches(spec, arch):
        assert 0 < launch.grid[0] < 2**31, launch
        assert all(0 < extent <= 65_535 for extent in launch.grid[1:]), launch


@pytest.mark.parametrize("spec", KERNELS)
def test_header_comment_has_its_labels_in_order(spec: KernelSpec) -> None:
    text = spec.file.read_text(encoding="utf-8")
    header = "\n".join(line for line in text.split("\n\n")[0].splitlines() if line.startswith("//"))
    labels = [match[1] for match in re.finditer(r"^// ([A-Z][^:\n]*):", header, re.MULTILINE)]
    assert labels == list(HEADER_LABELS)


@pytest.mark.parametrize("spec", KERNELS)
def test_source_is_readable_in_one_sitting(spec: KernelSpec) -> None:
    lines = spec.file.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 125


@pytest.mark.parametrize("spec", KERNELS)
def test_inline_ptx_stands_in_common_only(spec: KernelSpec) -> None:
    assert re.search(r"\basm\b", spec.file.read_text(encoding="utf-8")) is None
