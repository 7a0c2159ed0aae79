"""What a command has to say, before any format is chosen: columns, rows, and a few lines of prose around them.

A row is a plain dict, the very object that ``--json`` prints. A column says where a value lies in the row and how a
person reads it. Every format (table, Markdown, CSV, JSON) is made from these, so they can't disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attnprof.report.units import UNKNOWN, known, text

Row = Mapping[str, Any]
# What stands in every cell where rows are left out.
LEFT_OUT = "…"
Show = Literal["always", "varies", "known", "never"] | Callable[[Sequence[Row]], bool]


@dataclass(frozen=True, slots=True)
class Column:
    """One reported quantity.

    Attributes:
        key: where the value lies in a row; dots descend (``time_s.median``).
        title: the header in tables.
        description: what it is, with its unit, for the documentation.
        format: the value as text; never called for an unknown one.
        align: numbers right, names left.
        show: in tables, ``always``; only where its values differ (``varies``: constants belong in the heading); only
            where some value is known (``known``); or ``never``. CSV has every column.
        csv: the CSV header, which ends in the SI unit; the key with dots replaced where it is None.
        csv_value: the value that CSV gets, where it is not the raw one.
        row_text: how a person reads it where that depends on other values of the row (its unit); else None.
        styles: text style by value, for colour terminals.
    """

    key: str
    title: str
    description: str
    format: Callable[[Any], str] = text
    align: Literal["left", "right"] = "right"
    show: Show = "always"
    csv: str | None = None
    in_csv: bool = True
    csv_value: Callable[[Any], Any] | None = None
    row_text: Callable[[Row], str] | None = None
    styles: Mapping[str, str] = field(default_factory=dict)

    def value(self, row: Row) -> Any:
        """The raw value in a row, or None."""
        found: Any = row
        for part in self.key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def cell(self, row: Row) -> str:
        """The value as a person reads it."""
        value = self.value(row)
        if not known(value):
            return UNKNOWN
        return self.format(value) if self.row_text is None else self.row_text(row)

    @property
    def csv_header(self) -> str:
        """The header of its CSV column."""
        return self.csv or self.key.replace(".", "_")


@dataclass(frozen=True, slots=True)
class Section:
    """One table with the lines above and below it.

    Attributes:
        columns: the columns of a table that is beside the point of the report: its rows are in no CSV, and in JSON only
            where a field holds them. None for a table of the report's own rows.
        most_rows: how many rows tables show; of more, the first and the last. None for all.
    """

    heading: tuple[str, ...]
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    total: Row | None = None
    columns: tuple[Column, ...] | None = None
    most_rows: int | None = None

    def shown_rows(self) -> list[Row | None]:
        """The rows that tables show; None stands for those left out."""
        rows: list[Row | None] = list(self.rows)
        if self.most_rows is None or len(rows) <= self.most_rows:
            return rows
        first = (self.most_rows + 1) // 2
        return [*rows[:first], None, *rows[len(rows) - (self.most_rows - first) :]]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a command prints.

    Attributes:
        command: the command's name, for JSON.
        columns: the columns of all its tables.
        sections: the tables.
        fields: JSON fields besides the rows (``device`` and the like).
        rows_key: the JSON field that holds the rows.
        json_rows: the JSON rows, where they are not those of the tables.
        csv_rows: the same for CSV.
        group_by: rows with an equal value of this key stand together in a table.
        summary: lines at the very end.
    """

    command: str
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    rows_key: str = "rows"
    json_rows: Sequence[Row] | None = None
    csv_rows: Sequence[Row] | None = None
    group_by: str | None = None
    summary: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all sections that are the report's own, in order."""
        return tuple(row for section in self.sections if section.columns is None for row in section.rows)

    def table_columns(self, section: Section) -> tuple[Column, ...]:
        """The columns that the table of a section shows."""
        if section.columns is not None:
            return tuple(column for column in section.columns if _shown(column, section.rows))
        return tuple(column for column in self.columns if _shown(column, self.rows))


def cells(columns: Sequence[Column], row: Row | None) -> list[str]:
    """A row as text; dots for rows left out."""
    return [LEFT_OUT if row is None else column.cell(row) for column in columns]


def _shown(column: Column, rows: Sequence[Row]) -> bool:
    if callable(column.show):
        return column.show(rows)
    if column.show == "varies":
        return len({column.cell(row) for row in rows}) > 1
    if column.show == "known":
        return any(known(column.value(row)) for row in rows)
    return column.show == "always"
