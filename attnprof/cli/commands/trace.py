"""``attnprof trace``: run the kernels on the emulator; counts beside the model, source lines, faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import backends, clone, gpus, options, values
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import output
from attnprof.cli.progress import Progress
from attnprof.model.errors import AttnprofError, DescriptionError, EnvironmentProblem, LaunchLimitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnprof.emulator.executor import EmulatorExecutor
    from attnprof.emulator.trace import KernelTrace
    from attnprof.kernels.spec import KernelSpec
    from attnprof.model.workload import Workload
    from attnprof.report.document import Report

# What a traced run takes on one core of a laptop: a matrix FLOP, and a score (exponentials and all that goes with it).
_S_PER_FLOP = 5e-9
_S_PER_SCORE = 5e-7
_INCOMPLETE = "Counts may be incomplete: a fault ended the run."
_LONG_S, _LONGEST_S = 60.0, 600.0


def trace(
    context: typer.Context,
    seq: options.EmulatedSeq = None,
    kv_seq: options.KvSeq = None,
    batch: options.Batch = "1",
    heads: options.Heads = "2",
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    dtype: options.DtypeNames = None,
    causal: options.Causal = False,
    direction: options.PassName = "fwd",
    layout: options.LayoutName = "bhsd",
    rows: options.EmulatedRows = None,
    cols: options.Cols = None,
    kernel: options.Kernels = None,
    variant: options.Variants = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="The GPU of the built-in table that it stands for.")
    ] = None,
    lines: Annotated[
        str, typer.Option("--lines", metavar="N", help="Source lines to list for each launch, hottest first.")
    ] = "12",
    seed: options.Seed = "0",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Count and check on the emulator; needs no GPU.

    Runs each kernel's PTX on the CPU, on random inputs, and sets matrix FLOPs, exponentials and the bytes of each
    tensor beside the model; lists bank conflicts, coalescing and instructions by source line; finds faults (bad
    addresses, races, unwaited copies, barriers, NaN).
    """
    from attnprof.compiler import Compiler
    from attnprof.report import trace as view

    env = context.obj
    out = output(env, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    matrices = rows is not None or cols is not None
    specs, workloads = options.WorkloadOptions(
        None if matrices and seq is None else seq or ["256"],
        *(kv_seq, batch, heads, kv_heads, head_dim, dtype, causal, direction),
        rows or (["64"] if matrices else None),
        cols,
        layout=layout,
        typed=options.Typed.of(context),
    ).sweep(kernel, variant)
    clone.note_edits(env, specs)
    listed = values.count(lines, "--lines", example="12")
    seed_value = values.whole(seed, "--seed")
    targets = gpus.targets(gpu)
    if len(targets) > 1:
        raise UsageError(f"--gpu {gpu}: trace stands for one GPU at a time", f"--gpu {targets[0].device.name}")
    slow = [text for workload in workloads for text in _check_sizes(specs, workload)]

    found: list[dict[str, Any]] = []
    interrupted = False
    with backends.warnings_on(env), Progress(env) as progress:
        for text in slow:
            env.err(text)
        executor = backends.open_tracer(Compiler(), targets[0].device)
        heading = (
            *gpus.device_lines(targets[0]),
            gpus.labelled("Runs on", f"the emulator, PTX for {executor.arch} · random inputs, seed {seed_value}"),
        )

        def report() -> Report:
            return _report(heading, found, executor, listed, interrupted=interrupted)

        try:
            for workload in workloads:
                for spec in specs:
                    progress.step(f"{spec.name} {workload.label}: running on the emulator")
                    found.append(trace_row(spec, workload, executor, seed_value))
                    progress.done(view.live_line(found[-1]))
                    out.save(report())
        except KeyboardInterrupt:
            interrupted = True
        except DescriptionError:
            if found:  # the kernels before it
                out.show(report())
            raise
    out.show(report())
    if interrupted:
        return ExitCode.INTERRUPTED
    if all(row["status"] == "skipped" for row in found):
        raise _nothing_traced(found)  # a gate must not take this for a run without faults
    return ExitCode.FAILED if any(row["status"] == "error" for row in found) else ExitCode.OK


def _nothing_traced(rows: Sequence[dict[str, Any]]) -> UsageError:
    """Why every row is skipped, in one line: the reason, or how many there are."""
    from attnprof.report import units

    first, *others = dict.fromkeys(row["reason"] for row in rows)
    rest = f", and {units.counted(len(others), 'other reason')} above" if others else ""
    return UsageError(
        f"nothing was traced: {first}{rest}", "name another workload, or another kernel: attnprof kernels"
    )


def _check_sizes(specs: Sequence[KernelSpec], workload: Workload) -> list[str]:
    """Refuse what would take too long; a warning for each kernel that will take its time."""
    from attnprof.kernels.spec import workload_label

    warnings = []
    for spec in specs:
        flops = workload.flops if spec.operation == "attention" else 0
        needed_s = flops * _S_PER_FLOP + workload.rows * workload.seq_kv * _S_PER_SCORE
        if needed_s <= _LONG_S or spec.unsupported(workload) is not None:
            continue
        takes = f"{spec.name} on {workload_label(workload, spec.operation)} takes some {needed_s / 60:,.0f} min"
        smaller = "--rows 64 --cols 4096" if spec.operation == "softmax" else "--seq 512 --heads 2"
        hint = f"tiles and heads repeat, so less shows the same: attnprof trace --kernel {spec.name} {smaller}"
        if needed_s > _LONGEST_S:
            raise UsageError(f"{takes} on the emulator, which is meant for small sizes", hint)
        warnings.append(f"warning: {takes} on the emulator; {hint}")
    return warnings


def trace_row(spec: KernelSpec, workload: Workload, executor: EmulatorExecutor, seed: int) -> dict[str, Any]:
    """One kernel on one workload: the JSON row.

    ``launches`` hold the plain records of the emulator, ``comparison`` what is set beside the model, ``notes`` why the
    two differ, ``faults`` every fault that was recorded.

    Raises:
        DescriptionError: the kernel's own description went wrong.
        EnvironmentProblem: the compiler or a header is missing.
    """
    from attnprof.compiler.arch import parse_arch
    from attnprof.emulator.executor import traced
    from attnprof.kernels.softmax_placement import CLUSTERS_SINCE, uses_clusters
    from attnprof.kernels.spec import tile_fields
    from attnprof.kernels.trial import inputs_for
    from attnprof.model.roofline import workload_fields
    from attnprof.report.trace import fault_count
    from attnprof.report.trace_comparison import compare, explain

    row: dict[str, Any] = {
        "kernel": spec.name,
        "operation": spec.operation,
        "status": "ok",
        "reason": None,
        **workload_fields(workload),
        **tile_fields(spec, workload, executor.device),
        "comparison": [],
        "launches": [],
        "notes": (),
        "faults": [],
        "printed": None,
    }
    emulated = divmod(parse_arch(executor.arch)[0], 10)
    reason = spec.runs_on(executor.device.compute_capability) or spec.unsupported(workload)
    if reason is None and spec.runs_on(emulated) is not None:
        reason = f"needs {spec.requires}, the emulator executes {executor.arch}"
    if reason is not None:
        return {**row, "status": "skipped", "reason": reason}
    try:
        plan = spec.plan(workload, executor.device)
        if emulated < CLUSTERS_SINCE and uses_clusters(plan):
            reason = f"needs thread block clusters (sm_90) on this GPU, the emulator executes {executor.arch}"
            return {**row, "status": "skipped", "reason": reason}
        trace = traced(plan, inputs_for(spec, workload, seed=seed), executor)
    except (DescriptionError, EnvironmentProblem):
        raise
    except LaunchLimitError as error:
        return {**row, "status": "skipped", "reason": error.message}
    except AttnprofError as error:
        return {**row, "status": "error", "reason": error.message}
    launches = [_launch(kernel) for kernel in trace.kernels]
    demand = spec.demand(workload, executor.device)
    stages = {stage.name: stage for stage in demand.stages}
    names = dict.fromkeys(launch["stage"] for launch in launches)
    compared = [
        entry
        for name in names
        for entry in compare([launch for launch in launches if launch["stage"] == name], stages.get(name))
    ]
    faults = [fault.as_json() for fault in trace.faults]
    return {
        **row,
        "status": "error" if faults else "ok",
        "reason": f"faults: {fault_count(faults)}" if faults else None,
        "comparison": compared,
        "launches": launches,
        "notes": (_INCOMPLETE,) if trace.stopped else explain(compared, workload),
        "faults": faults,
        "printed": trace.printed or None,
    }


def _launch(kernel: KernelTrace) -> dict[str, Any]:
    record: dict[str, Any] = kernel.as_json()
    issued = 32 * record["warp_instructions"]
    return {**record, "lanes_active": record["thread_instructions"] / issued if issued else None}


def _report(
    heading: tuple[str, ...],
    rows: list[dict[str, Any]],
    executor: EmulatorExecutor,
    lines: int,
    *,
    interrupted: bool,
) -> Report:
    from attnprof.report import trace as view
    from attnprof.report.document import Report, Section

    return Report(
        "trace",
        view.CSV_COLUMNS,
        (Section(heading, ()), *(section for row in rows for section in view.sections(row, lines))),
        fields={
            "device": executor.device.as_json(),
            "backend": executor.backend,
            "arch": executor.arch,
            "interrupted": interrupted,
            "faults": sum(len(row["faults"]) for row in rows),
        },
        json_rows=rows,
        csv_rows=view.csv_rows(rows),
        summary=(*view.LEGEND, view.summary(rows) + (", interrupted" if interrupted else "")),
    )


COMMAND = Command(trace, order=40, example="attnprof trace --kernel fa2 --seq 256 --head-dim 64")
