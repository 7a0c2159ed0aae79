"""The record of a kernel: which devices it is for."""

from __future__ import annotations

import pytest

from tests.fakes import fake_spec


@pytest.mark.parametrize(
    ("oldest", "runs", "not_on"),
    [
        ("sm_80", [(8, 0), (8, 6), (9, 0), (12, 1)], [(7, 5)]),
        ("sm_90a", [(9, 0)], [(8, 9), (10, 0), (12, 1)]),
        ("sm_100a", [(10, 0)], [(9, 0), (10, 3), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (12, 0)]),
    ],
)
def test_where_it_runs(oldest: str, runs: list[tuple[int, int]], not_on: list[tuple[int, int]]) -> None:
    spec = fake_spec(arches=(oldest, "sm_120a"))
    assert [spec.runs_on(device) for device in runs] == [None] * len(runs)
    for major, minor in not_on:
        assert spec.runs_on((major, minor)) == f"needs {oldest}, this GPU is sm_{major}{minor}"


@pytest.mark.parametrize("arches", [(), ("hopper",), ("sm_80", "sm_9"), ("sm_80b",), ("sm_90a ",)], ids=str)
def test_an_architecture_that_is_none_is_refused(arches: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^fake: .*arches look like"):
        fake_spec(arches=arches)


def test_a_file_that_is_no_path_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^fake: file is 'fake.cu', not a Path$"):
        fake_spec(file="fake.cu")


def test_a_place_of_rounding_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^fake: rounds holds 'x'; it may hold 's', 'p', 'ds', 'o'$"):
        fake_spec(rounds=("o", "x"))
