"""From a report to stdout and to a file, in the format that was asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnprof.cli.environment import Environment
from attnprof.model.errors import UsageError

if TYPE_CHECKING:
    from attnprof.report.document import Report
    from attnprof.report.table import TextStyle

Format = Literal["table", "json", "csv", "md"]
_BY_EXTENSION: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "md", ".txt": "table"}


@dataclass(frozen=True, slots=True)
class Output:
    """What a command writes: ``format`` on stdout, and each of ``files`` in its own format.

    A file is replaced as a whole (written beside its name, then renamed): a reader never meets half of it, and a
    crash leaves the last whole version.
    """

    environment: Environment
    format: Format = "table"
    files: tuple[tuple[Path, Format], ...] = ()

    def show(self, report: Report) -> None:
        """Print the report, and save it."""
        from attnprof.report.table import TextStyle

        self.save(report)
        env = self.environment
        env.out(render(report, self.format, TextStyle(env.width, env.colour, env.unicode)))

    def save(self, report: Report) -> None:
        """Write the files that were asked for."""
        if not self.files:
            return
        from attnprof.bench.store import write_atomically
        from attnprof.report.table import PLAIN

        for path, form in self.files:
            text = render(report, form, PLAIN)
            if path.exists() and not path.is_file():
                path.write_text(text, encoding="utf-8", newline="\n")  # a device or a pipe can't be replaced
            else:
                write_atomically(path, text)


def output(
    environment: Environment, *, as_json: bool, as_csv: bool, as_md: bool, files: Sequence[str] | None
) -> Output:
    """The output that the options describe; a place that can't be written is refused before any work is done.

    Raises:
        UsageError: two formats at once, a file whose name tells no format, a folder that isn't there.
    """
    chosen: list[Format] = [
        name for name, flag in (("json", as_json), ("csv", as_csv), ("md", as_md)) if flag  # type: ignore[misc]
    ]  # fmt: skip
    if len(chosen) > 1:
        raise UsageError(
            f"--{chosen[0]} and --{chosen[1]} exclude each other",
            f"choose one for stdout; a file's format comes from its name: --{chosen[0]} --output run.{chosen[1]}",
        )
    otherwise = chosen[0] if chosen else None
    return Output(environment, otherwise or "table", tuple(_checked(file, otherwise) for file in files or ()))


def _checked(file: str, otherwise: Format | None) -> tuple[Path, Format]:
    """Where ``--output`` writes, in the format that its name tells, or in ``otherwise``."""
    if not file.strip():
        raise UsageError("--output is empty", "for example: --output run.json")
    path = Path(file).expanduser()
    file_format = _BY_EXTENSION.get(path.suffix.lower()) or otherwise
    if file_format is None:
        raise UsageError(
            f"--output {file}: the name does not tell the format",
            "end it in .json, .csv, .md or .txt, or add --json, --csv or --md",
        )
    if path.is_dir():
        raise UsageError(f"--output {file} is a folder", f"name a file: --output {path / 'run.json'}")
    if not path.parent.is_dir():
        raise UsageError(f"--output {file}: there is no folder {path.parent}", f"mkdir -p {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"--output {file}: no permission to write there", "give --output another place")
    return path, file_format


def render(report: Report, form: Format, style: TextStyle) -> str:
    """The report in one format; ``style`` matters to tables only."""
    from attnprof.report import data, markdown, table

    if form == "json":
        return data.render_json(report)
    if form == "csv":
        return data.render_csv(report)
    if form == "md":
        return markdown.render_markdown(report)
    return table.render_table(report, style)
