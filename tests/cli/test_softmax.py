"""``attnprof softmax``: the recurrence, its figures, and the numbers that people type."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable

import pytest

from tests.cli.conftest import Cli

Snapshot = Callable[[str, str], None]


def test_the_example_of_the_documentation(cli: Cli, snapshot: Snapshot) -> None:
    document = cli("softmax", "1,3,2,4", "--block", "2", "--json").json
    assert document["command"] == "softmax"
    first, second = document["steps"]
    assert first == {"block": [1, 3], "max": 3, "sum": pytest.approx(1 + math.exp(-2))}
    assert second == {
        "block": [2, 4],
        "max": 4,
        "rescale": pytest.approx(math.exp(-1)),
        "sum": pytest.approx((1 + math.exp(-2)) * math.exp(-1) + math.exp(-2) + 1),
    }
    weights = [math.exp(x) for x in (1, 3, 2, 4)]
    assert document["probabilities"] == pytest.approx([w / sum(weights) for w in weights], rel=1e-14)
    assert 0 <= document["max_difference"] < 1e-15
    assert document["naive_fp16"]["overflows"] is False
    snapshot("softmax.txt", cli("softmax", "1,3,2,4", "--block", "2").out)
    snapshot("softmax.md", cli("softmax", "1,3,2,4", "--block", "2", "--md").out)


def test_csv_has_the_steps(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("softmax", "1,3,2,4", "--block", "2", "--csv").out)))
    assert [row["block"] for row in rows] == ["1;3", "2;4"]
    assert rows[0]["rescale"] == ""
    assert float(rows[1]["rescale"]) == math.exp(-1)


def test_masked_numbers(cli: Cli, snapshot: Snapshot) -> None:
    result = cli("softmax", "-inf,-inf,5,-1", "--block", "1")
    assert result.code == 0
    snapshot("softmax-masked.txt", result.out)
    document = cli("softmax", "-inf,-inf,5,-1", "--block", "1", "--json").json
    assert document["steps"][0] == {"block": [None], "max": None, "sum": 0.0}
    assert document["probabilities"][:2] == [0.0, 0.0]


def test_all_masked(cli: Cli) -> None:
    result = cli("softmax", "--", "-inf,-inf")
    assert result.code == 0
    assert "every number is masked: l = 0, and each p is 0 by definition" in result.out
    assert cli("softmax", "-inf", "--json").json["probabilities"] == [0.0]


def test_the_trap_of_no_maximum(cli: Cli, snapshot: Snapshot) -> None:
    snapshot("softmax-overflow.txt", cli("softmax", "10,12,11").out)
    naive = cli("softmax", "10,12,11", "--json").json["naive_fp16"]
    assert naive == {"sum": None, "probabilities": [0.0, None, 0.0], "max_difference": None, "overflows": True}
    assert "rounds to 0, and 0 / 0 is NaN" in cli("softmax", "-20,-30").out
    assert "the sum is above 65,504" in cli("softmax", "11,11,11").out


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["-1,2"], [-1, 2]),
        (["--block", "1", "-1,-2.5"], [-1, -2.5]),
        (["-.5", "-1e-3"], [-0.5, -0.001]),
        (["--", "-1,2"], [-1, 2]),
        (["1", "3", "2"], [1, 3, 2]),
        (["1, 3,", "2"], [1, 3, 2]),
        (["+1,2."], [1, 2]),
        (["−3,1"], [-3, 1]),  # a typographic minus, pasted
        (["1e300,-1e300"], [1e300, -1e300]),
        (["-inf,-INFINITY,0"], [None, None, 0]),
    ],
)
def test_what_people_type(cli: Cli, arguments: list[str], numbers: list[float]) -> None:
    result = cli("softmax", "--json", *arguments)
    assert result.err == ""
    assert result.code == 0
    assert [value for step in result.json["steps"] for value in step["block"]] == numbers


def test_a_decimal_comma_is_explained(cli: Cli) -> None:
    result = cli("softmax", "0,5")
    assert result.code == 0
    assert result.err == "warning: a comma separates numbers: 0,5 is 0 and 5; one number is 0.5\n"
    assert result.out.startswith("2 numbers, 1 block of 2\n")


BAD = {
    "nothing": ([], "there are no numbers on the command line"),
    "empty": ([""], "there are no numbers on the command line"),
    "nan": (["1,nan"], "softmax of nan is undefined"),
    "infinity": (["1,inf"], "softmax of inf is undefined"),
    "beyond a double": (["1e999"], "1e999 is beyond the largest double"),
    "below a double": (["-1e999,1"], "-1e999 is beyond the largest double"),
    "block 0": (["1,2", "--block", "0"], "--block must be at least 1, not 0"),
    "empty value": (["1,,2"], "there is an empty value"),
    "trailing comma": (["1,2,"], "there is an empty value"),
    "word": (["1,two"], "'two' is not a number"),
    "underscore": (["1_000"], "'1_000' is not a number"),
    "other digits": (["१"], "'१' is not a number"),
    "hexadecimal": (["0x10"], "'0x10' is not a number"),
    "semicolon": (["0,5;1,5"], "a semicolon separates nothing here"),
    "decimal comma": (["0,05"], "'05' has a leading zero: a comma separates numbers"),
    "unknown option": (["1,2", "--blok", "2"], "No such option: --blok"),
    "unknown short option": (["1,2", "-b"], "No such option: -b"),
    "stdin and numbers": (["-", "1"], "- reads all numbers from standard input"),
    "long word": (["x" * 1000], "x...' is not a number"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD)
def test_bad_numbers(cli: Cli, arguments: list[str], says: str) -> None:
    result = cli("softmax", *arguments)
    assert result.code == 2
    assert result.out == ""
    error, hint = result.err.splitlines()
    assert error.startswith("error: ")
    assert says in error
    assert hint.startswith("hint: ")
    assert len(error) < 200


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (b"1,3\n2,4\n", [1, 3, 2, 4]),
        (b"1,\n3,\r\n2", [1, 3, 2]),
        (b"  1\t2\n\n3\n", [1, 2, 3]),
        (b"\xef\xbb\xbf1,2\r\n", [1, 2]),
    ],
)
def test_standard_input(cli: Cli, text: bytes, numbers: list[float]) -> None:
    document = cli("softmax", "-", "--json", stdin=text).json
    assert [value for step in document["steps"] for value in step["block"]] == numbers


@pytest.mark.parametrize(
    ("text", "says"), [(b"", "no numbers on standard input"), (b"\xff\xfe1", "standard input is not text")]
)
def test_bad_standard_input(cli: Cli, text: bytes, says: str) -> None:
    result = cli("softmax", "-", stdin=text)
    assert result.code == 2
    assert says in result.err


def test_no_standard_input(cli: Cli) -> None:
    assert "there is no standard input" in cli("softmax", "-").err


def test_too_many_numbers_are_refused_before_they_are_worked_on(cli: Cli) -> None:
    result = cli("softmax", "-", stdin=b"1 " * (2**20 + 1))
    assert result.code == 2
    assert "1,048,577 numbers are more than the 1,048,576 allowed" in result.err


def test_thousands_of_numbers_are_folded_in_tables_only(cli: Cli, snapshot: Snapshot) -> None:
    numbers = ",".join(str(n % 97) for n in range(5000))
    arguments = ("softmax", numbers, "--block", "100")
    out = cli(*arguments).out
    snapshot("softmax-folded.txt", out)
    assert "shown: 20 of 50 steps and 20 of 5,000 numbers; --json has all" in out
    document = cli(*arguments, "--json").json
    assert (len(document["steps"]), len(document["probabilities"])) == (50, 5000)
    assert len(list(csv.reader(io.StringIO(cli(*arguments, "--csv").out)))) == 51
    assert cli(*arguments, "--md").out.count("\n") < 70


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_other_encodings(cli: Cli, encoding: str) -> None:
    for arguments in (("softmax", "1,3,2,4"), ("softmax", ",".join("1" * 500)), ("softmax", "1,2", "--md")):
        result = cli(*arguments, encoding=encoding)
        assert result.code == 0
        assert result.out
    assert "l = l_old * exp(m_old - m) + sum" in cli("softmax", "1,3", encoding=encoding).out


@pytest.mark.parametrize("width", ["20", "40", "80"])
def test_narrow_terminals_cut_nothing(cli: Cli, width: str) -> None:
    out = cli("softmax", "1,3,2,4", "--block", "2", COLUMNS=width).out
    for figure in ("1.1353", "1.5530", "0.3679", "0.6439"):
        assert figure in out


def test_colours_on_a_terminal(cli: Cli) -> None:
    assert "\x1b[" in cli("softmax", ",".join("1" * 99), tty=True, COLUMNS="200").out
    assert "\x1b[" not in cli("softmax", "1,2", tty=True, NO_COLOR="1").out
