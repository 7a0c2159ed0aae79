"""Calls into the device runtime: printf and assert."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from attnprof.emulator.decoder import Decoder
from attnprof.emulator.faults import FaultKind
from attnprof.emulator.lanes import Active
from attnprof.emulator.ops.access import gather, resolve
from attnprof.emulator.program import Instruction

# flags, width, precision, length, conversion
_CONVERSION = re.compile(r"%([-+ #0]*)(\d{0,3})(\.\d{1,3})?(hh|h|ll|l|z|j|t)?([diouxXfFeEgGaAcsp%])")
MAX_STRING = 4096
MAX_LINES = 1000


def system_call(d: Decoder, i: Instruction, name: str, ins: list[str], outs: list[str]) -> Any:
    """How to carry out a call to the runtime, or None if it is no such call.

    Raises:
        UnsupportedPtx: a call of the runtime that the emulator lacks, such as malloc.
    """
    if name == "vprintf" and len(ins) == 2 and len(outs) == 1:
        return lambda x: _printf(x, ins, outs[0])
    if name == "__assertfail" and ins:
        return lambda x: _assert_failed(x, ins[0])
    if name in ("malloc", "free"):
        raise d.unsupported(i, f"the call of {name}")
    return None


def _pointer(x: Active, slot: str) -> Any:
    rows = x.frame.params[slot]
    rows = rows if x.lanes is None else rows[x.lanes]
    return np.ascontiguousarray(rows[:, :8]).reshape(-1).view(np.uint64)


def _bytes(x: Active, addresses: Any, nbytes: int) -> bytes:
    chunks = resolve(x, "generic", addresses, nbytes, "reads")
    return gather(x, chunks, nbytes, 1).tobytes()


def _text(x: Active, address: int) -> str:
    data = bytearray()
    while len(data) < MAX_STRING:
        byte = _bytes(x, np.array([address + len(data)], np.uint64), 1)
        if byte == b"\0":
            break
        data += byte
    return data.decode("utf-8", errors="replace")


def _assert_failed(x: Active, slot: str) -> list[Active]:
    one = x.subset(np.arange(x.n) == 0)
    what = _text(one, int(_pointer(one, slot)[0]))
    raise x.wave.fault(x, FaultKind.TRAP, f"assertion failed: {what}", int(x.lane_ids()[0]))


def _printf(x: Active, ins: list[str], out: str) -> list[Active]:
    """Format lane after lane; the lines are kept in the wave for the trace."""
    formats, arguments = _pointer(x, ins[0]), _pointer(x, ins[1])
    printed = x.wave.printed
    for lane in range(x.n):
        if len(printed) < MAX_LINES:
            one = x.subset(np.arange(x.n) == lane)
            printed.append(_format(one, _text(one, int(formats[lane])), int(arguments[lane])))
    x.frame.params[out][x.lane_ids(), :4] = 0
    x.pc += 1
    return [x]


def _format(x: Active, text: str, arguments: int) -> str:
    at = arguments

    def conversion(found: re.Match[str]) -> str:
        nonlocal at
        flags, width, precision, length, kind = found.groups(default="")
        if kind == "%":
            return "%"
        wide = kind in "fFeEgGaAsp" or length in ("l", "ll", "z", "j", "t")
        nbytes = 8 if wide else 4
        at = -(-at // nbytes) * nbytes
        raw = _bytes(x, np.array([at], np.uint64), nbytes)
        at += nbytes
        spec = f"%{flags}{width}{precision}"
        if kind in "fFeEgGaA":
            value = struct.unpack("<d", raw)[0]
            return str(value.hex() if kind in "aA" else (spec + kind) % value)
        number = int.from_bytes(raw, "little", signed=kind in "di")
        if kind == "s":
            return (spec + "s") % _text(x, number)
        if kind == "c":
            return chr(number & 255)
        return f"{number:#x}" if kind == "p" else (spec + kind.replace("u", "d")) % number

    return _CONVERSION.sub(conversion, text)
