"""The traps of the field, each beside its cure: what falling in costs, and whether the cure still cures.

A trap is two kernels that compute the same, one of them with something wrong, and the quantity that shows it. The
verdict needs no clock. Conflicts, bytes, requests and the like are counted on the emulator, warps follow from what
ptxas reports, and values come from wherever kernels run; time is measured on a GPU and is reported, not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from attnprof.kernels.catalogue import select
from attnprof.kernels.inputs import Distribution
from attnprof.kernels.spec import KernelSpec
from attnprof.model.workload import Workload


class Quantity(StrEnum):
    """What shows a trap; the value is its unit.

    ``BANK_CONFLICTS``: passes of shared-memory requests beyond those needed; a cure has none. ``HBM_BYTES``: of all
    tensors; a cure moves what its ledger says, and less than the trap. ``SECTORS``: of 32 bytes, that requests to
    global memory touch; a cure fills them with the bytes that it asks for. ``REQUESTS``: of a warp to global memory; a
    cure asks for 512 bytes in each. ``BARRIERS``: that blocks pass; a cure has fewer. ``EXPONENTIALS``: that are
    evaluated; a cure has those of its demand, and a tenth more at most where partial sums are merged.
    ``WARPS_PER_SM``: that can be resident; a cure has more. ``NOT_FINITE``: NaN and infinite elements of the output; a
    cure has none, and is right.
    """

    BANK_CONFLICTS = "bank conflicts"
    HBM_BYTES = "HBM bytes"
    SECTORS = "32-byte sectors"
    REQUESTS = "memory requests"
    BARRIERS = "barriers"
    EXPONENTIALS = "exponentials"
    WARPS_PER_SM = "warps per SM"
    NOT_FINITE = "NaN or Inf values"


@dataclass(frozen=True, slots=True)
class Trap:
    """A mistake and its cure.

    Attributes:
        name: of the mistake.
        wrong: what is wrong, in a line.
        remedy: what the cure does, in a line.
        kernel: falls into the trap.
        cure: computes the same and does not.
        quantity: what shows the difference.
        workload: where it is counted: small, since an emulator may have to run it.
        timed: where it is timed: large enough to fill a GPU.
        distribution: of the inputs where it is counted. Beyond ``NORMAL`` the trap's own values are not verified.
    """

    name: str
    wrong: str
    remedy: str
    kernel: KernelSpec
    cure: KernelSpec
    quantity: Quantity
    workload: Workload
    timed: Workload
    distribution: Distribution = Distribution.NORMAL


# Whole tiles, so that the ledger counts what is moved; two and more of each.
_COUNTED = Workload.of(256, heads=1)
_TIMED = Workload.of(4096, heads=32)


def _matrix(rows: int, columns: int) -> Workload:
    return Workload.of(rows, seq_kv=columns, heads=1)


# Rows of whole chunks for whole warps, 8 of them and more a block; and short ones, a warp each.
_COUNTED_ROWS, _TIMED_ROWS = _matrix(8, 16_384), _matrix(8192, 16_384)
_COUNTED_SHORT, _TIMED_SHORT = _matrix(16, 1024), _matrix(131_072, 1024)


def all_traps() -> tuple[Trap, ...]:
    """Those of kernels that the project has."""
    fa2, unsafe, safe, online, fused = select(
        ("fa2", "softmax-naive", "softmax-safe", "softmax-online", "softmax-fused")
    )

    def of_fa2(name: str, wrong: str, remedy: str, variant: str, quantity: Quantity, cure: KernelSpec = fa2) -> Trap:
        return Trap(name, wrong, remedy, fa2.variant(variant), cure, quantity, _COUNTED, _TIMED)

    def of_safe(name: str, wrong: str, remedy: str, variant: str, quantity: Quantity) -> Trap:
        return Trap(name, wrong, remedy, safe.variant(variant), safe, quantity, _COUNTED_ROWS, _TIMED_ROWS)

    conflicts = Quantity.BANK_CONFLICTS
    plain = "tile rows a multiple of 128 bytes apart: the rows of a fragment share their banks"
    return (
        of_fa2("no swizzle", plain, "XOR the chunk with the row", "plain", conflicts),
        of_fa2("no padding", plain, "pad each row by 8 halves", "plain", conflicts, fa2.variant("pad")),
        of_fa2("P in HBM", "P is kept for a debugger", "P stays on chip", "write-p", Quantity.HBM_BYTES),
        of_fa2(
            "oversized tile",
            "256 keys a tile leave an SM one block",
            "64 keys or fewer, two blocks an SM",
            "tile-256",
            Quantity.WARPS_PER_SM,
        ),
        Trap(
            "no maximum",
            "exp(x) overflows",
            "exp(x - max)",
            unsafe,
            safe,
            Quantity.NOT_FINITE,
            _matrix(16, 1000),
            _TIMED_ROWS,
            Distribution.LARGE_LOGITS,
        ),
        Trap(
            "no maximum, fused",
            "exp(x) overflows, and nothing is saved: the row is in registers anyway",
            "exp(x - max)",
            fused.variant("no-max"),
            fused,
            Quantity.NOT_FINITE,
            _matrix(16, 1000),
            _TIMED_SHORT,
            Distribution.LARGE_LOGITS,
        ),
        Trap(
            "lanes apart",
            "each lane goes through 16 bytes of its own an element at a time",
            "16 bytes a lane at once",
            fused.variant("scalar"),
            fused,
            Quantity.SECTORS,
            _COUNTED_SHORT,
            _TIMED_SHORT,
        ),
        of_safe("narrow access", "an element a lane", "16 bytes a lane", "narrow", Quantity.REQUESTS),
        of_safe(
            "tree of barriers",
            "a block is reduced in shared memory, a barrier a level",
            "shuffles in a warp, one barrier for all warps",
            "tree",
            Quantity.BARRIERS,
        ),
        of_safe(
            "interleaved tree",
            "neighbours first: the active lanes move apart until they share a bank",
            "shuffles in a warp",
            "interleaved",
            conflicts,
        ),
        Trap(
            "rescale each element",
            "the running sum is carried to the new maximum for each element",
            "once for a batch of 64",
            online.variant("per-element"),
            online,
            Quantity.EXPONENTIALS,
            _COUNTED_ROWS,
            _TIMED_ROWS,
        ),
    )
