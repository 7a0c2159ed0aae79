"""GitHub-flavoured Markdown: the same tables, ready for a README or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attnprof.report.document import Column, Report, Row, cells

# An address in angle brackets, which is a link in Markdown as it stands.
_ADDRESS = re.compile(r"(<https://[^\s<>|]+>)")


def render_markdown(report: Report) -> str:
    """The whole report: each section's heading as a paragraph, its table, its notes as a list."""
    blocks: list[str] = []
    for section in report.sections:
        columns = report.table_columns(section)
        if section.heading:
            blocks.append("  \n".join(_escape(" ".join(line.split())) for line in section.heading))
        if section.rows:
            rows = [*section.shown_rows(), *([section.total] if section.total else [])]
            blocks.append(_table(columns, rows, section.total))
        if section.notes:
            blocks.append("\n".join(f"- {_escape(note)}" for note in section.notes))
    if report.summary:
        blocks.append("  \n".join(_escape(line) for line in report.summary))
    return "\n\n".join(blocks) + "\n"


def _table(columns: Sequence[Column], rows: Sequence[Row | None], total: Row | None) -> str:
    lines = [
        _line(column.title for column in columns),
        "|" + "|".join(" ---: " if column.align == "right" else " --- " for column in columns) + "|",
    ]
    for row in rows:
        if row is None or row is not total:
            lines.append(_line(_escape(cell) for cell in cells(columns, row)))
            continue
        footer = ["" if column.value(row) is None else column.cell(row) for column in columns]
        lines.append(_line(f"**{cell}**" if cell else "" for cell in footer))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Names stay as they are: no character of theirs starts a link, a code span, an emphasis or a new cell.

    The exception is ``<https://…>``, which stays a link.
    """
    parts = _ADDRESS.split(text.replace("\n", " "))
    parts[::2] = [re.sub(r"([\\`*_\[\]<|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
