"""A run's file, rewritten after every row: whatever happens next, the rows that finished are on disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from attnprof.model.errors import UsageError


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old text or the new one and nothing between.

    Of a symbolic link the file that it names is replaced, and the link stays.

    Raises:
        UsageError: the folder does not exist or cannot be written, or there is something that is no file, a device say.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot write {path}: it is {_kind(target)}", "name a file in a folder you can write to")
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "name a file in a folder you can write to"
        ) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(_mode(target))
        Path(temporary).replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "free some space, or name another file") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "no regular file"


def _mode(path: Path) -> int:
    """The mode that plain ``open`` would leave: mkstemp's 0600 would hide a shared result from colleagues."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
