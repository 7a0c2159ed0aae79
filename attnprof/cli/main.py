"""The entry point: build the app, run a command, turn what went wrong into a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from attnprof import __version__
from attnprof.cli.command import Command, commands
from attnprof.cli.environment import Environment, silence
from attnprof.cli.exits import ExitCode
from attnprof.model.errors import AttnprofError

# Typer vendors Click from some version on; its error classes are reached the same way in either.
_ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: what follows the program's name; those of the process where None.
        environment: the streams; those of the process where None.
    """
    sys.exit(int(run(sys.argv[1:] if arguments is None else list(arguments), environment or Environment.of_process())))


def run(arguments: Sequence[str], environment: Environment) -> int:
    """Run the command line and return its exit code."""
    known = commands()
    try:
        code = _app(known)(
            args=list(arguments) or ["--help"], prog_name="attnprof", obj=environment, standalone_mode=False
        )
        return code if isinstance(code, int) else ExitCode.OK
    except AttnprofError as problem:
        _report(environment, problem.message, problem.hint)
        return ExitCode.USAGE
    except _ClickError as problem:
        _report(environment, *_usage(problem, arguments, known))
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        _report(environment, "interrupted", None)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # --help into a closed pipe; Environment.out handles the rest
        silence(environment.stdout)
        return ExitCode.OK


def _app(known: Sequence[Command]) -> typer.Typer:
    # Without Rich markup Typer does not import Rich for its help: 1.07 instead of 2.2 times `import typer, rich`.
    app = typer.Typer(
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Predict what an attention kernel must cost on a GPU, run it, and explain the gap.",
        epilog=f"For example: {known[0].example}",
    )
    app.callback()(_options)
    for command in known:
        app.command(command.name, epilog=f"For example: {command.example}")(command.run)
    return app


def _version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.obj.out(f"attnprof {__version__}\n")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options of the program itself: --version acts on its own, in its callback."""


def _report(environment: Environment, message: str, hint: str | None) -> None:
    environment.err(f"error: {_one_line(message)}")
    if hint:
        environment.err(f"hint: {_one_line(hint)}")


def _usage(problem: Exception, arguments: Sequence[str], known: Sequence[Command]) -> tuple[str, str]:
    """Click's message, and what to type instead."""
    message = problem.format_message() if isinstance(problem, _ClickError) else str(problem)  # type: ignore[attr-defined]
    typed = next((argument for argument in arguments if not argument.startswith("-")), None)
    command = next((command for command in known if command.name == typed), None)
    if command is None:
        return message, f"choose from {', '.join(command.name for command in known)}; for example: {known[0].example}"
    return message, f"attnprof {command.name} --help lists what is allowed; for example: {command.example}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
