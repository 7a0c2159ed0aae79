"""A clone of the project whose kernels were edited while another, installed copy of it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnprof.cli.environment import Environment
    from attnprof.kernels.spec import KernelSpec


def note_edits(environment: Environment, specs: Iterable[KernelSpec]) -> None:
    """Say so where ``kernels_cu`` of the current directory has another version of what these kernels run."""
    from attnprof.kernels.sources import edited_here

    edited = edited_here(spec.file for spec in specs)
    if edited:
        others = f" and {len(edited) - 1} more" if len(edited) > 1 else ""
        verb = "differ" if others else "differs"
        environment.err(
            f"note: {edited[0].as_posix()}{others} {verb} from the installed copy, which is what runs; "
            "to run the files here: pip install -e ."
        )
