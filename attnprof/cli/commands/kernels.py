"""``attnprof kernels``: the catalogue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnprof.cli import clone, options
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import output

if TYPE_CHECKING:
    from attnprof.kernels.spec import KernelSpec


def kernels(
    context: typer.Context,
    kernel: options.Kernels = None,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """List the kernels.

    What each one changes against the rung below it, where its source is, and what it runs on.
    """
    from attnprof.report.document import Column, Report, Section

    out = output(context.obj, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    specs = options.kernels(kernel)
    clone.note_edits(context.obj, specs)
    columns = (
        Column("name", "Kernel", "what --kernel takes", align="left"),
        Column("pass", "Pass", "the pass it computes: fwd or bwd", align="left"),
        Column("requires", "Requires", "the oldest architecture it runs on; with an a, the only one", align="left"),
        Column("title", "What it is", "one line", align="left"),
        Column("file", "Source", "its CUDA source", align="left"),
        Column("idea", "Idea", "what it changes against the rung below it, and why", align="left", show="never"),
        Column(
            "variants",
            "Variants",
            "what --variant takes",
            align="left",
            show="never",
            csv_value=lambda variants: [each["name"] for each in variants],
        ),
    )
    notes = tuple(f"{each.name}: {each.idea}" for spec in specs for each in (spec, *spec.variants()))
    out.show(Report("kernels", columns, (Section((), [_row(spec) for spec in specs], notes),), rows_key="kernels"))
    return ExitCode.OK


def _row(spec: KernelSpec) -> dict[str, Any]:
    from attnprof.kernels.spec import variant_name

    return {
        "name": spec.name,
        "title": spec.title,
        "file": _short(spec.file),
        "pass": spec.direction.value,
        "requires": spec.requires,
        "arches": list(spec.arches),
        "idea": spec.idea,
        "variants": [
            {"name": variant_name(spec, each), "title": each.title, "idea": each.idea} for each in spec.variants()
        ],
    }


def _short(file: Path) -> str:
    """``kernels_cu/fa2.cu`` for the project's own sources; a user's file as it lies."""
    from attnprof.kernels.sources import kernels_dir

    folder = kernels_dir()
    if file.is_relative_to(folder):
        return (Path(folder.name) / file.relative_to(folder)).as_posix()
    return os.fspath(file)


COMMAND = Command(kernels, order=60, example="attnprof kernels --json")
