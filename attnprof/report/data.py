"""The formats that other programs read: strict JSON, and CSV with raw SI numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from attnprof import __version__
from attnprof.report.document import Column, Report, Row
from attnprof.report.units import known

SCHEMA_VERSION = 1


def render_json(report: Report) -> str:
    """One strict JSON object: no NaN, no Infinity (they become null), ASCII only, whole numbers exact."""
    rows = report.rows if report.json_rows is None else report.json_rows
    document = {
        "schema_version": SCHEMA_VERSION,
        "command": report.command,
        "attnprof_version": __version__,
        **report.fields,
        report.rows_key: list(rows),
    }
    return json.dumps(strict(document), indent=2, allow_nan=False) + "\n"


def render_csv(report: Report) -> str:
    """A header line and one line a row. Unknown is empty; numbers are SI, unrounded, with a dot."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = [column for column in report.columns if column.in_csv]
    writer.writerow([column.csv_header for column in columns])
    for row in report.rows if report.csv_rows is None else report.csv_rows:
        writer.writerow([_csv_cell(_csv_value(column, row)) for column in columns])
    return stream.getvalue()


def strict(value: Any) -> Any:
    """The same value with tuples as lists, keys as plain strings, and floats that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value if known(value) else None


def _csv_value(column: Column, row: Row) -> Any:
    value = column.value(row)
    return value if column.csv_value is None or not known(value) else column.csv_value(value)


def _csv_cell(value: Any) -> str:
    if not known(value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ";".join(_csv_cell(item) for item in value)
    return repr(value) if isinstance(value, float) else str(value)
