"""What a kernel did wrong, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from attnprof.model.errors import KernelFault


class FaultKind(StrEnum):
    """The kinds of fault that are found and told apart."""

    OUT_OF_BOUNDS = "out-of-bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED = "uninitialised-read"
    RACE = "data-race"
    ASYNC_UNWAITED = "async-copy-unwaited"
    DIVERGENT_BARRIER = "divergent-barrier"
    DIVERGENT_COLLECTIVE = "divergent-collective"
    DEADLOCK = "deadlock"
    NAN_BORN = "nan-born"
    READ_ONLY = "read-only-write"
    TRAP = "trap"
    BUDGET = "instruction-budget"
    STACK = "stack-overflow"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, as it was first seen. ``block`` and ``thread`` are indices (x, y, z); what does not apply is ``None``.

    ``inner`` is the file and line inside an inlined function, where ``line`` is that of the call. ``other`` is the file
    and line of a race's other access. ``count`` is how many executed instructions showed the same fault (`key`).
    """

    kind: FaultKind
    message: str
    kernel: str
    file: str
    line: int
    opcode: str
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    address: int | None = None
    inner: tuple[str, int] | None = None
    other: tuple[str, int] | None = None
    count: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """What faults have in common that are one mistake: the kind, the kernel, the line, and a race's other line."""
        return self.kind, self.kernel, self.file, self.line, self.line or self.opcode, self.other

    @property
    def source(self) -> str:
        """The text of the source line, or nothing if the file cannot be read."""
        return source_line(self.file, self.line)

    @property
    def where(self) -> str:
        """``kernels_cu/fa2.cu:88 `…```, as far as it is known."""
        if not self.line:
            return f"an unknown line ({self.opcode})"
        text = self.source
        inside = f" (inlined from {Path(self.inner[0]).name}:{self.inner[1]})" if self.inner is not None else ""
        return f"{_shown(self.file)}:{self.line}" + (f" `{text}`" if text else "") + inside

    def __str__(self) -> str:
        at = ""
        if self.block is not None:
            at += f", block {_coordinates(self.block)}"
        if self.thread is not None:
            at += f", thread {_coordinates(self.thread)}"
        if self.address is not None:
            at += f", address {self.address:#x}"
        return f"{self.kernel}: {self.kind}: {self.message} at {self.where}{at}"

    def as_json(self) -> dict[str, object]:
        """Plain values for a JSON object."""
        return {
            "kind": str(self.kind),
            "message": self.message,
            "kernel": self.kernel,
            "file": self.file,
            "line": self.line or None,
            "source": self.source or None,
            "other_file": self.other[0] if self.other else None,
            "other_line": self.other[1] if self.other else None,
            "count": self.count,
            "opcode": self.opcode,
            "block": self.block,
            "thread": self.thread,
            "address": self.address,
        }


class EmulatedFault(KernelFault):
    """A kernel fault that the emulator found. ``fault`` says all that is known about it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def grouped(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The first fault of each `Fault.key`, with the count of all: an unrolled loop repeats one mistake often."""
    found: dict[tuple[object, ...], Fault] = {}
    for fault in faults:
        first = found.get(fault.key)
        found[fault.key] = fault if first is None else replace(first, count=first.count + fault.count)
    return tuple(found.values())


def source_line(file: str, line: int) -> str:
    """A line of a source file without its indentation; empty if there is no such file or line."""
    if not file or line < 1:
        return ""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return lines[line - 1].strip() if line <= len(lines) else ""


def _shown(file: str) -> str:
    """A path from the working directory where that is shorter."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _coordinates(xyz: tuple[int, int, int]) -> str:
    return f"({xyz[0]}, {xyz[1]}, {xyz[2]})"
