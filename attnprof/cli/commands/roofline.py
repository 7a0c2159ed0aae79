"""``attnprof roofline``: what each kernel must cost, from arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import backends, gpus, options, tuning
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import output

if TYPE_CHECKING:
    from attnprof.kernels.spec import KernelSpec
    from attnprof.model.ceilings import Source
    from attnprof.model.devices import DeviceSpec
    from attnprof.model.workload import Workload


def roofline(
    context: typer.Context,
    seq: options.Seq = None,
    kv_seq: options.KvSeq = None,
    batch: options.Batch = "1",
    heads: options.Heads = "32",
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    dtype: options.DtypeNames = None,
    causal: options.Causal = False,
    direction: options.PassName = "fwd",
    rows: options.Rows = None,
    cols: options.Cols = None,
    kernel: options.Kernels = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME", help="GPUs of the built-in table, e.g. A100-SXM4-80GB,H200."),
    ] = None,
    ceilings: options.Ceilings = "datasheet",
    tuned: options.Tuned = True,
    ledger: Annotated[bool, typer.Option("--ledger", help="Show the HBM traffic line by line.")] = False,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Predict traffic, FLOPs, bound and time; needs no GPU.

    For each kernel and length: HBM traffic, FLOPs, arithmetic intensity, the unit that binds, the roof time, the
    predicted time, and the speed-up over naive.
    """
    from attnprof.model.ceilings import ceilings as limits_of
    from attnprof.model.workload import Pass
    from attnprof.report import roofline as view
    from attnprof.report.document import Report, Section

    out = output(context.obj, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    source = gpus.ceiling_source(ceilings)
    specs, workloads = options.WorkloadOptions(
        *(seq, kv_seq, batch, heads, kv_heads, head_dim, dtype, causal, direction, rows, cols),
        typed=options.Typed.of(context),
    ).sweep(kernel)
    if options.whole_catalogue(kernel) and workloads[0].direction is not Pass.FWD:
        # naive has a ledger for either pass.
        specs = (*options.kernels(["naive"]), *(spec for spec in specs if spec.name != "naive"))
    targets = gpus.targets(gpu)
    if targets[0].device.source == "nvml":
        with backends.warnings_on(context.obj):
            specs = tuning.with_kept_tiles(specs, wanted=tuned)

    sections: list[Section] = []
    all_rows: list[dict[str, Any]] = []
    for target in targets:
        predicted = predict(specs, workloads, target.device, source)
        dtypes = dict.fromkeys(workload.dtype for workload in workloads)
        heading = (
            *gpus.device_lines(target),
            *gpus.ceiling_lines(((d, limits_of(target.device, d, source)) for d in dtypes), source),
            gpus.workload_line(predicted),
        )
        sections += (
            view.ledger_sections(predicted, heading)
            if ledger
            else [Section(heading, predicted, view.notes(predicted, target.device))]
        )
        all_rows += predicted
    out.show(
        Report(
            "roofline",
            view.LEDGER_COLUMNS if ledger else view.COLUMNS,
            tuple(sections),
            fields={
                "device": targets[0].device.as_json(),
                "devices": [target.device.as_json() for target in targets],
                "ceilings": source,
            },
            json_rows=all_rows,
            group_by=None if ledger else "seq_q",
            summary=() if ledger else view.LEGEND,
        )
    )
    return ExitCode.OK


def predict(
    specs: Sequence[KernelSpec], workloads: Sequence[Workload], device: DeviceSpec, source: Source
) -> list[dict[str, Any]]:
    """The rows of ``attnprof roofline``: every workload with every kernel, in that order.

    A kernel that can't run here is predicted all the same: the figures are those of its ledger on this GPU, and
    ``unsupported`` says why it can't.
    """
    from attnprof.cli.baseline import Baseline
    from attnprof.kernels.spec import tile_fields
    from attnprof.model.roofline import roofline as roofline_of
    from attnprof.model.roofline import row

    baseline = Baseline(device, source)
    rows: list[dict[str, Any]] = []
    for workload in workloads:
        for spec in specs:
            demand = spec.demand(workload, device)
            flops = spec.flops(workload)
            roof = roofline_of(workload, demand, device, source, flops=flops)
            speedup = baseline.speedup(spec.operation, workload, roof.time_s)
            rows.append(
                {
                    **row(spec.name, workload, demand, roof, speedup_vs_naive=speedup, flops=flops),
                    "operation": spec.operation,
                    **tile_fields(spec, workload, device),
                    "gpu": device.name,
                    "unsupported": spec.unsupported(workload) or spec.runs_on(device.compute_capability),
                }
            )
    return rows


COMMAND = Command(roofline, order=10, example="attnprof roofline --seq 32768 --gpu H200")
