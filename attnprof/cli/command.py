"""What a module in `attnprof.cli.commands` offers: its function, and its place and example in the help."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        name: what is typed after ``attnprof``.
        run: the function that Typer calls; it returns an exit code. The first line of its docstring is the help.
        order: its place in the help, lowest first.
        example: a whole command line that works, shown in the help and after a usage error.
    """

    name: str
    run: Callable[..., int]
    order: int
    example: str


def commands() -> tuple[Command, ...]:
    """Every command, in the order of the help."""
    from attnprof.cli import commands as package

    found = [
        importlib.import_module(f"{package.__name__}.{module.name}").COMMAND
        for module in pkgutil.iter_modules(package.__path__)
    ]
    return tuple(sorted(found, key=lambda command: command.order))
