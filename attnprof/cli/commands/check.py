"""``attnprof check``: is each kernel right, and does it compile to what it claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import backends, clone, gpus, options, values
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode, nothing_checked
from attnprof.cli.output import output
from attnprof.cli.progress import Progress
from attnprof.model.errors import DescriptionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnprof.kernels.spec import KernelSpec
    from attnprof.report.document import Report

_FAULTS_EXAMPLE = "attnprof check --check faults --backend emulator"


def check(
    context: typer.Context,
    kernel: options.Kernels = None,
    variant: options.Variants = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="gpu|emulator", help="Where to run.  [default: the GPU if there is one]"),
    ] = None,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="Without a GPU, exit 2.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Run these checks only: compile, numerics, ...; comma lists."),
    ] = None,
    traps: Annotated[
        bool, typer.Option("--traps", help="Instead, run each known trap beside its cure and show what it costs.")
    ] = False,
    seed: options.Seed = "0",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Check numerics and resources of the kernels.

    Compiles every variant for every architecture a kernel names (no GPU needed), then runs the kernels on awkward
    shapes and compares with float64: on the GPU if there is one, else on the emulator, which also looks for faults
    (races, bad addresses, unwaited copies). With --traps: what a kernel with one thing wrong costs beside its cure, in
    bank conflicts, memory requests, HBM bytes, occupancy or wrong values, and on a GPU in time.
    """
    from attnprof.check.rows import Check
    from attnprof.check.runner import CheckOptions, compilations, run_checks
    from attnprof.cli import traps as trap_check
    from attnprof.compiler import Compiler
    from attnprof.kernels.host import available_cores
    from attnprof.report import check as view

    env = context.obj
    out = output(env, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    names = [name.value for name in Check if name is not Check.TRAP]
    if traps and only:
        raise UsageError("--traps and --check exclude each other", "leave one of them out")
    if traps and variant is not None:
        raise UsageError("--traps and --variant exclude each other", "each trap has its own variant")
    checks = frozenset(Check(name) for name in values.choices(only or names, "--check", names))
    seed_value = values.whole(seed, "--seed")
    wanted = None if backend is None else values.choice(backend, "--backend", backends.BACKENDS)
    if require_gpu and wanted == "emulator":
        raise UsageError("--require-gpu and --backend emulator exclude each other", "leave one of them out")
    if traps:
        chosen = trap_check.choose(kernel)
        clone.note_edits(env, (each for trap in chosen for each in (trap.kernel, trap.cure)))
        with backends.warnings_on(env), Progress(env) as progress:
            compiler = Compiler()
            where = backends.open_checker("gpu" if require_gpu else wanted, compiler)
            return trap_check.run(chosen, where, compiler, seed_value, out, progress)
    specs = options.kernels(kernel)
    if variant is not None:
        specs = options.with_variants(specs, kernel, variant)
    clone.note_edits(env, specs)
    if checks == {Check.OVERFLOW} and all(spec.largest_logit is None for spec in specs):
        raise UsageError(
            f"--check overflow is for kernels whose logits have a limit; without one: {_names(specs)}",
            "attnprof check --check overflow --kernel softmax-naive",
        )

    rows: list[dict[str, Any]] = []
    interrupted = False
    with backends.warnings_on(env), Progress(env) as progress:
        compiler = Compiler()
        where = backends.open_checker("gpu" if require_gpu else wanted, compiler)
        if only and Check.FAULTS in checks and where.finder is None:
            raise UsageError("--check faults is for the emulator alone: --backend emulator", _FAULTS_EXAMPLE)
        settings = CheckOptions(
            checks=checks,
            seed=seed_value,
            workers=available_cores(),
            finder=where.finder,
            progress=progress.step,
        )
        heading = gpus.labelled("Runs on", where.line)

        def report() -> Report:
            return _report(heading, rows, where, interrupted=interrupted)

        try:
            with compiler.ahead(compilations(specs, where.executor, settings)):
                for row in run_checks(specs, where.executor, compiler, settings):
                    rows.append(row.as_row())
                    progress.done(view.live_line(rows[-1]))
                    out.save(report())
        except KeyboardInterrupt:
            interrupted = True
        except DescriptionError:
            if rows:  # of the checks before it
                out.show(report())
            raise
    out.show(report())
    if interrupted:
        return ExitCode.INTERRUPTED
    # The other checks are for some kernels and devices only: alone they may have nothing to say.
    if not {Check.COMPILE, Check.NUMERICS, Check.FAULTS}.isdisjoint(checks) and all(
        row["status"] == "skipped" for row in rows
    ):
        raise nothing_checked()
    return ExitCode.FAILED if any(row["status"] == "fail" for row in rows) else ExitCode.OK


def _report(heading: str, rows: list[dict[str, Any]], where: backends.Checker, *, interrupted: bool) -> Report:
    from attnprof.report import check as view
    from attnprof.report.document import Report, Section

    return Report(
        "check",
        view.COLUMNS,
        (Section((heading,), rows, view.notes(rows)),),
        fields={
            "device": where.executor.device.as_json(),
            "backend": where.executor.backend,
            "reason": where.reason,
            "interrupted": interrupted,
            "summary": view.counts(rows),
        },
        group_by="kernel",
        summary=(view.summary(rows) + (", interrupted" if interrupted else ""),),
    )


def _names(specs: Sequence[KernelSpec]) -> str:
    return ", ".join(spec.name for spec in specs)


COMMAND = Command(check, order=30, example="attnprof check --kernel fa2 --json")
