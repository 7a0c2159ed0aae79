"""``bench --tune``, and the tiles that it kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.bench.runner import BenchOptions
    from attnprof.bench.tune import Tuner
    from attnprof.gpu.executor import GpuExecutor
    from attnprof.kernels.spec import KernelSpec


def with_kept_tiles(specs: Sequence[KernelSpec], *, wanted: bool) -> tuple[KernelSpec, ...]:
    """The kernels with the tiles that tuning kept for the GPU that they are asked about; as they are if not wanted."""
    if not wanted:
        return tuple(specs)
    from attnprof.bench.winners import Winners

    winners = Winners()
    return tuple(winners.choosing(spec) for spec in specs)


def check_tunable(specs: Sequence[KernelSpec], *, tuned: bool) -> None:
    """Refuse ``--tune`` where no kernel has a choice of tiles, and together with ``--no-tuned``.

    Raises:
        UsageError: none has, or tuned tiles are not wanted.
    """
    from attnprof.kernels.candidates import no_candidates

    if not tuned:
        raise UsageError("--tune and --no-tuned exclude each other", "leave one of them out")
    if all(spec.candidates is no_candidates for spec in specs):
        names = [spec.name for spec in specs]
        who = f"none of {', '.join(names)} has tiles" if len(names) > 1 else f"{names[0]} has no tiles"
        inside = " with --layout bshd" if specs[0].layout == "bshd" else ""
        raise UsageError(f"--tune: {who} to choose{inside}", "for example: --kernel fa2 --tune")


def open_tuner(executor: GpuExecutor, settings: BenchOptions, time_limit_s: float) -> Tuner:
    """What chooses tiles by measuring on the executor, under the settings of the rows."""
    from attnprof.bench.tune import TuneOptions, Tuner
    from attnprof.bench.winners import Winners

    options = TuneOptions(
        l2=settings.l2,
        rule=settings.rule,
        time_limit_s=time_limit_s,
        seed=settings.seed,
        clock=settings.clock,
        ahead=executor.ahead,
    )
    return Tuner(executor, options, Winners())
