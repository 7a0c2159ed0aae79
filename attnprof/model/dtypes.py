"""Element types of the tensors, by the names the command line uses."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """An element type. ``itemsize`` is in bytes."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return 4 if self is Dtype.FP32 else 2
