"""The entry point: build the app, run a command, turn what went wrong into a line and an exit code."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NoReturn

import typer

from attnprof import __version__
from attnprof.cli import command
from attnprof.cli.environment import Environment
from attnprof.cli.exits import ExitCode
from attnprof.cli.plain import PlainCommand, PlainGroup
from attnprof.model.errors import AttnprofError

# Typer vendors Click from some version on; its error classes are reached the same way in either.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]
_SOON_S = 3.0


def main(arguments: Sequence[str] | None = None, environment: Environment | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: what follows the program's name; those of the process where None.
        environment: the streams; those of the process where None.
    """
    # Before NumPy is imported. The matrices here are small: BLAS threads that wait for one another, on cores that
    # compile at the same time, make a check many times slower.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _on_interrupt(_Interrupt())
    try:
        try:
            code = run(sys.argv[1:] if arguments is None else list(arguments), environment or Environment.of_process())
        finally:
            _on_interrupt(signal.SIG_IGN)  # all is printed: one more could only cut the exit short, with a traceback
    except KeyboardInterrupt:  # after all had been said
        code = ExitCode.INTERRUPTED
    sys.exit(int(code))


class _Interrupt:
    """What Ctrl-C does: it raises KeyboardInterrupt. More of them, soon after, mean the same and are let pass.

    They would cut off what the first one leads to: stopping, printing and saving what is finished. `timeout` sends its
    signal twice, and people press the key twice. One that comes later than that is for something that did not stop.
    """

    def __init__(self) -> None:
        self._raised_s = -math.inf

    def __call__(self, _signal: int, _frame: object) -> None:
        now_s = time.monotonic()
        if now_s - self._raised_s > _SOON_S:
            self._raised_s = now_s
            raise KeyboardInterrupt


def _on_interrupt(answer: _Interrupt | signal.Handlers) -> None:
    """What Ctrl-C does, and SIGTERM, which `timeout` and CI runners send."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts what it puts in the background
            signal.signal(number, answer)


def run(arguments: Sequence[str], environment: Environment) -> int:
    """Run the command line and return its exit code."""
    try:
        environment.require_stdout()
        code = _app(arguments)(
            args=list(arguments) or ["--help"], prog_name="attnprof", obj=environment, standalone_mode=False
        )
        return code if isinstance(code, int) else ExitCode.OK
    except AttnprofError as problem:
        _report(environment, problem.message, problem.hint)
        return ExitCode.USAGE
    except _ClickError as problem:
        from attnprof.cli.usage import explain

        _report(environment, *explain(problem, _named(arguments), arguments))
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        _report(environment, "interrupted", None)
        return ExitCode.INTERRUPTED


def _app(arguments: Sequence[str]) -> typer.Typer:
    """What parses these arguments: only the command that they name is built; without one, a list of all."""
    name = _named(arguments)
    if name is not None:
        chosen = command.load(name)
        return _typer({name: chosen}, {name: chosen.run})
    known = command.load_all()
    return _typer(known, dict.fromkeys(known, _listed_only))


def _named(arguments: Sequence[str]) -> str | None:
    """The command among the arguments."""
    typed = next((argument for argument in arguments if not argument.startswith("-")), None)
    return typed if typed in command.names() else None


def _typer(known: Mapping[str, command.Command], functions: Mapping[str, Callable[..., int]]) -> typer.Typer:
    # Without Rich markup Typer does not import Rich for its help: 1.07 instead of 2.2 times `import typer, rich`.
    app = typer.Typer(
        cls=PlainGroup,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help="Predict what an attention kernel must cost on a GPU, run it, and explain the gap.",
        epilog=f"For example: {next(iter(known.values())).example}",
    )
    app.callback()(_options)
    for name, each in known.items():
        app.command(
            name,
            cls=PlainCommand,
            help=each.run.__doc__,
            epilog=f"For example: {each.example}",
            context_settings={"ignore_unknown_options": each.negative_numbers},
        )(functions[name])
    return app


def _listed_only() -> int:
    """A command in the list of all: its own function would have its options built, for nothing."""
    raise NotImplementedError


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


def _one_line(text: str) -> str:
    return " ".join(text.split())
