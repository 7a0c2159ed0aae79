"""Typer commands whose options stay the text that was typed, and whose help goes the way of all output.

Some versions of Typer convert every value with Pydantic, whose import takes longer than Typer's own. Every option here
is text or a flag: `attnprof.cli.values` reads the text, and says in one line what is wrong with it.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command that takes text as it is."""

    def get_params(self, ctx: Any) -> Any:
        """Its options, the help option among them."""
        return [_plain(option) for option in super().get_params(ctx)]


class PlainGroup(TyperGroup):
    """A group of commands that does the same for its own options."""

    def get_params(self, ctx: Any) -> Any:
        """Its options, the help option among them."""
        return [_plain(option) for option in super().get_params(ctx)]


def _plain(option: Any) -> Any:
    if option.name == "help":
        option.callback = _show_help
    if hasattr(option, "get_runtime_param"):  # only where Typer would convert with Pydantic

        def process_value(context: Any, value: Any) -> Any:
            return value if option.callback is None else option.callback(context, option, value)

        option.process_value = process_value
    return option


def _show_help(context: Any, _option: Any, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        # Older versions of Typer escape the brackets of [default: …] for Rich even where it prints no markup.
        context.obj.out(context.get_help().replace("\\[", "[") + "\n")
        raise typer.Exit
