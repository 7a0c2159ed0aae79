"""``check --traps``: each trap beside its cure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnprof.cli import backends, gpus, values
from attnprof.cli.exits import ExitCode, nothing_checked
from attnprof.cli.output import Output
from attnprof.cli.progress import Progress
from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.check.traps import Trap
    from attnprof.compiler import Compiler
    from attnprof.report.document import Report


def choose(kernels: Sequence[str] | None) -> tuple[Trap, ...]:
    """The traps of these kernels; all of them without a choice.

    Raises:
        UsageError: a kernel that no trap is about.
    """
    from attnprof.check.traps import all_traps

    found = all_traps()
    names = values.kernel_names(kernels or [])
    kernels_of = {trap.name: {trap.kernel.name.partition("[")[0], trap.cure.name.partition("[")[0]} for trap in found}
    known = list(dict.fromkeys(name for trap in found for name in sorted(kernels_of[trap.name])))
    for name in names:
        if name not in (*known, "all"):
            raise UsageError(f"no trap is about {name}", f"those with traps: {', '.join(known)}")
    if not names or "all" in names:
        return found
    return tuple(trap for trap in found if kernels_of[trap.name] & set(names))


def run(
    traps: Sequence[Trap], where: backends.Checker, compiler: Compiler, seed: int, out: Output, progress: Progress
) -> ExitCode:
    """Run the traps and show them; failed where a cure no longer cures."""
    from attnprof.check.trap_runner import TrapRunner
    from attnprof.report import traps as view

    runner = TrapRunner(
        where.executor,
        backends.open_counter(compiler, where.executor.device),
        compiler,
        timer=backends.open_timer(where, seed),
        seed=seed,
        progress=progress.step,
    )
    rows: list[dict[str, Any]] = []
    interrupted = False

    def report() -> Report:
        return _report(rows, where, interrupted=interrupted)

    try:
        for row in runner.run(traps):
            rows.append(row.as_row())
            progress.done(view.live_line(rows[-1]))
            out.save(report())
    except KeyboardInterrupt:
        interrupted = True
    out.show(report())
    if interrupted:
        return ExitCode.INTERRUPTED
    if all(row["status"] == "skipped" for row in rows):
        raise nothing_checked()
    return ExitCode.FAILED if any(row["status"] == "fail" for row in rows) else ExitCode.OK


def _report(rows: list[dict[str, Any]], where: backends.Checker, *, interrupted: bool) -> Report:
    from attnprof.report import check as counts
    from attnprof.report import traps as view
    from attnprof.report.document import Report, Section

    return Report(
        "check",
        view.COLUMNS,
        (Section((gpus.labelled("Runs on", where.line),), rows, view.notes(rows)),),
        fields={
            "device": where.executor.device.as_json(),
            "backend": where.executor.backend,
            "reason": where.reason,
            "interrupted": interrupted,
            "summary": counts.counts(rows),
        },
        summary=(counts.summary(rows) + (", interrupted" if interrupted else ""),),
    )
