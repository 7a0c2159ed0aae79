"""What a check yields: one row a kernel, check and architecture, in the terms of ``attnprof check --json``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """The checks, in the order in which they run."""

    COMPILE = "compile"
    SPILLS = "spills"
    SHARED_MEMORY = "shared-memory"
    OCCUPANCY = "occupancy"
    NUMERICS = "numerics"
    FAULTS = "faults"
    LARGE_TENSORS = "large-tensors"
    DETERMINISM = "determinism"
    OVERFLOW = "overflow"
    TRAP = "trap"


class CheckStatus(StrEnum):
    """The verdict; ``detail`` says why a check failed or was skipped."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Case:
    """One workload of a check: its verdict, its error or number of faults, and what was allowed."""

    workload: str
    status: CheckStatus
    value: float | None
    limit: float | None
    detail: str

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "workload": self.workload,
            "status": str(self.status),
            "value": self.value,
            "limit": self.limit,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One verdict.

    Attributes:
        kernel: the kernel's name.
        check: what was checked.
        status: the verdict.
        value: the worst value found; None where the check yields none.
        limit: what it may be at most (``occupancy``: at least).
        unit: of both, e.g. ``bytes``; None where there is no value.
        arch: the architecture it holds for.
        detail: where the worst value was found, or why the check failed or was skipped.
        cases: the single workloads of a numerics check, or of one for faults.
        context_lost: the device context went with this check: nothing more can run in this process.
    """

    kernel: str
    check: Check
    status: CheckStatus
    value: float | int | None
    limit: float | int | None
    unit: str | None
    arch: str | None
    detail: str
    cases: tuple[Case, ...] = ()
    context_lost: bool = False

    @classmethod
    def of_numerics(
        cls,
        kernel: str,
        check: Check,
        status: CheckStatus,
        worst: Case | None,
        dtype: str,
        arch: str,
        detail: str,
        *,
        cases: tuple[Case, ...] = (),
        context_lost: bool = False,
    ) -> CheckRow:
        """A verdict on errors: those of the worst case, if there is one, in relative L2 of an element type."""
        value, limit = (worst.value, worst.limit) if worst else (None, None)
        unit = f"relative L2, {dtype}" if worst else None
        return CheckRow(kernel, check, status, value, limit, unit, arch, detail, cases, context_lost)

    def as_row(self) -> dict[str, object]:
        """The row as plain values."""
        return {
            "kernel": self.kernel,
            "check": str(self.check),
            "status": str(self.status),
            "value": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "arch": self.arch,
            "detail": self.detail,
            "cases": [case.as_dict() for case in self.cases],
        }
