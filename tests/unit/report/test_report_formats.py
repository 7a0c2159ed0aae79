from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from attnprof.report import units
from attnprof.report.data import render_csv, render_json
from attnprof.report.document import Column, Report, Section
from attnprof.report.markdown import render_markdown
from attnprof.report.table import TextStyle, render_table

COLUMNS = (
    Column("seq_q", "Seq", "length"),
    Column("kernel", "Kernel", "name", align="left"),
    Column("time_s.median", "Time", "median (s)", units.time, csv="time_median_s"),
    Column("dtype", "Type", "element type", align="left", show="varies"),
    Column("power_w", "Power", "W", show="known"),
    Column("reason", "Reason", "why not", align="left", show="never"),
)
ROWS: list[dict[str, Any]] = [
    {"seq_q": 1024, "kernel": "naive", "time_s": {"median": 1.25e-3}, "dtype": "fp16", "reason": None},
    {"seq_q": 1024, "kernel": "fa2[causal]", "time_s": None, "dtype": "fp16", "reason": "out of memory"},
    {"seq_q": 2048, "kernel": "[/tmp/x].cu", "time_s": {"median": float("nan")}, "dtype": "fp16", "reason": None},
    {"seq_q": 2048, "kernel": "a|b *c* `d`", "time_s": {"median": 0.5}, "dtype": "fp16", "reason": None},
]


def report(rows: list[dict[str, Any]] | None = None, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "command": "bench",
        "columns": COLUMNS,
        "sections": (Section(("GPU       H200", "a heading [bold]"), ROWS if rows is None else rows, ("a note",)),),
        "group_by": "seq_q",
        "summary": ("the end",),
    }
    return Report(**(fields | changes))


def strict_loads(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict_and_unknown_is_null() -> None:
    document = strict_loads(render_json(report(fields={"device": {"name": "NVIDIA é", "rate": float("inf")}})))
    assert document["schema_version"] == 1
    assert document["command"] == "bench"
    assert document["device"] == {"name": "NVIDIA é", "rate": None}
    assert [row["time_s"] for row in document["rows"]] == [{"median": 0.00125}, None, {"median": None}, {"median": 0.5}]


def test_json_keeps_whole_numbers_exact_and_is_ascii() -> None:
    text = render_json(report([{"seq_q": 2**74, "kernel": "é"}]))
    assert strict_loads(text)["rows"] == [{"seq_q": 2**74, "kernel": "é"}]
    assert text.isascii()


def test_csv_has_raw_si_numbers_and_empty_unknowns() -> None:
    lines = list(csv.DictReader(io.StringIO(render_csv(report()))))
    assert list(lines[0]) == ["seq_q", "kernel", "time_median_s", "dtype", "power_w", "reason"]
    assert [line["time_median_s"] for line in lines] == ["0.00125", "", "", "0.5"]
    assert lines[1]["kernel"] == "fa2[causal]"
    assert lines[1]["reason"] == "out of memory"


def test_tables_show_names_as_they_are() -> None:
    text = render_table(report(), TextStyle(None, colour=True))
    for name in ("fa2[causal]", "[/tmp/x].cu", "a|b *c* `d`", "a heading [bold]"):
        assert name in text


def test_tables_hide_constant_and_unknown_columns() -> None:
    text = render_table(report())
    assert "Type" not in text
    assert "Power" not in text
    varied = [{**row, "dtype": "bf16" if i else "fp16", "power_w": 500.0} for i, row in enumerate(ROWS)]
    text = render_table(report(varied))
    assert "Type" in text
    assert "Power" in text


def test_markdown_escapes_what_would_break_a_cell() -> None:
    text = render_markdown(report())
    row = next(line for line in text.splitlines() if "c" in line and "d" in line and line.startswith("| 2048 | a"))
    assert row == "| 2048 | a\\|b \\*c\\* \\`d\\` | 500.0 ms |"
    header = next(line for line in text.splitlines() if line.startswith("| Seq"))
    rule = text.splitlines()[text.splitlines().index(header) + 1]
    assert rule == "| ---: | --- | ---: |"


def test_markdown_keeps_addresses_as_links() -> None:
    sections = (Section((), [], ("a_b: <https://a.org/x_y> and <b>",)),)
    assert render_markdown(Report("x", COLUMNS, sections)) == "- a\\_b: <https://a.org/x_y> and \\<b>\n"


@pytest.mark.parametrize("width", [12, 20, 30, 40, 60, 80, None])
def test_no_width_cuts_a_number_or_a_header(width: int | None) -> None:
    text = render_table(report(), TextStyle(width))
    for needle in ("Seq", "Kernel", "Time", "1.250 ms", "500.0 ms", "fa2[causal]", "[/tmp/x].cu", "a note", "the end"):
        assert needle in " ".join(text.split()), needle
    if width is not None and width >= 30:
        assert max(len(line) for line in text.splitlines()) <= width


def test_a_narrow_terminal_gets_one_block_a_row() -> None:
    text = render_table(report(), TextStyle(20))
    assert re.search(r"^Seq +1024\nKernel  naive\nTime +1.250 ms$", text, re.MULTILINE)


def test_colours_only_where_asked() -> None:
    styled = Column("kernel", "Kernel", "name", align="left", styles={"naive": "red"})
    assert "\x1b[31mnaive" in render_table(report(columns=(styled,)), TextStyle(80, colour=True))
    assert "\x1b" not in render_table(report(columns=(styled,)), TextStyle(80))


def test_ascii_tables_have_ascii_rules() -> None:
    assert "─" not in render_table(report(), TextStyle(None, unicode=False))


def test_groups_are_set_apart() -> None:
    lines = render_table(report()).splitlines()
    first = next(i for i, line in enumerate(lines) if "fa2[causal]" in line)
    assert lines[first + 1].strip("- +") == ""
    assert "[/tmp/x].cu" in lines[first + 2]


def test_totals_are_below_the_rows_with_blanks_where_there_is_no_sum() -> None:
    total = {"seq_q": 6144}
    text = render_table(report(sections=(Section((), ROWS, total=total),), summary=()))
    assert text.splitlines()[-1].split() == ["6144"]
    markdown = render_markdown(report(sections=(Section((), ROWS, total=total),), summary=()))
    assert markdown.splitlines()[-1] == "| **6144** |  |  |"


def test_wide_characters_count_twice() -> None:
    rows = [{"seq_q": 1, "kernel": "漢字漢字漢字", "time_s": None}]
    text = render_table(report(rows, columns=COLUMNS[:2]), TextStyle(14))
    assert "Seq     1" in text  # 4 + 2 + 12 cells do not fit 14 columns


@pytest.mark.parametrize("total", [None, {"seq_q": 6144, "kernel": "sum"}])
def test_a_colour_terminal_shows_the_same_table(total: dict[str, Any] | None) -> None:
    rows = [*ROWS, {"seq_q": 4096, "kernel": "漢字 é", "time_s": {"median": 1e-6}}]
    shown = report(sections=(Section((), rows, total=total),))
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", render_table(shown, TextStyle(120, colour=True)))
    assert [line.rstrip() for line in coloured.splitlines()] == render_table(shown, TextStyle(120)).splitlines()


def test_plain_tables_do_not_import_rich() -> None:
    code = (
        "import sys; from attnprof.report.document import *; from attnprof.report.table import *;"
        "render_table(Report('x', (Column('a', 'A', 'a'),), (Section((), [{'a': '×'}]),)));"
        "sys.exit('rich.console' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def many_rows(count: int) -> list[dict[str, Any]]:
    return [{**ROWS[0], "seq_q": number} for number in range(1000, 1000 + count)]


@pytest.mark.parametrize("style", [TextStyle(), TextStyle(colour=True), TextStyle(width=30), None])
def test_rows_between_the_first_and_the_last_are_left_out_of_tables_only(style: TextStyle | None) -> None:
    folded = report(sections=(Section((), many_rows(50), most_rows=5),), group_by=None)
    text = render_markdown(folded) if style is None else render_table(folded, style)
    shown = [number for number in range(1000, 1050) if str(number) in text]
    assert shown == [1000, 1001, 1002, 1048, 1049]
    assert "…" in text
    assert len(json.loads(render_json(folded))["rows"]) == 50
    assert len(render_csv(folded).splitlines()) == 51


@pytest.mark.parametrize("count", [0, 4, 5])
def test_few_rows_are_all_shown(count: int) -> None:
    whole = report(sections=(Section(("heading",), many_rows(count), most_rows=5),), group_by=None)
    assert "…" not in render_table(whole)
    assert "…" not in render_markdown(whole)


def test_folded_rows_keep_their_groups() -> None:
    rows = [{**row, "seq_q": 1000 + index // 4} for index, row in enumerate(many_rows(40))]
    text = render_table(report(sections=(Section((), rows, most_rows=8),)))
    assert "1000" in text
    assert "1009" in text


def test_a_table_beside_the_point_has_columns_of_its_own_and_no_csv() -> None:
    aside = Section(("beside",), [{"colour": "red"}], columns=(Column("colour", "Colour", "a colour", align="left"),))
    both = report(sections=(Section((), ROWS), aside))
    for text in (render_table(both), render_markdown(both)):
        assert "Colour" in text
        assert "red" in text
        assert text.count("Kernel") == 1
    assert "red" not in render_csv(both)
    assert "red" not in render_json(both)
    assert len(json.loads(render_json(both))["rows"]) == len(ROWS)
