"""What can be checked with a compiler alone: that every variant compiles, spills nothing, fits, and fills an SM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol

from attnprof.check import softmax_workloads
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.kernels.executor import Compiled
from attnprof.kernels.plan import Build
from attnprof.kernels.spec import KernelSpec
from attnprof.model.architectures import Architecture
from attnprof.model.devices import DeviceSpec, standing_for
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import AttnprofError, EnvironmentProblem
from attnprof.model.occupancy import occupancy
from attnprof.model.workload import Workload


class Compiler(Protocol):
    """What compiles: `attnprof.compiler.Compiler`, or a test's fake."""

    def compile(self, build: Build, arch: str) -> Compiled:
        """Compile for an architecture.

        Raises:
            CompileError: the source was refused.
            EnvironmentProblem: the compiler or a header is missing.
        """
        ...


@dataclass
class _Use:
    """How an entry point of one build is launched: the most threads and dynamic shared memory over all workloads.

    ``claimed_blocks`` is what the kernel's own schedule says an SM holds at once, the least over all workloads.
    """

    threads: int = 0
    smem_bytes: int = 0
    claimed_blocks: int | None = None


@dataclass
class _Worst:
    """The worst value over variants, and where it was found."""

    value: int = 0
    where: str = ""
    seen: bool = field(default=False)

    def take(self, value: int, where: str) -> None:
        if not self.seen or value > self.value:
            self.value, self.where, self.seen = value, where, True


# The checks that `check_resources` yields rows of.
CHECKS = frozenset({Check.COMPILE, Check.SPILLS, Check.SHARED_MEMORY, Check.OCCUPANCY})


def builds(spec: KernelSpec) -> Iterator[tuple[Build, str]]:
    """Every variant and architecture that `check_resources` compiles, in that order."""
    for arch in spec.arches:
        device = _device(arch)
        if device is not None:
            yield from ((build, arch) for build in spec.builds(device))


def check_resources(
    spec: KernelSpec, compiler: Compiler, *, progress: Callable[[str], None] = lambda _: None
) -> Iterator[CheckRow]:
    """The rows ``compile``, ``spills``, ``shared-memory`` and ``occupancy`` for each architecture of a kernel."""
    for arch in spec.arches:
        yield from _arch_rows(spec, arch, compiler, progress)


def _arch_rows(
    spec: KernelSpec,
    arch: str,
    compiler: Compiler,
    progress: Callable[[str], None],
) -> Iterator[CheckRow]:
    def row(
        check: Check,
        status: CheckStatus,
        value: float | int | None,
        limit: float | int | None,
        unit: str | None,
        detail: str,
    ) -> CheckRow:
        return CheckRow(spec.name, check, status, value, limit, unit, arch, detail)

    device = _device(arch)
    if device is None:
        for check in sorted(CHECKS, key=list(Check).index):
            yield row(check, CheckStatus.SKIPPED, None, None, None, f"no GPU of the table is {arch}")
        return
    builds = spec.builds(device)
    compiled: list[Compiled] = []
    for number, build in enumerate(builds, 1):
        progress(f"{spec.name}: compiling for {arch}, {number} of {len(builds)}")
        try:
            compiled.append(compiler.compile(build, arch))
        except EnvironmentProblem as error:
            hint = f" ({error.hint})" if error.hint else ""
            yield row(Check.COMPILE, CheckStatus.SKIPPED, None, None, None, f"{error.message}{hint}")
            return
        except AttnprofError as error:
            detail = f"{_variant(build)}: {error.message}"
            yield row(Check.COMPILE, CheckStatus.FAIL, number - 1, len(builds), "variants", detail)
            return
    yield row(Check.COMPILE, CheckStatus.PASS, len(compiled), len(builds), "variants", f"{len(compiled)} variants")

    spills = _Worst()
    for each in compiled:
        for entry in each.resources.values():
            spilled = entry.spill_store_bytes + entry.spill_load_bytes
            spills.take(spilled, f"{entry.entry} with {_variant(each.build)}, {entry.registers} registers")
    verdict = CheckStatus.PASS if spills.value == 0 else CheckStatus.FAIL
    most = max((entry.registers for each in compiled for entry in each.resources.values()), default=0)
    detail = spills.where if spills.value else f"at most {most} registers a thread"
    yield row(Check.SPILLS, verdict, spills.value, 0, "bytes", detail)

    facts = device.architecture
    if facts is None:
        for check in (Check.SHARED_MEMORY, Check.OCCUPANCY):
            yield row(check, CheckStatus.SKIPPED, None, None, None, f"{arch} is not in the architecture table")
        return

    uses = _uses(spec, device)
    smem = _Worst()
    for each in compiled:
        for entry in each.resources.values():
            use = uses.get((each.build, entry.entry), _Use())
            smem.take(entry.static_smem_bytes + use.smem_bytes, f"{entry.entry} with {_variant(each.build)}")
    fits = smem.value <= facts.smem_per_block_bytes
    verdict = CheckStatus.PASS if fits else CheckStatus.FAIL
    yield row(Check.SHARED_MEMORY, verdict, smem.value, facts.smem_per_block_bytes, "bytes", smem.where)
    yield _occupancy_row(spec, arch, compiled, uses, facts)


def _occupancy_row(
    spec: KernelSpec,
    arch: str,
    compiled: list[Compiled],
    uses: Mapping[tuple[Build, str], _Use],
    facts: Architecture,
) -> CheckRow:
    """Blocks an SM holds at once, against what the kernel's schedule asks for; the entry with the least to spare."""
    tightest: tuple[int, int, int, str] | None = None
    for each in compiled:
        for entry in each.resources.values():
            use = uses.get((each.build, entry.entry))
            if use is None or not use.threads:
                continue
            found = occupancy(
                facts,
                threads=use.threads,
                registers=entry.registers,
                smem_bytes=entry.static_smem_bytes + use.smem_bytes,
            )
            # A schedule claims what its largest SM holds. A smaller SM may lack threads or shared memory for that;
            # registers are the compiler's to spare, and what __launch_bounds__ promises.
            claimed = use.claimed_blocks if use.claimed_blocks is not None else 1
            elsewhere = min(blocks for limit, blocks in found.blocks_by.items() if limit != "registers")
            needed = max(min(claimed, elsewhere), 1)
            where = (
                f"{entry.entry} with {_variant(each.build)}: {100 * found.occupancy:.0f} % of an SM's warps, "
                f"limited by {' and '.join(found.limited_by)}"
            )
            candidate = (found.blocks_per_sm - needed, found.blocks_per_sm, needed, where)
            if tightest is None or candidate < tightest:
                tightest = candidate
    if tightest is None:
        return CheckRow(
            spec.name, Check.OCCUPANCY, CheckStatus.SKIPPED, None, None, None, arch, "no workload launches a variant"
        )
    spare, blocks, needed, where = tightest
    status = CheckStatus.PASS if spare >= 0 else CheckStatus.FAIL
    return CheckRow(spec.name, Check.OCCUPANCY, status, blocks, needed, "blocks per SM", arch, where)


def _workloads(spec: KernelSpec) -> Iterator[Workload]:
    """Short and long ones with each type, head dim and mask: between them they launch every variant."""
    if spec.operation == "softmax":
        yield from softmax_workloads.resource_set()
        return
    # Queries, keys and KV heads; the last three are for kernels that pack the queries of a group into one tile.
    shapes = ((64, 64, 8), (1024, 1024, 8), (40_000, 40_000, 8), (1, 40_000, 8), (8, 40_000, 2), (16, 40_000, 2))
    head_dims = (32, 40, 64, 96, 120, 128, 192, 248, 256)
    choices = product(shapes, head_dims, (Dtype.FP16, Dtype.BF16), (False, True))
    for (seq_q, seq_kv, kv_heads), head_dim, dtype, causal in choices:
        yield Workload.of(
            seq_q,
            seq_kv=seq_kv,
            heads=8,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            causal=causal,
            direction=spec.direction,
        )


def _uses(spec: KernelSpec, device: DeviceSpec) -> dict[tuple[Build, str], _Use]:
    """How every variant is launched on a device."""
    uses: dict[tuple[Build, str], _Use] = {}
    for workload in _workloads(spec):
        if spec.unsupported(workload) is not None:
            continue
        claims = {
            stage.name: stage.schedule.blocks_per_sm
            for stage in spec.demand(workload, device).stages
            if stage.schedule is not None
        }
        for launch in spec.plan(workload, device).launches:
            use = uses.setdefault((launch.build, launch.entry), _Use())
            use.threads = max(use.threads, launch.threads)
            use.smem_bytes = max(use.smem_bytes, launch.smem_bytes)
            claim = claims.get(launch.stage)
            if claim is not None:
                use.claimed_blocks = claim if use.claimed_blocks is None else min(use.claimed_blocks, claim)
    return uses


def _device(arch: str) -> DeviceSpec | None:
    """A GPU of that architecture; None where the table has none."""
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return standing_for((int(match[1]), int(match[2]))) if match else None


def _variant(build: Build) -> str:
    return " ".join(f"{macro}={value}" for macro, value in build.defines) or "no macros"
