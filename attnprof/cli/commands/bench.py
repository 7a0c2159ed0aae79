"""``attnprof bench``: run the kernels and set what they achieve beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprof.cli import backends, baseline, clone, gpus, options, tuning, values
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import Output, output
from attnprof.cli.progress import Progress
from attnprof.model.errors import DescriptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attnprof.bench.rows import BenchRow, MeasuredRate
    from attnprof.bench.runner import BenchOptions
    from attnprof.bench.tune import Tuner
    from attnprof.kernels.executor import TimedExecutor
    from attnprof.model.workload import Workload
    from attnprof.report.document import Report


def bench(
    context: typer.Context,
    seq: options.Seq = None,
    kv_seq: options.KvSeq = None,
    batch: options.Batch = "1",
    heads: options.Heads = "32",
    kv_heads: options.KvHeads = None,
    head_dim: options.HeadDim = None,
    dtype: options.DtypeNames = None,
    causal: options.Causal = False,
    scale: options.Scale = None,
    direction: options.PassName = "fwd",
    layout: options.LayoutName = "bhsd",
    rows: options.Rows = None,
    cols: options.Cols = None,
    kernel: options.Kernels = None,
    variant: options.Variants = None,
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="NAME", help="Libraries to time in the same loop: torch-cudnn, torch-softmax."),
    ] = None,
    ceilings: options.Ceilings = "datasheet",
    l2: Annotated[
        str, typer.Option("--l2", metavar="cold|warm", help="Flush the L2 cache before each launch, or not.")
    ] = "cold",
    min_time: Annotated[
        str, typer.Option("--min-time", metavar="SECONDS", help="Time that the samples of a row must add up to.")
    ] = "0.5",
    max_time: Annotated[
        str, typer.Option("--max-time", metavar="SECONDS", help="End the sampling of a row after this long.")
    ] = "15",
    rates: Annotated[
        bool, typer.Option("--rates/--no-rates", help="Measure the library's copy and matrix product in the same run.")
    ] = True,
    tune: Annotated[
        bool, typer.Option("--tune", help="First try every tile choice of each kernel, and keep the fastest.")
    ] = False,
    tuned: options.Tuned = True,
    seed: options.Seed = "0",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Run on the GPU: compile, verify, time, compare.

    Every kernel is verified against float64 before it is timed. A row that can't run here is skipped and says why; a
    row that runs and goes wrong makes the exit code 1. Tiles that --tune kept for this GPU are used from then on.
    """
    from attnprof.bench.runner import BenchOptions
    from attnprof.bench.runner import Progress as Step
    from attnprof.bench.runner import bench as rows_of
    from attnprof.bench.sampler import UntilSteady
    from attnprof.report import bench as view

    out = output(context.obj, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    specs, workloads = options.WorkloadOptions(
        *(seq, kv_seq, batch, heads, kv_heads, head_dim, dtype, causal, direction, rows, cols, scale, layout),
        typed=options.Typed.of(context),
    ).sweep(kernel, variant)
    clone.note_edits(context.obj, specs)
    if tune:
        tuning.check_tunable(specs, tuned=tuned)
    peer_names = backends.check_peers(peer or [])
    time_limit_s = values.seconds(max_time, "--max-time", example="15")
    with backends.warnings_on(context.obj), Progress(context.obj) as progress:

        def show(step: Step) -> None:
            progress.step(f"[{step.index + 1}/{step.total}] {step.kernel} {step.workload.label}: {step.phase}")

        settings = BenchOptions(
            l2="cold" if values.choice(l2, "--l2", ("cold", "warm")) == "cold" else "warm",
            rule=UntilSteady(min_time_s=values.seconds(min_time, "--min-time"), time_limit_s=time_limit_s),
            ceilings=gpus.ceiling_source(ceilings),
            seed=values.whole(seed, "--seed"),
            clock=backends.clock,
            progress=show,
        )
        executor = backends.open_gpu()
        peers = backends.open_peers(peer_names, executor, specs[0].layout)
        tuner = tuning.open_tuner(executor, settings, time_limit_s) if tune else None
        if tuner is None:
            specs = tuning.with_kept_tiles(specs, wanted=tuned)
        run = _Run(out, executor, settings, peer_names, tuner)
        try:
            if rates:
                progress.step("measuring the rates of the library's copy and matrix product")
                run.rates = backends.measure_rates(executor, workloads, settings)
            total = len(specs) * len(workloads)
            for row in rows_of(specs, workloads, executor, settings, peers=peers, rates=run.rates, tuner=tuner):
                run.add(row)
                where = f"[{len(run.rows)}/{total}] {row.kernel} {row.workload.label}"
                progress.done(f"{where}: {view.live_line(run.rows[-1])}")
        except KeyboardInterrupt:
            run.interrupted = True
        except DescriptionError:
            if run.rows:  # of the kernels before it
                out.show(run.report())
            raise
    out.show(run.report())
    return run.exit_code()


@dataclass
class _Run:
    """The rows so far, and the report they make."""

    out: Output
    executor: TimedExecutor
    settings: BenchOptions
    peers: tuple[str, ...]
    tuner: Tuner | None = None
    rates: tuple[MeasuredRate, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    naive: dict[tuple[str, Workload], tuple[float, int | None]] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.baseline = baseline.Baseline(self.executor.device, self.settings.ceilings)

    def add(self, row: BenchRow) -> None:
        """Take a finished row in, and save all rows so far."""
        values: dict[str, Any] = row.as_row()
        median_s = row.time.median_s if row.time is not None and row.status == "ok" else None
        operation = values["operation"]
        if row.kernel == baseline.NAMES[operation] and median_s:
            self.naive[operation, row.workload] = median_s, values["sm_clock_hz"]
        naive_s, naive_clock_hz = self.naive.get((operation, row.workload), (None, None))
        values["gpu"] = self.executor.device.name
        values["speedup_vs_naive"] = self.baseline.speedup(operation, row.workload, values["roof_time_s"])
        values["measured_speedup_vs_naive"] = naive_s / median_s if naive_s and median_s else None
        values["naive_sm_clock_hz"] = naive_clock_hz if median_s else None
        self.rows.append(values)
        self.interrupted |= str(row.status) == "interrupted"
        self.out.save(self.report())

    def exit_code(self) -> ExitCode:
        """Interrupted; failed where a row ran and went wrong; else fine."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.FAILED if any(row["status"] == "error" for row in self.rows) else ExitCode.OK

    def report(self) -> Report:
        """What has been measured so far."""
        from attnprof.report import bench as view
        from attnprof.report import tune as tune_view
        from attnprof.report.bench_notes import notes
        from attnprof.report.document import Report, Section

        device, rates = self.executor.device, [rate.as_dict() for rate in self.rates]
        software = backends.software()
        heading = self._heading(rates, software)
        tunings = [each.as_dict() for each in self.tuner.tunings] if self.tuner is not None else []
        return Report(
            "bench",
            view.columns(self.peers),
            (
                *((Section(heading, ()), *tune_view.sections(tunings)) if tunings else ()),
                Section(() if tunings else heading, self.rows, notes(self.rows)),
            ),
            fields={
                "device": device.as_json(),
                "software": dict(software),
                "ceilings": self.settings.ceilings,
                "l2": self.settings.l2,
                "seed": self.settings.seed,
                "rates": rates,
                "tuning": tunings,
                "interrupted": self.interrupted,
            },
            group_by="seq_q",
            summary=view.LEGEND,
        )

    def _heading(self, rates: list[dict[str, object]], software: Mapping[str, str | None]) -> tuple[str, ...]:
        from attnprof.model.ceilings import ceilings
        from attnprof.model.dtypes import Dtype
        from attnprof.report import bench as view

        device, settings = self.executor.device, self.settings
        dtypes = dict.fromkeys(Dtype(row["dtype"]) for row in self.rows)
        lines = [
            *gpus.device_lines(gpus.Target(device, f"local GPU, compiling for {self.executor.arch}")),
            gpus.labelled("Software", view.software_text(software)),
            *gpus.ceiling_lines(((d, ceilings(device, d, settings.ceilings)) for d in dtypes), settings.ceilings),
        ]
        if rates:
            lines.append(
                gpus.labelled("Measured", f"in this run: {' · '.join(view.rate_text(rate) for rate in rates)}")
            )
        lines.append(gpus.workload_line(self.rows))
        how = "flushed before each launch" if settings.l2 == "cold" else "not flushed"
        lines.append(gpus.labelled("Timing", f"CUDA events · L2 {settings.l2} ({how}) · seed {settings.seed}"))
        return tuple(lines)


COMMAND = Command(bench, order=20, example="attnprof bench --kernel naive,fa2 --seq 1k:8k:x2 --output run.json")
