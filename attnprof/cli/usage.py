"""What to type instead of a command line that Click refuses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from attnprof.cli import command

# Click's words for an argument that nothing takes.
_EXTRA = "unexpected extra argument"


def explain(problem: Any, name: str | None, arguments: Sequence[str]) -> tuple[str, str]:
    """Click's message for a usage error, and what to type instead.

    Args:
        problem: the error.
        name: the command that was asked for; None where there was none.
        arguments: the whole command line, without the program's name.
    """
    message = problem.format_message()
    if name is None:
        known = command.load_all()
        return message, f"choose from {', '.join(known)}; for example: {next(iter(known.values())).example}"
    listed = f"attnprof {name} --help lists what is allowed"
    slip = _extra_argument(problem.ctx, arguments) if _EXTRA in message else None
    return message, f"{slip}; {listed}" if slip else f"{listed}; for example: {command.load(name).example}"


def _extra_argument(context: Any, arguments: Sequence[str]) -> str | None:
    """What an option makes of the values that follow it, where there is one more than it takes."""
    params = context.command.get_params(context) if context is not None else ()
    options = {name: param for param in params for name in (*param.opts, *param.secondary_opts)}
    for at, word in enumerate(arguments):
        name, assigned, value = word.partition("=")
        option = options.get(name) if word.startswith("-") else None
        if option is None:
            continue
        takes = 0 if getattr(option, "is_flag", False) or assigned else 1
        following = list(takewhile(lambda each: not each.startswith("-"), arguments[at + 1 :]))
        if len(following) > takes:
            return _slip(option, name, [value, *following] if assigned else following)
    return None


def _slip(option: Any, name: str, values: Sequence[str]) -> str:
    if option.is_flag:
        either = f": {option.opts[0]} or {option.secondary_opts[0]}" if option.secondary_opts else ""
        return f"{name} takes no value{either}"
    if name == "--output":
        return f"each file has its own: {' '.join(f'{name} {value}' for value in values)}"
    if option.multiple or name == "--gpu":
        # Also where there is a comma, and a space behind it.
        parts = [part.strip() for value in values for part in value.split(",") if part.strip()]
        return f"a comma separates values, and no space: {name} {','.join(parts)}"
    return f"{name} takes one value"
