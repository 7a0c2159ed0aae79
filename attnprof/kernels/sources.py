"""Where the CUDA sources live: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def kernels_dir() -> Path:
    """The folder ``kernels_cu`` with the project's ``.cu`` files and ``common/`` headers."""
    installed = _PACKAGE / "kernels_cu"
    return installed if installed.is_dir() else _PACKAGE.parent / "kernels_cu"
