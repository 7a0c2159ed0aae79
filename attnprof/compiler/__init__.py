"""NVRTC without a driver: CUDA source to cubin or PTX, and the disk cache."""

from attnprof.compiler.compiler import Compiler

__all__ = ["Compiler"]
