"""What can go wrong when PTX is read or executed, beyond the faults of the kernel itself."""

from __future__ import annotations

from attnprof.model.errors import AttnprofError


class PtxError(AttnprofError):
    """PTX that cannot be read: truncated, garbled, or against the rules of the language."""


class UnsupportedPtx(PtxError):
    """PTX that is right but that the emulator does not execute, such as a missing opcode."""
