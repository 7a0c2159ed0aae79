"""State spaces: global allocations at addresses of their own, shared memory a row a block, local memory a row a lane.

Every global allocation (a tensor, a module variable, the kernel's parameters) gets a terabyte of addresses of its own
and lies in the middle of it: an index that runs off either end, even by 2^32 elements, meets no other allocation, so
the fault can name the tensor and the distance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOT_BITS = 40
SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 2 << 56
FUNCTION_WINDOW = 3 << 56
_WINDOW_MASK = (1 << 56) - 1
FIRST_TENSOR_SLOT = 4096
PARAM_SLOT = 4095
POISON = 0xFF

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]


def slot_base(slot: int) -> int:
    """The address of the first byte of a slot's allocation."""
    return (slot << SLOT_BITS) + (1 << (SLOT_BITS - 1))


def padded(size: int, to: int = 16) -> int:
    """The next multiple."""
    return -(-size // to) * to


class Storage:
    """Bytes that loads and stores reach, with the shadow state that the observers attach.

    Attributes:
        name: what a fault calls it.
        space: ``global``, ``shared``, ``local`` or ``const``.
        data: the bytes, padded to a multiple of 16.
        written: per byte 0xFF once something wrote it; None when nobody watches.
        reads, writes: per byte 0xFF once a kernel touched it; None when nobody counts.
    """

    def __init__(self, name: str, space: str, size: int, *, read_only: bool = False) -> None:
        self.name = name
        self.space = space
        self.size = size
        self.read_only = read_only
        self.data: Bytes = np.zeros(padded(max(size, 1)), np.uint8)
        self.written: Bytes | None = None
        self.reads: Bytes | None = None
        self.writes: Bytes | None = None
        self._views: dict[tuple[int, int, int], NDArray[Any]] = {}

    def view(self, data: Bytes, width: int, count: int = 1) -> NDArray[Any]:
        """``data`` as elements of ``width`` bytes, in rows of ``count`` when that is more than one."""
        key = (id(data), width, count)
        found = self._views.get(key)
        if found is None:
            found = data.view(f"u{width}")
            if count > 1:
                found = found.reshape(-1, count)
            self._views[key] = found
        return found

    def watch_touches(self) -> None:
        """Start to keep track, byte by byte, of what a kernel reads and writes."""
        self.reads = np.zeros(self.data.size, np.uint8)
        self.writes = np.zeros(self.data.size, np.uint8)
        self._views.clear()

    def replace(self, data: Bytes) -> None:
        """Exchange the bytes, e.g. for more of them."""
        self.data = data
        self._views.clear()


class Allocation(Storage):
    """A global allocation at its own addresses."""

    def __init__(self, name: str, space: str, size: int, slot: int, *, read_only: bool = False) -> None:
        super().__init__(name, space, size, read_only=read_only)
        self.base = slot_base(slot)
        self.initialised = False

    def watch_writes(self) -> None:
        """Start to keep track, byte by byte, of what has been written."""
        self.written = np.full(self.data.size, 0xFF if self.initialised else 0, np.uint8)
        self._views.clear()


class BadAccess(Exception):
    """An access that no storage can serve: which of the lanes, and why. The memory operations turn it into a fault."""

    def __init__(self, kind: str, message: str, index: int, address: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.index = index
        self.address = address


class GlobalSpace:
    """All global allocations by slot."""

    def __init__(self, allocations: dict[int, Allocation]) -> None:
        self.slots = allocations

    @property
    def writable(self) -> list[Allocation]:
        """Tensors and variables that kernels may write."""
        return [allocation for allocation in self.slots.values() if not allocation.read_only]

    def locate(
        self, addresses: NDArray[np.uint64], nbytes: int
    ) -> list[tuple[Storage, Offsets, NDArray[np.bool_] | None]]:
        """The storage and offsets of each address: (storage, offsets, which of the addresses or None for all).

        Raises:
            BadAccess: an address lies in no allocation, or is no multiple of ``nbytes``.
        """
        allocation = self.slots.get(int(addresses[0]) >> SLOT_BITS)
        if allocation is not None and allocation.size >= nbytes:
            offsets = addresses - np.uint64(allocation.base)
            if int(offsets.max()) <= allocation.size - nbytes:
                if nbytes > 1 and int(np.bitwise_or.reduce(offsets)) & (nbytes - 1):
                    self._misaligned(addresses, nbytes)
                return [(allocation, offsets.view(np.int64), None)]
        return self._split(addresses, nbytes)

    def _split(
        self, addresses: NDArray[np.uint64], nbytes: int
    ) -> list[tuple[Storage, Offsets, NDArray[np.bool_] | None]]:
        slots = addresses >> np.uint64(SLOT_BITS)
        found: list[tuple[Storage, Offsets, NDArray[np.bool_] | None]] = []
        for slot in np.unique(slots):
            here = slots == slot
            allocation = self.slots.get(int(slot))
            if allocation is None:
                index = int(np.flatnonzero(here)[0])
                address = int(addresses[index])
                what = "the null pointer" if address < 1 << 16 else "no tensor"
                raise BadAccess("bounds", f"{nbytes} bytes at an address that belongs to {what}", index, address)
            offsets = (addresses - np.uint64(allocation.base)).view(np.int64)
            bad = here & ((offsets < 0) | (offsets > allocation.size - nbytes))
            if bad.any():
                index = int(np.flatnonzero(bad)[0])
                raise BadAccess(
                    "bounds", _distance(allocation, int(offsets[index]), nbytes), index, int(addresses[index])
                )
            found.append((allocation, offsets[here], here))
        if nbytes > 1 and int(np.bitwise_or.reduce(addresses)) & (nbytes - 1):
            self._misaligned(addresses, nbytes)
        return found

    @staticmethod
    def _misaligned(addresses: NDArray[np.uint64], nbytes: int) -> None:
        index = int(np.flatnonzero(addresses & np.uint64(nbytes - 1))[0])
        raise BadAccess(
            "alignment", f"{nbytes} bytes at an address that is no multiple of {nbytes}", index, int(addresses[index])
        )


def _distance(storage: Storage, offset: int, nbytes: int) -> str:
    what = f"{storage.name} ({storage.size} bytes)"
    if offset < 0:
        return f"{nbytes} bytes, {-offset} bytes before the start of {what}"
    past = offset - storage.size
    if past < 0:
        return f"{nbytes} bytes, {offset + nbytes - storage.size} of them past the end of {what}"
    return f"{nbytes} bytes, {past} bytes past the end of {what}"


class RowSpace(Storage):
    """Shared or local memory: one row a block or a lane; addresses count from the row's start."""

    def __init__(self, name: str, space: str, size: int, rows: int) -> None:
        super().__init__(name, space, 0)
        self.size = size
        self.rows = rows
        self.stride = padded(size)
        self.replace(np.full(rows * self.stride, POISON, np.uint8))

    def grow(self, size: int) -> None:
        """Make every row at least ``size`` bytes long, keeping what is there."""
        if size <= self.size:
            return
        stride = padded(size)
        data = np.full((self.rows, stride), POISON, np.uint8)
        if self.stride:
            data[:, : self.stride] = self.data.reshape(self.rows, self.stride)
        self.size, self.stride = size, stride
        self.replace(data.reshape(-1))

    def locate(self, addresses: NDArray[np.uint64], rows: Offsets, nbytes: int) -> Offsets:
        """Offsets into ``data`` of addresses within the given rows.

        Raises:
            BadAccess: an address is outside its row, or no multiple of ``nbytes``.
        """
        last = self.size - nbytes
        if last < 0 or int(addresses.max()) > last:
            bad = addresses > max(last, -1) if last >= 0 else np.ones(addresses.size, np.bool_)
            index = int(np.flatnonzero(bad)[0])
            address = int(addresses[index])
            raise BadAccess(
                "bounds", _distance(self, address if address < 1 << 62 else address - (1 << 64), nbytes), index, address
            )
        if nbytes > 1 and int(np.bitwise_or.reduce(addresses)) & (nbytes - 1):
            index = int(np.flatnonzero(addresses & np.uint64(nbytes - 1))[0])
            raise BadAccess(
                "alignment",
                f"{nbytes} bytes of {self.space} memory at an address that is no multiple of {nbytes}",
                index,
                int(addresses[index]),
            )
        return addresses.view(np.int64) + rows * self.stride


Locator = Callable[[NDArray[np.uint64], int], list[tuple[Storage, Offsets, NDArray[np.bool_] | None]]]
