"""What a kernel asks of a device: the HBM ledger and the work for each unit, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Direction = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One line of the HBM ledger: a stage reads or writes ``bytes`` bytes of a tensor."""

    stage: str
    tensor: str
    direction: Direction
    bytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a stage's thread blocks meet the SMs; the part of the cost that a ceiling does not know.

    ``blocks`` thread blocks are launched, of which an SM holds ``blocks_per_sm`` at once. ``work`` says how unequal
    they are, in launch order: pairs of (number of consecutive blocks, relative work of each).
    """

    blocks: int
    blocks_per_sm: int
    work: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel launch, or ``launches`` alike one after another: the ledger lines and the demand on each unit.

    ``tensor_flops``: FLOPs on the tensor cores (2 a multiply-add). ``fp32_flops``: FLOPs on the FP32 lanes.
    ``exponentials``: exp2/exp evaluations on the special-function units. All of them are for all launches together;
    ``schedule`` is that of one.
    """

    name: str
    ledger: tuple[LedgerLine, ...]
    tensor_flops: int = 0
    fp32_flops: int = 0
    exponentials: int = 0
    schedule: Schedule | None = None
    launches: int = 1

    @property
    def hbm_bytes(self) -> int:
        """Bytes this stage moves to and from HBM."""
        return sum(line.bytes for line in self.ledger)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one kernel asks for on one workload: stages that run one after another.

    ``footprint_bytes`` is the device memory that must be allocated at once; ``intermediate_bytes`` is the part of
    it that is neither input nor output (S and P of three-kernel attention).
    """

    stages: tuple[Stage, ...]
    footprint_bytes: int
    intermediate_bytes: int = 0

    @property
    def ledger(self) -> Iterator[LedgerLine]:
        """Every ledger line, in execution order."""
        for stage in self.stages:
            yield from stage.ledger

    @property
    def hbm_bytes(self) -> int:
        """The predicted HBM traffic: the sum of the ledger."""
        return sum(stage.hbm_bytes for stage in self.stages)

    @property
    def tensor_flops(self) -> int:
        """Tensor-core FLOPs that the kernel executes."""
        return sum(stage.tensor_flops for stage in self.stages)

    @property
    def fp32_flops(self) -> int:
        """FLOPs on the FP32 lanes."""
        return sum(stage.fp32_flops for stage in self.stages)

    @property
    def exponentials(self) -> int:
        """Exponentials evaluated."""
        return sum(stage.exponentials for stage in self.stages)
