"""The files a ``.cu`` file is made of: itself and everything it includes from the project."""

from __future__ import annotations

import os.path
import re
from functools import lru_cache
from pathlib import Path

from attnprof.model.errors import UsageError

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)


def include_closure(file: Path, search: tuple[Path, ...]) -> tuple[tuple[str, bytes | None], ...]:
    """Every file that ``file`` includes, directly or not, with its content, in the order of first mention.

    ``"x"`` is looked up in the including file's folder and then in ``search``, ``<x>`` in ``search`` alone, as NVRTC
    does. The preprocessor is not run: an include that is commented out or in a dead branch counts too, which can only
    recompile too often. A name found nowhere (a CUDA header, a missing file) stands with ``None``, so that the result
    changes when the file appears.

    Returns:
        Pairs of a path (or of the name as written, where it was not found) and the content; ``file`` comes first.

    Raises:
        UsageError: ``file`` cannot be read.
    """
    try:
        source = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    closure: dict[str, bytes | None] = {str(file): source}
    pending = [(file, source)]
    while pending:
        parent, content = pending.pop(0)
        for name, quoted in _mentions(content):
            folders = (parent.parent, *search) if quoted else search
            found = _first_readable(folders, name)
            if found is None:
                closure.setdefault(name, None)
            elif str(found[0]) not in closure:
                closure[str(found[0])] = found[1]
                pending.append(found)
    return tuple(closure.items())


@lru_cache(maxsize=64)  # each compilation asks for the same few files
def _mentions(content: bytes) -> tuple[tuple[str, bool], ...]:
    return tuple(
        ((match[1] or match[2]).decode(errors="surrogateescape"), match[1] is not None)
        for match in _INCLUDE.finditer(content)
    )


def _first_readable(folders: tuple[Path, ...], name: str) -> tuple[Path, bytes] | None:
    for folder in folders:
        # Normalised without following links: a/../a/x.cuh and a/x.cuh are one file.
        path = Path(os.path.normpath(folder / name))
        try:
            return path, path.read_bytes()
        except (OSError, ValueError):
            continue
    return None
