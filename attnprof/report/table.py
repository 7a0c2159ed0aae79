"""Tables for terminals and text files.

A table that does not fit the width is never squeezed: it becomes one block of ``name  value`` lines a row, so that no
number and no header is ever cut.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from attnprof.report.document import LEFT_OUT, Column, Report, Row, Section, cells

# Wide enough that Rich never wraps: whether the result fits is decided afterwards.
_NATURAL_WIDTH = 100_000
_GAP = "  "


@dataclass(frozen=True, slots=True)
class TextStyle:
    """How text may look: ``width`` in columns (None: as wide as it needs), colours, characters beyond ASCII."""

    width: int | None = None
    colour: bool = False
    unicode: bool = True


PLAIN = TextStyle()


def render_table(report: Report, style: TextStyle = PLAIN) -> str:
    """The whole report as text that ends in a newline."""
    blocks: list[str] = []
    for section in report.sections:
        columns = report.table_columns(section)
        lines = [line for text in section.heading for line in _wrap(text, style.width, _label_width(text))]
        if section.rows:
            lines += ["", *_table(columns, section, report.group_by, style)]
        if section.notes:
            lines += ["", *(line for note in section.notes for line in _wrap(note, style.width))]
        blocks.append("\n".join(lines))
    if report.summary:
        blocks.append("\n".join(line for text in report.summary for line in _wrap(text, style.width)))
    return "\n\n".join(block.strip("\n") for block in blocks if block.strip("\n")) + "\n"


def _table(columns: Sequence[Column], section: Section, group_by: str | None, style: TextStyle) -> list[str]:
    plain = _plain_table(columns, section, group_by, style)
    if style.width is not None and max(_cells(line) for line in plain) > style.width:
        return _records(columns, section, style)
    # Importing Rich and rendering with it takes half as long as all the rest: only where there are colours to show.
    return _rich_table(columns, section, group_by) if style.colour else plain


def _plain_table(columns: Sequence[Column], section: Section, group_by: str | None, style: TextStyle) -> list[str]:
    titles = [column.title for column in columns]
    rows = section.shown_rows()
    body = [cells(columns, row) for row in rows]
    footer = _footer(columns, section)
    widths = [max(map(_cells, texts)) for texts in zip(*[titles, *body, *([footer] if footer else [])], strict=True)]

    def line(texts: Sequence[str]) -> str:
        gaps = [" " * (width - _cells(cell)) for cell, width in zip(texts, widths, strict=True)]
        placed = (
            gap + cell if column.align == "right" else cell + gap
            for column, cell, gap in zip(columns, texts, gaps, strict=True)
        )
        return _GAP.join(placed).rstrip()

    rule = ("─" if style.unicode else "-") * (sum(widths) + len(_GAP) * (len(widths) - 1))
    breaks = _group_ends(rows, group_by)
    lines = [line(titles), rule]
    for index, texts in enumerate(body):
        lines.append(line(texts))
        if index in breaks:
            lines.append("")
    return [*lines, "", line(footer)] if footer else lines


def _rich_table(columns: Sequence[Column], section: Section, group_by: str | None) -> list[str]:
    """The same table in colours."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    footer = _footer(columns, section)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
        show_footer=bool(footer),
    )
    for column, total in zip(columns, footer or [""] * len(columns), strict=True):
        table.add_column(Text(column.title), Text(total, style="bold"), justify=column.align, no_wrap=True)
    rows = section.shown_rows()
    breaks = _group_ends(rows, group_by)
    for index, row in enumerate(rows):
        styles = ["" if row is None else c.styles.get(str(c.value(row)), "") for c in columns]
        texts = [Text(cell, style=style) for cell, style in zip(cells(columns, row), styles, strict=True)]
        table.add_row(*texts, end_section=index in breaks)
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=_NATURAL_WIDTH,
        color_system="standard",
        force_terminal=True,
        legacy_windows=False,
        emoji=False,
        markup=False,
        highlight=False,
        _environ={},
    )
    console.print(table)
    return [line.rstrip() for line in stream.getvalue().rstrip("\n").split("\n")]


def _footer(columns: Sequence[Column], section: Section) -> list[str]:
    total = section.total
    if total is None:
        return []
    return ["" if column.value(total) is None else column.cell(total) for column in columns]


def _cells(text: str) -> int:
    """Terminal cells that a text takes: a wide character takes two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _group_ends(rows: Sequence[Row | None], group_by: str | None) -> set[int]:
    """Where to draw a line: after each group, if the groups are larger than one row."""
    if group_by is None:
        return set()
    groups = [row and row.get(group_by) for row in rows]
    ends = {i for i in range(len(rows) - 1) if groups[i] != groups[i + 1]}
    return ends if len(ends) + 1 < len(rows) else set()


def _records(columns: Sequence[Column], section: Section, style: TextStyle) -> list[str]:
    label_width = max(len(column.title) for column in columns)
    lines: list[str] = []
    for row in [*section.shown_rows(), *([] if section.total is None else [section.total])]:
        if lines:
            lines.append("")
        if row is None:
            lines.append(LEFT_OUT)
            continue
        is_total = row is section.total
        for column in columns:
            if is_total and column.value(row) is None:
                continue
            lines += _wrap(f"{column.title:<{label_width}}  {column.cell(row)}", style.width, label_width + 2)
    return lines


def _label_width(line: str) -> int:
    """Where the text of a ``Label     text`` line begins, so that what follows hangs under it."""
    match = re.match(r"\S* {2,}", line)
    return match.end() if match else 2


def _wrap(text: str, width: int | None, indent: int = 2) -> list[str]:
    """Break at spaces only: a name or a number is never cut, even where it alone is wider than the terminal."""
    if width is None or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text,
        max(width, indent + 8),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [""]
