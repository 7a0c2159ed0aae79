"""The record of a run: totals, source lines, instruction kinds and tensors, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from attnprof.emulator.faults import Fault, source_line

if TYPE_CHECKING:
    from attnprof.emulator.counts import Counts
    from attnprof.emulator.link import Program
    from attnprof.emulator.program import Instruction
    from attnprof.emulator.wave import Geometry


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted, for a kernel, a line or an instruction kind.

    Attributes:
        warp_instructions: PTX instructions issued, one a warp (machine instructions are others, often fewer).
        thread_instructions: lanes that executed them, guards applied.
        global_requests: warp-wide requests to global memory, atomics and asynchronous copies included.
        global_sectors: 32-byte sectors that they touched.
        global_bytes: bytes that lanes asked for; global_useful_bytes counts a byte once a request.
        shared_requests: warp-wide requests to shared memory.
        shared_wavefronts: passes that they took; shared_ideal_wavefronts is what they would take without conflicts.
        local_requests: warp-wide requests to local memory (spilled or indexed arrays).
        matrix_flops: FLOPs of mma instructions, 2 a multiply-add.
        exponentials: ex2 evaluations.
        barriers: barriers passed, one a block.
        divergent_branches: branches at which the lanes of a warp parted, one a warp.
    """

    warp_instructions: int = 0
    thread_instructions: int = 0
    global_requests: int = 0
    global_sectors: int = 0
    global_bytes: int = 0
    global_useful_bytes: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_ideal_wavefronts: int = 0
    local_requests: int = 0
    matrix_flops: int = 0
    exponentials: int = 0
    barriers: int = 0
    divergent_branches: int = 0

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts beyond those that the requests need."""
        return self.shared_wavefronts - self.shared_ideal_wavefronts

    @property
    def coalescing_efficiency(self) -> float | None:
        """Useful bytes of all bytes in the sectors touched, 0 … 1; None without global requests."""
        return self.global_useful_bytes / (32 * self.global_sectors) if self.global_sectors else None

    def as_json(self) -> dict[str, int | float | None]:
        """The counters and what follows from them."""
        return asdict(self) | {
            "bank_conflicts": self.bank_conflicts,
            "coalescing_efficiency": self.coalescing_efficiency,
        }

    @classmethod
    def total(cls, parts: Iterable[Counters]) -> Counters:
        """The sum."""
        found = list(parts)
        return cls(**{f.name: sum(getattr(p, f.name) for p in found) for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class LineTrace:
    """The counters of one source line. ``source`` is its text."""

    file: str
    line: int
    source: str
    counters: Counters


@dataclass(frozen=True, slots=True)
class TensorTrace:
    """One tensor's traffic in one kernel: bytes touched at least once, bytes asked for, sectors moved to or from L1."""

    name: str
    unique_read_bytes: int
    unique_write_bytes: int
    read_bytes: int
    write_bytes: int
    read_sectors: int
    write_sectors: int


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """One launch. ``kinds`` holds the counters by opcode, e.g. ``mma.sync`` or ``ld.shared``."""

    stage: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    counters: Counters
    lines: tuple[LineTrace, ...]
    kinds: Mapping[str, Counters]
    tensors: tuple[TensorTrace, ...]

    def tensor(self, name: str) -> TensorTrace:
        """The tensor of that name."""
        return next(t for t in self.tensors if t.name == name)

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "stage": self.stage,
            "kernel": self.kernel,
            "grid": list(self.grid),
            "block": list(self.block),
            **self.counters.as_json(),
            "lines": [
                {"file": line.file, "line": line.line, "source": line.source, **line.counters.as_json()}
                for line in self.lines
            ],
            "kinds": {kind: counters.as_json() for kind, counters in self.kinds.items()},
            "tensors": [asdict(tensor) for tensor in self.tensors],
        }


@dataclass(frozen=True, slots=True)
class Trace:
    """What one launch of a plan did: ``kernels`` if the run counts, ``faults`` if something is wrong.

    ``printed`` is what the kernels wrote with printf, the first 1000 calls. ``stopped``: a fault ended the run, and
    with it the counting.
    """

    kernels: tuple[KernelTrace, ...]
    faults: tuple[Fault, ...]
    printed: str = ""
    stopped: bool = False

    @property
    def counters(self) -> Counters:
        """The sum over all kernels."""
        return Counters.total(kernel.counters for kernel in self.kernels)

    def as_json(self) -> dict[str, object]:
        """Plain values for a JSON object."""
        return {
            "totals": self.counters.as_json(),
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "faults": [fault.as_json() for fault in self.faults],
            "printed": self.printed or None,
        }


def kernel_trace(stage: str, program: Program, geometry: Geometry, counts: Counts) -> KernelTrace:
    """Sum up the counters of a launch by line and by kind."""
    by_line: dict[tuple[str, int], list[Counters]] = {}
    by_kind: dict[str, list[Counters]] = {}
    everything: list[Counters] = []
    for pc, i in enumerate(program.instructions):
        if not counts.warps[pc]:
            continue
        counters = Counters(
            warp_instructions=counts.warps[pc],
            thread_instructions=counts.lanes[pc],
            global_requests=counts.global_requests[pc],
            global_sectors=counts.global_sectors[pc],
            global_bytes=counts.global_bytes[pc],
            global_useful_bytes=counts.global_useful_bytes[pc],
            shared_requests=counts.shared_requests[pc],
            shared_wavefronts=counts.shared_wavefronts[pc],
            shared_ideal_wavefronts=counts.shared_ideal[pc],
            local_requests=counts.local_requests[pc],
            matrix_flops=counts.flops[pc],
            exponentials=counts.lanes[pc] * (2 if i.mods[-1:] in (("f16x2",), ("bf16x2",)) else 1) * (i.op == "ex2"),
            barriers=counts.barriers[pc],
            divergent_branches=counts.divergent[pc],
        )
        everything.append(counters)
        by_line.setdefault((i.position.file, i.position.line), []).append(counters)
        by_kind.setdefault(kind_of(i), []).append(counters)
    lines = tuple(
        LineTrace(file, line, source_line(file, line), Counters.total(parts))
        for (file, line), parts in sorted(by_line.items())
    )
    return KernelTrace(
        stage,
        program.entry.name,
        geometry.grid,
        geometry.block,
        Counters.total(everything),
        lines,
        {kind: Counters.total(parts) for kind, parts in sorted(by_kind.items())},
        tuple(
            TensorTrace(
                allocation.name,
                _marked(allocation.reads),
                _marked(allocation.writes),
                tally.read_bytes,
                tally.write_bytes,
                tally.read_sectors,
                tally.write_sectors,
            )
            for allocation in counts.allocations
            for tally in (counts.tensors[id(allocation)],)
        ),
    )


def kind_of(i: Instruction) -> str:
    """What instructions are grouped by: the operation and the state space or variant that matters."""
    words = [m for m in i.mods if m in ("global", "shared", "local", "const", "param", "sync", "async", "approx")]
    return ".".join((i.op, *words))


def _marked(marks: np.ndarray[tuple[int], np.dtype[np.uint8]] | None) -> int:
    return 0 if marks is None else int(np.count_nonzero(marks))
