"""The records of tuning: one tile choice in the making, and the outcome for a kernel and workload."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from attnprof.bench.sampler import Series
from attnprof.bench.statistics import TimeStats
from attnprof.kernels.candidates import Candidate
from attnprof.kernels.executor import EntryResources
from attnprof.kernels.plan import Launch, LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.model.roofline import workload_fields
from attnprof.model.workload import Workload


class Verdict(StrEnum):
    """What became of a tile choice."""

    KEPT = "kept"
    BUILT_IN = "built-in"
    SLOWER = "slower"
    BEATEN = "not the fastest"
    WITHIN_SPREAD = "within the spread"
    SPILLS = "spills"
    DOES_NOT_RUN = "does not run"
    WRONG = "wrong result"
    NOT_RESOLVED = "too short to time"


@dataclass
class Trial:
    """One tile choice in the making.

    Attributes:
        candidate: the choice.
        plan: its plan.
        main: its launch with the most threads and shared memory: the one that tiles are about.
        resources: what ptxas reports for that launch; None where it did not come to it.
        blocks_per_sm: blocks of it that an SM holds; None where that is unknown.
        time: its samples, of the last round that it took part in.
        speedup: the built-in choice's time over its own, the median over pairs of samples taken in turn.
        spread: the median absolute deviation of that.
        verdict: what became of it; None while that is open.
        reason: why it is out, in one line.
    """

    candidate: Candidate
    plan: LaunchPlan
    main: Launch
    resources: EntryResources | None = None
    blocks_per_sm: int | None = None
    time: TimeStats | None = None
    speedup: float | None = None
    spread: float | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    verified: bool = False

    @property
    def label(self) -> str:
        """The name of the choice."""
        return self.candidate.label

    @property
    def wins(self) -> bool:
        """Whether it beat the built-in choice by more than the spread."""
        return self.speedup is not None and self.spread is not None and self.speedup - self.spread > 1.0

    @classmethod
    def of(cls, candidate: Candidate) -> Trial:
        """The trial of a candidate, about which nothing is known yet."""
        plan = candidate.plan()
        return cls(candidate, plan, max(plan.launches, key=lambda launch: (launch.smem_bytes, launch.threads)))

    def take(self, series: Series, base: Series) -> None:
        """Take in the samples of a round, each beside the built-in choice's (``base``) of the same turn."""
        self.time = TimeStats.of(series.samples, warmup_launches=series.warmup_launches)
        # A fault leaves a sample without its partner.
        pairs = zip(series.samples, base.samples, strict=False)
        ratios = [other.time_s / mine.time_s for mine, other in pairs if mine.time_s > 0.0]
        if series.resolved and base.resolved and ratios:
            self.speedup = median(ratios)
            self.spread = median(abs(ratio - self.speedup) for ratio in ratios)
        elif series is not base:
            self.drop(Verdict.NOT_RESOLVED)

    def drop(self, verdict: Verdict, reason: str | None = None) -> None:
        """It is out of the race."""
        self.verdict, self.reason = verdict, reason

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        found = self.resources
        return {
            "tiles": self.label,
            "registers": found.registers if found else None,
            "smem_bytes": self.main.smem_bytes + (found.static_smem_bytes if found else 0),
            "blocks_per_sm": self.blocks_per_sm,
            "spill_bytes": found.spill_store_bytes + found.spill_load_bytes if found else None,
            "time_s": self.time.as_dict() if self.time else None,
            "speedup": self.speedup,
            "speedup_mad": self.spread,
            "verdict": str(self.verdict) if self.verdict else None,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome for one kernel and workload.

    Attributes:
        spec: the kernel, with its built-in tiles.
        workload: what was computed.
        trials: every choice, the built-in one first.
        winner: the one to run: kept, or the built-in one; None where tuning came to no end.
        reason: why it did not.
    """

    spec: KernelSpec
    workload: Workload
    trials: tuple[Trial, ...]
    winner: Trial | None
    reason: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Plain values; the workload under the keys of a row."""
        return {
            "kernel": self.spec.name,
            **workload_fields(self.workload),
            "layout": self.spec.layout,
            "built_in": self.trials[0].label,
            "tiles": self.winner.label if self.winner else None,
            "reason": self.reason,
            "candidates": [trial.as_dict() for trial in self.trials],
        }
