"""The tile choices that tuning keeps, one file a user: which choice won on which GPU, for which kind of workload."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnprof import __version__
from attnprof.bench.store import write_atomically
from attnprof.compiler.cache import default_folder
from attnprof.compiler.includes import include_closure
from attnprof.kernels.candidates import Candidate
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import KernelSpec
from attnprof.model.devices import DeviceSpec
from attnprof.model.errors import UsageError
from attnprof.model.workload import Workload

FILE_NAME = "tiles.json"
# Raise it when a key or an entry changes its meaning: older files are then ignored.
FORMAT_VERSION = 1
# An entry takes some 300 bytes: more than anybody will tune.
_MOST_BYTES = 16 * 2**20

_log = logging.getLogger(__name__)


class Winners:
    """Tile choices by GPU, kernel and kind of workload, in a JSON file that is replaced as a whole.

    A choice holds for the GPU's name and compute capability, the kernel's sources (their SHA-256), the family of its
    tiles, mask, element type, pass and layout, and sizes between the same powers of two. The compiler's version is not
    part of it. A file that cannot be read back is one warning, and counts as empty. Processes that keep choices at the
    same time wait for one another.

    Args:
        path: the file; None takes ``tiles.json`` in the folder of compiled kernels.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_folder(os.environ) / FILE_NAME if path is None else path
        self._entries = self._load()

    def choosing(self, spec: KernelSpec) -> KernelSpec:
        """The kernel with the tiles that were kept for the device it is asked about, where there are any."""

        def choose(workload: Workload, device: DeviceSpec, candidates: tuple[Candidate, ...]) -> str | None:
            entry = self._entries.get(key_of(spec, workload, device, candidates[0].family))
            return None if entry is None else str(entry["tiles"])

        return spec.choosing(choose)

    def keep(
        self,
        spec: KernelSpec,
        workload: Workload,
        device: DeviceSpec,
        winner: Candidate,
        *,
        built_in: str,
        speedup: float,
    ) -> None:
        """Keep a winner, in place of an earlier one. A file that cannot be written costs a warning.

        Args:
            spec: the kernel.
            workload: what it was measured on.
            device: where.
            winner: the choice.
            built_in: the label of the kernel's own choice.
            speedup: time of that over the winner's.
        """
        entry = {
            "tiles": winner.label,
            "built_in": built_in,
            "speedup": speedup,
            "measured_on": workload.label,
            "attnprof_version": __version__,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.path):
                # What another process has kept meanwhile stays.
                self._entries = {**self._load(), key_of(spec, workload, device, winner.family): entry}
                document = {"format": FORMAT_VERSION, "tiles": self._entries}
                write_atomically(self.path, json.dumps(document, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            _log.warning("cannot keep tuned tiles in %s (%s)", self.path, error.strerror or error)
        except UsageError as error:
            _log.warning("cannot keep tuned tiles: %s", error.message)

    def _load(self) -> dict[str, Mapping[str, Any]]:
        try:
            facts = self.path.stat()
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:  # a pipe would never end, say
                raise ValueError("not what was written")
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT_VERSION:
                _log.warning("ignoring %s: another version of attnprof wrote it", self.path)
                return {}
            entries = {str(key): entry for key, entry in document["tiles"].items() if str(entry["tiles"])}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning("ignoring the tuned tiles in %s, which cannot be read (%s)", self.path, type(error).__name__)
            return {}
        return entries


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is read, changed and replaced; where there are no such locks, nothing.

    Raises:
        OSError: the file of the lock, beside the other, cannot be opened.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    # A file of its own, which stays: a lock on one that others replace would be on what is no longer there.
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks: better kept without than not kept
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def key_of(spec: KernelSpec, workload: Workload, device: DeviceSpec, family: str) -> str:
    """What a kept choice holds for, in words."""
    w = workload
    major, minor = device.compute_capability
    parts = (
        f"{device.name} sm_{major}{minor}",
        f"{spec.name} {_digest(spec.file)}",
        f"{family} {'causal' if w.causal else 'no mask'} {w.dtype} {w.direction} {spec.layout}",
        f"q{_bucket(w.seq_q)} kv{_bucket(w.seq_kv)} heads{_bucket(w.batch * w.heads)}",
    )
    return " | ".join(parts)


def _bucket(size: int) -> int:
    """The power of two at or above it."""
    return 1 << (size - 1).bit_length()


@lru_cache(maxsize=64)
def _digest(file: Path) -> str:
    """A digest of a kernel's source and all that it includes from the project; ``unreadable`` if there is none."""
    try:
        closure = include_closure(file, (file.parent, kernels_dir()))
    except UsageError:
        return "unreadable"
    digest = hashlib.sha256()
    for _, content in closure:
        digest.update(hashlib.sha256(content or b"").digest())
    return digest.hexdigest()[:16]
