"""What a module in `attnprof.cli.commands` offers: its function, and its place and example in the help."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from attnprof.cli import commands as package


@dataclass(frozen=True, slots=True)
class Command:
    """One command, which bears its module's name.

    Attributes:
        run: the function that Typer calls; it returns an exit code. The first line of its docstring is the help.
        order: its place in the help, lowest first.
        example: a whole command line that works, shown in the help and after a usage error.
        negative_numbers: whether an argument may begin with a minus sign: what looks like an unknown option is then
            handed to the function, which must refuse it if it is one.
    """

    run: Callable[..., int]
    order: int
    example: str
    negative_numbers: bool = False


def names() -> tuple[str, ...]:
    """The commands by name, without importing them."""
    # pkgutil does the same but takes 3 ms to import; pathlib is slower than os.
    files = (file for folder in package.__path__ for file in os.listdir(folder))  # noqa: PTH208
    return tuple(sorted(file[:-3] for file in files if file.endswith(".py") and not file.startswith("_")))


def load(name: str) -> Command:
    """One command."""
    command: Command = importlib.import_module(f"{package.__name__}.{name}").COMMAND
    return command


def load_all() -> dict[str, Command]:
    """Every command by its name, in the order of the help."""
    return dict(sorted(((name, load(name)) for name in names()), key=lambda item: item[1].order))
