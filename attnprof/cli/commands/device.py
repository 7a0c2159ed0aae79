"""``attnprof device``: what a GPU is, by its datasheet and by its clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import gpus, options
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import output
from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.gpu.discovery import Gpu
    from attnprof.model.devices import DeviceSpec
    from attnprof.report.document import Report, Section


def device(
    context: typer.Context,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="GPUs of the built-in table instead of those of this machine."),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Every GPU in the built-in table, with sources.")] = False,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Show GPUs: datasheet values, clocks and knees.

    Without options: the GPUs of this machine, as NVML reports them, beside what their datasheets say.
    """
    out = output(context.obj, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    if list_all and gpu is not None:
        raise UsageError("--list and --gpu exclude each other", "attnprof device --list, or attnprof device --gpu H200")
    if list_all:
        out.show(_table())
    elif gpu is not None:
        specs = [target.device for target in gpus.targets(gpu)]
        sections = [_section(spec, gpus.labelled("GPU", f"{spec.name} (built-in table)")) for spec in specs]
        out.show(_report(specs, sections, reason=None))
    else:
        out.show(_local())
    return ExitCode.OK


def _table() -> Report:
    from attnprof.model import devices
    from attnprof.report import device as view
    from attnprof.report.document import Report, Section

    specs = devices.table()
    notes = tuple(
        f"{spec.name}: {' · '.join([*([spec.note] if spec.note else []), *spec.references])}" for spec in specs
    )
    return Report(
        "device", view.LIST_COLUMNS, (Section((), [view.list_row(spec) for spec in specs], notes),), rows_key="devices"
    )


def _local() -> Report:
    from attnprof.gpu import discovery
    from attnprof.report.document import Section

    found = discovery.discover()
    specs = [local.spec for local in found.gpus if local.spec is not None]
    sections = [_local_section(local, found.driver_version) for local in found.gpus]
    if not found.gpus:
        sections.append(
            Section(
                (gpus.labelled("GPU", f"none here: {found.reason}"),),
                (),
                ("attnprof device --list shows the built-in table; attnprof device --gpu H200 one of it.",),
            )
        )
    elif found.reason:
        sections.append(Section((), (), (found.reason,)))
    return _report(specs, sections, reason=found.reason)


def _local_section(local: Gpu, driver: str | None) -> Section:
    from attnprof.report.document import Section

    facts = [f"NVML index {local.nvml_index}"]
    facts += [f"PCI {local.pci_bus_id}"] if local.pci_bus_id else []
    facts += [str(local.uuid)] if local.uuid else []
    facts += [f"driver {driver}"] if driver else []
    name = gpus.labelled("GPU", f"{local.name} ({' · '.join(facts)})")
    unknown = tuple(f"unknown {field}: {reason}" for field, reason in local.unknown.items())
    return Section((name,), (), unknown) if local.spec is None else _section(local.spec, name, unknown)


def _section(spec: DeviceSpec, name: str, notes: tuple[str, ...] = ()) -> Section:
    from attnprof.report import device as view
    from attnprof.report import units
    from attnprof.report.document import Section

    clocks = [
        f"{label} {units.short(clock, 'Hz')}"
        for label, clock in (
            ("boost", spec.boost_clock_hz),
            ("maximum", spec.max_clock_hz),
            ("memory", spec.memory_clock_hz),
        )
        if clock is not None
    ]
    shared = (
        f"shared memory {units.short_binary_bytes(spec.smem_per_sm_bytes)} an SM, "
        f"{units.short_binary_bytes(spec.smem_per_block_bytes)} a block"
    )
    heading = [name, gpus.device_facts(spec), gpus.labelled("", shared)]
    if clocks:
        heading.append(gpus.labelled("Clocks", " · ".join(clocks)))
    more = [
        *notes,
        *view.unknown_notes(spec),
        *([spec.note] if spec.note else []),
        *(f"source: {source}" for source in spec.references),
    ]
    return Section(tuple(heading), view.detail_rows(spec), tuple(more))


def _report(specs: list[DeviceSpec], sections: list[Section], *, reason: str | None) -> Report:
    from attnprof.report import device as view
    from attnprof.report.document import Report

    fields: dict[str, Any] = {
        "device": specs[0].as_json() if specs else None,
        "devices": [spec.as_json() for spec in specs],
        "reason": reason,
    }
    return Report("device", view.DETAIL_COLUMNS, tuple(sections), fields=fields)


COMMAND = Command(device, order=50, example="attnprof device --gpu H200")
