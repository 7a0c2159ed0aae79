"""The disk cache of compiled kernels, safe when several processes fill it at once."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from attnprof.kernels.executor import EntryResources

# Raise it when what is stored, or how a key is made, changes meaning.
FORMAT_VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one compilation left behind."""

    image: bytes
    log: str
    resources: Mapping[str, EntryResources]
    compile_time_s: float


class DiskCache:
    """Images by key, each beside a JSON file with its log and resources.

    A file is written under a temporary name and renamed, the JSON last, and the JSON holds the image's SHA-256: a
    reader finds a whole entry or none, whoever else is writing. An entry that does not read back is a miss.

    Args:
        folder: where to keep it; None takes :func:`default_folder`. Where it cannot be written, a note is logged and
            a temporary folder, removed at exit, is used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = _writable(default_folder(os.environ) if folder is None else folder)

    def holds(self, key: str) -> bool:
        """Whether there is an entry, without reading it: one that turns out not to be whole is compiled again."""
        return self._paths(key)[1].is_file()

    def load(self, key: str) -> Entry | None:
        """The entry, or None when there is no whole one."""
        image_path, meta_path = self._paths(key)
        try:
            meta = json.loads(meta_path.read_bytes())
            image = image_path.read_bytes()
            if meta["sha256"] != hashlib.sha256(image).hexdigest():
                return None
            resources = {name: EntryResources(**fields) for name, fields in meta["resources"].items()}
            return Entry(image, str(meta["log"]), resources, float(meta["compile_time_s"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def store(self, key: str, entry: Entry) -> None:
        """Keep an entry. A full or vanished disk costs a note and a recompilation next time, not the run."""
        image_path, meta_path = self._paths(key)
        meta = {
            "sha256": hashlib.sha256(entry.image).hexdigest(),
            "log": entry.log,
            "resources": {name: asdict(resources) for name, resources in entry.resources.items()},
            "compile_time_s": entry.compile_time_s,
        }
        try:
            image_path.parent.mkdir(parents=True, exist_ok=True)
            _replace(image_path, entry.image)
            _replace(meta_path, json.dumps(meta).encode())
        except OSError as error:
            _log.warning("cannot keep a compiled kernel in %s (%s)", self.folder, error.strerror or error)

    def _paths(self, key: str) -> tuple[Path, Path]:
        folder = self.folder / key[:2]
        return folder / f"{key}.image", folder / f"{key}.json"


def default_folder(environ: Mapping[str, str]) -> Path:
    """``$ATTNPROF_CACHE_DIR``, else ``$XDG_CACHE_HOME/attnprof``, else ``~/.cache/attnprof``."""
    if chosen := environ.get("ATTNPROF_CACHE_DIR"):
        return Path(chosen)
    # The XDG specification says to ignore a relative path.
    if (xdg := environ.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():
        return Path(xdg) / "attnprof"
    try:
        return Path.home() / ".cache" / "attnprof"
    except RuntimeError:  # No HOME and no entry for the user: a container with an arbitrary uid.
        return Path("/nonexistent/.cache/attnprof")


def make_key(parts: tuple[bytes | str | None, ...]) -> str:
    """A SHA-256 over the parts, each with its length in front so that no two lists run together."""
    digest = hashlib.sha256()
    for part in (str(FORMAT_VERSION), *parts):
        if part is None:
            digest.update(b"none;")
            continue
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


# The one temporary folder of this process, removed at exit.
_temporary: list[Path] = []


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        why = error.strerror or str(error)
    if not _temporary:
        _temporary.append(Path(tempfile.mkdtemp(prefix="attnprof-")))
        atexit.register(shutil.rmtree, _temporary[0], ignore_errors=True)
        _log.warning(
            "the kernel cache %s cannot be written (%s): compiling into a temporary one; set ATTNPROF_CACHE_DIR",
            folder,
            why,
        )
    return _temporary[0]


def _replace(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
