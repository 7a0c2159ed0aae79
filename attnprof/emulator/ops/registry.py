"""The table of opcodes: each instruction family registers how it decodes its instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.lanes import Active, AnyArray

if TYPE_CHECKING:
    from attnprof.emulator.program import Instruction


class Flow(IntEnum):
    """How the scheduler treats a step."""

    PLAIN = 0
    # A warp-wide operation: its lanes must have come together first.
    COLLECTIVE = 1
    # The step itself says which groups go on, and where.
    CONTROL = 2


Step = Callable[..., object]


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """A warp-wide operation; ``members`` gives each lane the mask of the lanes that it waits for (None: all)."""

    run: Callable[[Active], None]
    members: Callable[[Active], AnyArray] | None = None

    def __call__(self, x: Active) -> None:
        """Execute it, the lanes having come together."""
        self.run(x)


DecodeOp = Callable[[Decoder, "Instruction"], Step]

OPS: dict[str, tuple[DecodeOp, Flow]] = {}


def op(*names: str, flow: Flow = Flow.PLAIN) -> Callable[[DecodeOp], DecodeOp]:
    """Register the decoder of these opcodes (their first word)."""

    def register(function: DecodeOp) -> DecodeOp:
        for name in names:
            OPS[name] = (function, flow)
        return function

    return register
