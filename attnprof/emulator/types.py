"""The fundamental types of PTX and the NumPy types that hold and compute them.

A register holds an unsigned bit pattern of its width; an instruction views it as the type that it names (PTX ISA,
section "Types"). The packed and alternate formats have no NumPy type: they stay bit patterns, and the instruction
families unpack them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprof.emulator.errors import UnsupportedPtx

_STORAGE = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True, slots=True)
class PtxType:
    """One type. ``kind`` is ``u``, ``s``, ``f`` (IEEE), ``b`` (bits and packed formats) or ``p`` (predicate)."""

    name: str
    bits: int
    kind: str
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Size in bytes; a predicate takes one."""
        return max(1, self.bits // 8)

    @property
    def storage(self) -> np.dtype[Any]:
        """The unsigned type of a register of this width."""
        return np.dtype(_STORAGE[self.bits])


def _table() -> dict[str, PtxType]:
    table = {"pred": PtxType("pred", 1, "p", np.dtype(np.bool_))}
    for bits in (8, 16, 32, 64):
        table[f"u{bits}"] = PtxType(f"u{bits}", bits, "u", np.dtype(f"u{bits // 8}"))
        table[f"s{bits}"] = PtxType(f"s{bits}", bits, "s", np.dtype(f"i{bits // 8}"))
        table[f"b{bits}"] = PtxType(f"b{bits}", bits, "b", np.dtype(f"u{bits // 8}"))
    for bits in (16, 32, 64):
        table[f"f{bits}"] = PtxType(f"f{bits}", bits, "f", np.dtype(f"f{bits // 8}"))
    for name, bits in {
        "bf16": 16,
        "f16x2": 32,
        "bf16x2": 32,
        "tf32": 32,
        "u16x2": 32,
        "s16x2": 32,
        "e4m3": 8,
        "e5m2": 8,
        "e4m3x2": 16,
        "e5m2x2": 16,
    }.items():
        table[name] = PtxType(name, bits, "b", np.dtype(f"u{bits // 8}"))
    return table


TYPES = _table()


def type_named(name: str) -> PtxType:
    """The type of that name, without its dot.

    Raises:
        UnsupportedPtx: no such type here.
    """
    try:
        return TYPES[name]
    except KeyError:
        raise UnsupportedPtx(f"the PTX type .{name} is not emulated") from None
