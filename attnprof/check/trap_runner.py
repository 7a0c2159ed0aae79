"""Running traps: measure both sides, judge the cure, and time them where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnprof.check.resources import Compiler
from attnprof.check.rows import Check, CheckRow, CheckStatus
from attnprof.check.traps import Quantity, Trap
from attnprof.kernels.executor import Counted, Counter, Executor
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.spec import KernelSpec, workload_label
from attnprof.kernels.trial import inputs_for, judge, run_once
from attnprof.model.devices import DeviceSpec
from attnprof.model.errors import AttnprofError, ContextLost, EnvironmentProblem, KernelFault
from attnprof.model.occupancy import occupancy
from attnprof.model.rounding import decode
from attnprof.model.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

# Median seconds of kernels that are sampled in turns on a workload; None for one that could not be timed.
Timer = Callable[[Sequence[KernelSpec], Workload], Sequence[float | None]]

# What a warp's request moves at most, 16 bytes a lane, and the unit that memory moves.
REQUEST_BYTES, SECTOR_BYTES = 512, 32

# The quantities that are counted, not computed.
_COUNTS: Mapping[Quantity, Callable[[Counted], int]] = {
    Quantity.BANK_CONFLICTS: lambda counted: counted.bank_conflicts,
    Quantity.HBM_BYTES: lambda counted: counted.tensor_bytes,
    Quantity.SECTORS: lambda counted: counted.global_sectors,
    Quantity.REQUESTS: lambda counted: counted.global_requests,
    Quantity.BARRIERS: lambda counted: counted.barriers,
    Quantity.EXPONENTIALS: lambda counted: counted.exponentials,
}

NO_COUNTER = "needs the emulator to count"
NO_GPU = "times need a GPU"


@dataclass(frozen=True, slots=True)
class TrapRow(CheckRow):
    """One verdict on a cure: ``kernel`` is the cure, ``value`` its own figure and ``limit`` what it must keep to.

    Attributes:
        trap: the mistake.
        trap_kernel: falls into it.
        trap_value: that kernel's figure.
        workload: where both were counted.
        timed_workload: where both were timed.
        trap_time_s, cure_time_s: median seconds; None where not timed.
        time_reason: why they were not timed; None when they were.
        trap_hbm_bytes, cure_hbm_bytes: what the ledgers say of ``timed_workload``.
    """

    trap: str = ""
    trap_kernel: str = ""
    trap_value: int | None = None
    workload: str = ""
    timed_workload: str = ""
    trap_time_s: float | None = None
    cure_time_s: float | None = None
    time_reason: str | None = None
    trap_hbm_bytes: int | None = None
    cure_hbm_bytes: int | None = None

    def as_row(self) -> dict[str, object]:
        """The row as plain values."""
        trap_s, cure_s = self.trap_time_s, self.cure_time_s
        return {
            **CheckRow.as_row(self),
            "trap": self.trap,
            "trap_kernel": self.trap_kernel,
            "trap_value": self.trap_value,
            "workload": self.workload,
            "timed_workload": self.timed_workload,
            "trap_time_s": trap_s,
            "cure_time_s": cure_s,
            "slowdown": trap_s / cure_s if trap_s is not None and cure_s else None,
            "time_reason": self.time_reason,
            "trap_hbm_bytes": self.trap_hbm_bytes,
            "cure_hbm_bytes": self.cure_hbm_bytes,
        }


@dataclass
class TrapRunner:
    """Measures traps one after another; what two of them share is measured once.

    Args:
        executor: where kernels run. Its device's tiles and SMs are meant, and its architecture.
        counter: counts conflicts and bytes; None where there is no emulator.
        compiler: compiles for any architecture, no device needed.
        timer: times both sides; None without a GPU.
        seed: of the random inputs.
        progress: called with one line at each step.
    """

    executor: Executor
    counter: Counter | None
    compiler: Compiler
    timer: Timer | None = None
    seed: int = 0
    progress: Callable[[str], None] = lambda _: None
    _counted: dict[tuple[str, Workload], Counted] = field(default_factory=dict, init=False)
    _outputs: dict[tuple[str, Workload, Distribution], tuple[Arrays, Arrays]] = field(default_factory=dict, init=False)
    _lost: str | None = field(default=None, init=False)

    @property
    def _device(self) -> DeviceSpec:
        return self.executor.device

    def run(self, traps: Sequence[Trap]) -> Iterator[TrapRow]:
        """A row a trap, as it finishes. After a lost device context the rest is skipped."""
        for trap in traps:
            yield self._row(trap)

    def _row(self, trap: Trap) -> TrapRow:
        status, value, trap_value, limit, detail = self._verdict(trap)
        times: Sequence[float | None] = (None, None)
        time_reason: str | None = self._lost or NO_GPU
        if self.timer is not None and self._lost is None:
            try:
                times, time_reason = self._timed(trap, self.timer)
            except KernelFault as fault:  # on a workload so much larger, what was right may still crash
                status, detail, time_reason = CheckStatus.FAIL, fault.message, fault.message
        return TrapRow(
            kernel=trap.cure.name,
            check=Check.TRAP,
            status=status,
            value=value,
            limit=limit,
            unit=str(trap.quantity),
            arch=self.executor.arch,
            detail=detail,
            context_lost=self._lost is not None,
            trap=trap.name,
            trap_kernel=trap.kernel.name,
            trap_value=trap_value,
            workload=_label(trap, trap.workload),
            timed_workload=_label(trap, trap.timed),
            trap_time_s=times[0],
            cure_time_s=times[1],
            time_reason=time_reason,
            trap_hbm_bytes=trap.kernel.demand(trap.timed, self._device).hbm_bytes,
            cure_hbm_bytes=trap.cure.demand(trap.timed, self._device).hbm_bytes,
        )

    def _verdict(self, trap: Trap) -> tuple[CheckStatus, int | None, int | None, int | None, str]:
        """Status, the cure's figure, the trap's, the limit, and the reason or what was found."""
        if self._lost is not None:
            return CheckStatus.SKIPPED, None, None, None, self._lost
        try:
            missing = self._missing(trap)
            if missing is not None:
                return CheckStatus.SKIPPED, None, None, None, missing
            trap_value, value = self._figure(trap, trap.kernel), self._figure(trap, trap.cure)
            wrong = self._wrong_values(trap)
        except EnvironmentProblem as problem:
            hint = f" ({problem.hint})" if problem.hint else ""
            return CheckStatus.SKIPPED, None, None, None, f"{problem.message}{hint}"
        except ContextLost as error:
            self._lost = f"context lost: {trap.kernel.name} or {trap.cure.name} crashed"
            return CheckStatus.FAIL, None, None, None, error.message
        except AttnprofError as error:
            return CheckStatus.FAIL, None, None, None, error.message
        limit = self._limit(trap, trap_value)
        failure = wrong or _failure(trap, trap_value, value, limit)
        status = CheckStatus.PASS if failure is None else CheckStatus.FAIL
        return status, value, trap_value, limit, failure or f"{trap.wrong}; cure: {trap.remedy}"

    def _missing(self, trap: Trap) -> str | None:
        """Why this trap cannot be judged here."""
        if trap.quantity in _COUNTS and self.counter is None:
            return NO_COUNTER
        if trap.quantity is Quantity.WARPS_PER_SM and self._device.architecture is None:
            return f"{self.executor.arch} is not in the architecture table"
        for spec in (trap.kernel, trap.cure):
            reason = spec.runs_on(self._device.compute_capability) or spec.unsupported(trap.workload)
            if reason is not None:
                return reason
        # Of the trap alone: a cure that no longer fits has stopped curing.
        available = self._device.smem_per_block_bytes
        needed = max(launch.smem_bytes for launch in trap.kernel.plan(trap.workload, self._device).launches)
        if needed > available:
            return f"{trap.kernel.name} needs {needed:,} B of shared memory a block, {available:,} B available"
        return None

    def _figure(self, trap: Trap, spec: KernelSpec) -> int:
        self.progress(f"{trap.name}: {trap.quantity} of {spec.name}")
        if trap.quantity in _COUNTS:
            return _COUNTS[trap.quantity](self._count(trap, spec))
        if trap.quantity is Quantity.WARPS_PER_SM:
            return self._warps_per_sm(trap, spec)
        return self._not_finite(trap, spec)

    def _count(self, trap: Trap, spec: KernelSpec) -> Counted:
        key = (spec.name, trap.workload)
        if key not in self._counted:
            if self.counter is None:
                raise EnvironmentProblem(NO_COUNTER)
            inputs = inputs_for(spec, trap.workload, distribution=trap.distribution, seed=self.seed)
            self._counted[key] = self.counter.count(spec.plan(trap.workload, self._device), inputs)
        return self._counted[key]

    def _warps_per_sm(self, trap: Trap, spec: KernelSpec) -> int:
        """The fewest over the kernel's launches."""
        facts = self._device.architecture
        if facts is None:
            raise EnvironmentProblem(f"{self.executor.arch} is not in the architecture table")
        warps = []
        for launch in spec.plan(trap.workload, self._device).launches:
            entry = self.compiler.compile(launch.build, self.executor.arch).resources[launch.entry]
            found = occupancy(
                facts,
                threads=launch.threads,
                registers=entry.registers,
                smem_bytes=entry.static_smem_bytes + launch.smem_bytes,
                smem_per_sm_bytes=self._device.smem_per_sm_bytes,
            )
            warps.append(found.warps_per_sm)
        return min(warps)

    def _not_finite(self, trap: Trap, spec: KernelSpec) -> int:
        import numpy as np

        _, outputs = self._run(trap, spec)
        plan = spec.plan(trap.workload, self._device)
        values = (decode(output, plan.tensor(name).dtype) for name, output in outputs.items())
        return sum(int(np.count_nonzero(~np.isfinite(each))) for each in values)

    def _wrong_values(self, trap: Trap) -> str | None:
        """What either side computes wrong. A trap's own values are its affair where the inputs are to break it."""
        sides = (trap.kernel, trap.cure) if trap.distribution is Distribution.NORMAL else (trap.cure,)
        for spec in sides:
            verdict = judge(spec, trap.workload, *self._run(trap, spec))
            if not verdict.passed:
                return f"{spec.name} is wrong: {verdict.detail}"
        return None

    def _run(self, trap: Trap, spec: KernelSpec) -> tuple[Arrays, Arrays]:
        """Inputs and outputs of one run, outputs poisoned before it."""
        key = (spec.name, trap.workload, trap.distribution)
        if key not in self._outputs:
            self.progress(f"{trap.name}: values of {spec.name}")
            plan = spec.plan(trap.workload, self._device)
            inputs = inputs_for(spec, trap.workload, distribution=trap.distribution, seed=self.seed)
            self._outputs[key] = inputs, run_once(plan, inputs, self.executor)
        return self._outputs[key]

    def _limit(self, trap: Trap, trap_value: int) -> int:
        """What the cure may have at most, or of warps at least."""
        match trap.quantity:
            case Quantity.HBM_BYTES:
                return trap.cure.demand(trap.workload, self._device).hbm_bytes
            case Quantity.SECTORS:
                return -(-self._count(trap, trap.cure).global_bytes // SECTOR_BYTES)
            case Quantity.REQUESTS:
                return -(-self._count(trap, trap.cure).global_bytes // REQUEST_BYTES)
            case Quantity.EXPONENTIALS:
                return trap.cure.demand(trap.workload, self._device).exponentials * 11 // 10
            case Quantity.BARRIERS:
                return trap_value - 1
            case Quantity.WARPS_PER_SM:
                return trap_value + 1
            case _:
                return 0

    def _timed(self, trap: Trap, timer: Timer) -> tuple[Sequence[float | None], str | None]:
        self.progress(f"{trap.name}: timing {trap.kernel.name} beside {trap.cure.name}")
        try:
            times = timer((trap.kernel, trap.cure), trap.timed)
        except KernelFault as fault:
            if isinstance(fault, ContextLost):
                self._lost = f"context lost: {trap.kernel.name} or {trap.cure.name} crashed"
            raise
        except AttnprofError as error:
            return (None, None), error.message
        return times, "too short for the device's clock" if None in times else None


def _label(trap: Trap, workload: Workload) -> str:
    return workload_label(workload, trap.cure.operation)


def _failure(trap: Trap, trap_value: int, value: int, limit: int) -> str | None:
    """Why the cure no longer cures, or that there is nothing left to cure."""
    if trap.quantity is Quantity.WARPS_PER_SM:
        if value >= limit:
            return None
        return f"the cure does not cure: {trap.cure.name} has {value} {trap.quantity}, {trap.kernel.name} {trap_value}"
    if value > limit:
        return f"the cure does not cure: {trap.cure.name} has {value:,} {trap.quantity}, and may have {limit:,}"
    if trap_value <= limit:
        return f"nothing to cure: {trap.kernel.name} has {trap_value:,} {trap.quantity}, its cure may have {limit:,}"
    return None
