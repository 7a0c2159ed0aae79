"""What kernels of the catalogue really take, as compiled: for ``attnprof tile --kernel``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnprof.cli import backends, gpus
from attnprof.cli.exits import ExitCode
from attnprof.cli.progress import Progress
from attnprof.model.errors import (
    AttnprofError,
    CompileError,
    DescriptionError,
    EnvironmentProblem,
    UnknownArchitecture,
)

if TYPE_CHECKING:
    from attnprof.cli.environment import Environment
    from attnprof.compiler import Compiler
    from attnprof.kernels.spec import KernelSpec
    from attnprof.model.devices import DeviceSpec
    from attnprof.model.dtypes import Dtype
    from attnprof.model.workload import Workload
    from attnprof.report.document import Report


def compiled_report(
    environment: Environment,
    specs: Sequence[KernelSpec],
    targets: Sequence[gpus.Target],
    *,
    seq: int,
    head_dim: int,
    dtype: Dtype,
    causal: bool,
) -> tuple[Report, ExitCode]:
    """A row a launch of each kernel on each GPU.

    Raises:
        EnvironmentProblem: the compiler or a header is missing.
    """
    from attnprof.compiler import Compiler, nvrtc
    from attnprof.model.workload import Workload
    from attnprof.report import tile as view
    from attnprof.report.document import Report, Section

    version = ".".join(map(str, nvrtc.version()))
    compiler = Compiler()
    sections: list[Section] = []
    with backends.warnings_on(environment), Progress(environment) as progress:
        for target in targets:
            rows: list[dict[str, Any]] = []
            for spec in specs:
                progress.step(f"compiling {spec.name} for {target.device.name}")
                workload = Workload.of(
                    seq, heads=32, head_dim=head_dim, dtype=dtype, causal=causal, direction=spec.direction
                )
                rows += _rows(spec, workload, target.device, compiler)
            mask = "causal" if causal else "no mask"
            heading = (
                *gpus.device_lines(target),
                gpus.labelled(
                    "Compiled", f"by NVRTC {version} · head dim {head_dim} · {dtype} · {mask} · length {seq}"
                ),
            )
            sections.append(Section(heading, rows, view.notes(rows)))
    fields = {
        "device": targets[0].device.as_json(),
        "devices": [target.device.as_json() for target in targets],
        "nvrtc_version": version,
    }
    failed = any(row["status"] == "error" for section in sections for row in section.rows)
    code = ExitCode.FAILED if failed else ExitCode.OK
    return Report("tile", view.KERNEL_COLUMNS, tuple(sections), fields=fields), code


def _rows(spec: KernelSpec, workload: Workload, device: DeviceSpec, compiler: Compiler) -> Iterator[dict[str, Any]]:
    reason = spec.unsupported(workload) or spec.runs_on(device.compute_capability)
    if reason is not None:
        yield _row(spec, workload, device, "skipped", reason)
        return
    try:
        yield from _launch_rows(spec, workload, device, compiler)
    except UnknownArchitecture as error:
        yield _row(spec, workload, device, "skipped", error.message)
    except (DescriptionError, EnvironmentProblem):
        # Nor would another row: the description is wrong, or nothing compiles.
        raise
    except CompileError as error:
        yield _row(spec, workload, device, "error", error.message)
    except AttnprofError as error:
        yield _row(spec, workload, device, "skipped", error.message)


def _launch_rows(
    spec: KernelSpec, workload: Workload, device: DeviceSpec, compiler: Compiler
) -> Iterator[dict[str, Any]]:
    from attnprof.compiler.arch import exact_arch
    from attnprof.model.occupancy import occupancy
    from attnprof.report import tile as view

    arch = exact_arch(device.compute_capability)
    facts = device.architecture
    launches = {(launch.build, launch.entry): launch for launch in spec.plan(workload, device).launches}
    for launch in launches.values():
        entries = compiler.compile(launch.build, arch).resources
        if launch.entry not in entries:
            raise CompileError(
                f"{launch.build.file.name} has no entry point {launch.entry}; it has {', '.join(entries)}"
            )
        found = entries[launch.entry]
        smem = found.static_smem_bytes + launch.smem_bytes
        resident = None
        if facts is not None:
            resident = occupancy(
                facts,
                threads=launch.threads,
                registers=found.registers,
                smem_bytes=smem,
                smem_per_sm_bytes=device.smem_per_sm_bytes,
            )
        yield {
            **_row(spec, workload, device, "ok", None),
            "stage": launch.stage,
            "entry": launch.entry,
            "arch": arch,
            "defines": dict(launch.build.defines),
            "threads": launch.threads,
            "smem_bytes": smem,
            "static_smem_bytes": found.static_smem_bytes,
            "registers": found.registers,
            "registers_source": "compiled",
            "spill_bytes": found.spill_store_bytes,
            **view.occupancy_fields(resident),
        }


def _row(spec: KernelSpec, workload: Workload, device: DeviceSpec, status: str, reason: str | None) -> dict[str, Any]:
    from attnprof.model.roofline import workload_fields

    return {
        "gpu": device.name,
        "kernel": spec.name,
        "status": status,
        "reason": reason,
        **workload_fields(workload),
    }
