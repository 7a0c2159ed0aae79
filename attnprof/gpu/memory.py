"""Device memory: raw allocations that are given back at once, and copies through pinned memory."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

from attnprof.gpu.faults import OUT_OF_MEMORY, cuda_errors
from attnprof.model.errors import OutOfMemory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Large enough that a copy runs at full PCIe speed, small enough that the first one starts soon.
_CHUNK_BYTES = 32 * 2**20


class Block:
    """Device memory from cudaMalloc. Not pooled: what one run frees, the next one finds free."""

    def __init__(self, nbytes: int) -> None:
        from cupy.cuda import runtime

        self.nbytes = nbytes
        try:
            self.address = int(runtime.malloc(nbytes))
        except cuda_errors() as error:
            if getattr(error, "status", None) != OUT_OF_MEMORY:
                raise
            raise OutOfMemory(nbytes, free_bytes()) from error

    def free(self) -> None:
        """Give it back; a second call does nothing, and neither does one after the context was lost."""
        from cupy.cuda import runtime

        address, self.address = self.address, 0
        if address:
            try:
                runtime.free(address)
            except cuda_errors():
                # Only a lost context refuses, and the driver frees everything of a lost context itself.
                return


def free_bytes() -> int:
    """What the device has free, with every cache of this process emptied first."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # The tensors of a peer that failed can hang in the cycles of its traceback.
        gc.collect()
        torch.cuda.empty_cache()
    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free)


class Copier:
    """Copies between NumPy arrays and the device through two pinned buffers, so that both sides stay busy."""

    def __init__(self, stream: Any) -> None:
        import cupy
        import numpy as np

        self._stream = stream
        self._pinned = [cupy.cuda.alloc_pinned_memory(_CHUNK_BYTES) for _ in range(2)]
        self._buffers = [np.frombuffer(pinned, np.uint8, _CHUNK_BYTES) for pinned in self._pinned]
        self._done = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def upload(self, address: int, array: NDArray[np.generic]) -> None:
        """Copy a C-contiguous array to ``address`` and wait."""
        from cupy.cuda import runtime

        data = _bytes_of(array)
        for index, start in enumerate(range(0, data.size, _CHUNK_BYTES)):
            slot = index % 2
            size = min(_CHUNK_BYTES, data.size - start)
            self._done[slot].synchronize()
            self._buffers[slot][:size] = data[start : start + size]
            runtime.memcpyAsync(
                address + start, self._pinned[slot].ptr, size, runtime.memcpyHostToDevice, self._stream.ptr
            )
            self._done[slot].record(self._stream)
        self._stream.synchronize()

    def download(self, array: NDArray[np.generic], address: int) -> None:
        """Fill a C-contiguous array from ``address``."""
        from cupy.cuda import runtime

        data = _bytes_of(array)
        arriving: list[tuple[int, int, int]] = []
        for index, start in enumerate(range(0, data.size, _CHUNK_BYTES)):
            slot = index % 2
            size = min(_CHUNK_BYTES, data.size - start)
            if len(arriving) == 2:
                self._land(data, *arriving.pop(0))
            runtime.memcpyAsync(
                self._pinned[slot].ptr, address + start, size, runtime.memcpyDeviceToHost, self._stream.ptr
            )
            self._done[slot].record(self._stream)
            arriving.append((slot, start, size))
        for chunk in arriving:
            self._land(data, *chunk)

    def _land(self, data: NDArray[np.uint8], slot: int, start: int, size: int) -> None:
        self._done[slot].synchronize()
        data[start : start + size] = self._buffers[slot][:size]


def _bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    import numpy as np

    return array.reshape(-1).view(np.uint8)
