"""How a kernel is built and launched: plain records that a GPU and the emulator both execute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnprof.model.dtypes import Dtype

Dim3 = tuple[int, int, int]
Role = Literal["in", "out", "scratch"]
ScalarKind = Literal["i32", "i64", "f32"]


@dataclass(frozen=True, slots=True)
class Build:
    """One compilation: a ``.cu`` file and the ``-D`` macros that choose its variant.

    ``file`` is an absolute path; ``#include "common/…"`` resolves from its folder first, then from the project's
    ``kernels_cu``. ``defines`` are (macro, value) pairs in a fixed order, so equal builds compare equal.
    """

    file: Path
    defines: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A device tensor, row-major. ``in`` is uploaded, ``out`` is read back and verified, ``scratch`` is neither."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    role: Role

    @property
    def elements(self) -> int:
        """Number of elements."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel argument: the device address of a tensor's first element."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A kernel argument passed by value; ``kind`` fixes its width, so that no Python type is ever guessed."""

    kind: ScalarKind
    value: int | float


Arg = Pointer | Scalar


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. ``smem_bytes`` is dynamic shared memory; ``stage`` names the ledger stage it carries out."""

    stage: str
    build: Build
    entry: str
    grid: Dim3
    block: Dim3
    smem_bytes: int
    args: tuple[Arg, ...]

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Thread blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything needed to run a kernel on a workload: its tensors, and its launches in order."""

    tensors: tuple[TensorSpec, ...]
    launches: tuple[Launch, ...]

    @property
    def footprint_bytes(self) -> int:
        """Device memory that all tensors take together."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def tensor(self, name: str) -> TensorSpec:
        """The tensor of that name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)
