"""Where the CUDA sources live: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def kernels_dir() -> Path:
    """The folder ``kernels_cu`` with the project's ``.cu`` files and ``common/`` headers."""
    installed = _PACKAGE / "kernels_cu"
    return installed if installed.is_dir() else _PACKAGE.parent / "kernels_cu"


def edited_here(files: Iterable[Path], here: Path = Path()) -> tuple[Path, ...]:
    """Which of these sources, and of the headers they share, a clone in ``here`` has in another version than what runs.

    Files of a user's own are not among them: they run where they lie.
    """
    running = kernels_dir()
    sources = sorted({file for file in files if file.is_relative_to(running)})
    clone = here / running.name
    if not sources or not clone.is_dir() or clone.samefile(running):
        return ()
    pairs = [
        (file, clone / file.relative_to(running)) for file in (*sources, *sorted((running / "common").glob("*.cuh")))
    ]
    return tuple(there for file, there in pairs if there.is_file() and there.read_bytes() != file.read_bytes())
