"""Option values: what is read, and what each refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnprof.cli import values
from attnprof.cli.options import WorkloadOptions
from attnprof.model.errors import UsageError


def lengths(*texts: str) -> tuple[int, ...]:
    return values.counts(texts, "--seq", largest=values.MAX_LENGTH, example="4096")


def scale(text: str) -> float:
    (workload,) = options(seq=["1k"], scale=text).workloads()
    return workload.scale


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["4096"], (4096,)),
        (["32k", "32K", "32768"], (32768,)),
        (["1m"], (2**20,)),
        (["1g"], (2**30,)),
        (["1k,2k", "4k"], (1024, 2048, 4096)),
        ([" 1k , 512 "], (1024, 512)),
        (["1k:32k:x2"], (1024, 2048, 4096, 8192, 16384, 32768)),
        (["1k:5000:x2"], (1024, 2048, 4096)),
        (["1k:4k:+1k"], (1024, 2048, 3072, 4096)),
        (["1k:4k:+1025"], (1024, 2049, 3074)),
        (["7:7:x2"], (7,)),
        (["1k:4k:x2,3k", "2k"], (1024, 2048, 4096, 3072)),
    ],
)
def test_lengths(texts: list[str], expected: tuple[int, ...]) -> None:
    assert lengths(*texts) == expected


@pytest.mark.parametrize(
    ("call", "says", "hints"),
    [
        (lambda: lengths("0"), "at least 1, not 0", "--seq 4096"),
        (lambda: lengths("-5"), "'-5' is not a positive whole number", "--seq 4096"),
        (lambda: lengths("1e9"), "'1e9' is not a positive whole number", "32k means 32768"),
        (lambda: lengths("1.5k"), "'1.5k' is not a positive whole number", "--seq 4096"),
        (lambda: lengths("१०"), "not a positive whole number", "--seq 4096"),
        (lambda: lengths("1_000"), "not a positive whole number", "--seq 4096"),
        (lambda: lengths("nan"), "not a positive whole number", "--seq 4096"),
        (lambda: lengths("1,024"), "leading zero", "write 1024, not 1,024"),
        (lambda: lengths("2g"), "above the largest allowed, 1,073,741,824", "--seq 4096"),
        (lambda: lengths("9" * 400), "above the largest allowed", "--seq 4096"),
        (lambda: lengths("1" * 5000), "--seq 111111111111111111... is above the largest allowed", "--seq 4096"),
        (lambda: lengths(""), "empty value", "--seq 4096"),
        (lambda: lengths("1k,,2k"), "empty value", "--seq 4096"),
        (lambda: lengths("1k:8k"), "needs a first, a last and a step", "1k:32k:x2"),
        (lambda: lengths("1k:8k:2"), "starts with neither x nor +", "FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"),
        (lambda: lengths("1k:8k:x1"), "never reaches the end", "1k:32k:x2"),
        (lambda: lengths("1k:8k:x0"), "at least 1, not 0", ""),
        (lambda: lengths("8k:1k:x2"), "runs backwards", "1k:8k:x2"),
        (lambda: lengths("1:1g:+1"), "more than 10,000 values", "larger step"),
        (lambda: values.choice("fp8", "--dtype", ("fp16", "bf16")), "'fp8' is not known", "choose from fp16, bf16"),
        (lambda: values.seconds("0,125", "--min-time"), "a dot, not a comma", "--min-time 0.5"),
        (lambda: scale("0,125"), "a dot, not a comma", "--scale 0.125"),
        (lambda: scale("0x1p-3"), "not a number", "--scale 0.125"),
        (lambda: scale("inf"), "not a number", "--scale 0.125"),
        (lambda: scale("0"), "between 1e-30 and 1e+30", "--scale 0.125"),
        (lambda: scale("-1"), "between 1e-30 and 1e+30", "--scale 0.125"),
        (lambda: scale(""), "not a number", "--scale 0.125"),
        (lambda: values.seconds("0", "--min-time"), "must be above 0", "--min-time 0.5"),
        (lambda: values.seconds("inf", "--min-time"), "not a time in seconds", "--min-time 0.5"),
        (lambda: values.seconds("1e-3", "--min-time"), "not a time in seconds", "--min-time 0.5"),
    ],
)
def test_refusals_say_what_was_wrong_and_what_to_type(call: Callable[[], Any], says: str, hints: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert says in caught.value.message
    assert hints in (caught.value.hint or "")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "value"), [("0.125", 0.125), (".5", 0.5), ("1", 1.0), (" 1e-3 ", 0.001), ("2E2", 200.0)]
)
def test_scales_are_plain_numbers(text: str, value: float) -> None:
    assert scale(text) == value
    assert {w.scale for w in options(seq=["1k,2k"], scale=text).workloads()} == {value}


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("32,768", True),
        ("8,192", True),
        ("1,048,576", True),
        (" 100,200 ", True),
        ("64,128", False),
        ("128,256,512", False),
        ("1k,512", False),
        ("1024,768", False),
        ("32,76", False),
        ("32, 768", False),
        ("768", False),
    ],
)
def test_what_reads_like_a_number_with_thousands_separators(text: str, one: bool) -> None:
    assert values.perhaps_one_number(text) is one


def test_times_take_seconds_or_milliseconds() -> None:
    assert values.seconds("0.5", "--min-time") == 0.5
    assert values.seconds("250ms", "--min-time") == 0.25
    assert values.seconds("2s", "--min-time") == 2.0


def test_a_file_whose_name_has_a_comma_is_one_kernel(tmp_path: Path) -> None:
    file = tmp_path / "a b" / "é,x.py"
    file.parent.mkdir()
    file.touch()
    assert values.kernel_names([str(file), "naive,fa2", "fa2"]) == (str(file), "naive", "fa2")


def options(**changes: Any) -> WorkloadOptions:
    fields: dict[str, Any] = {
        "seq": None, "kv_seq": None, "batch": "1", "heads": "32", "kv_heads": None, "head_dim": None, "dtype": None,
        "causal": False, "direction": "fwd",
    }  # fmt: skip
    return WorkloadOptions(**(fields | changes))


def test_the_default_is_a_sweep() -> None:
    workloads = options().workloads()
    assert [w.seq_q for w in workloads] == [1024, 2048, 4096, 8192, 16384, 32768]
    assert {(w.seq_q == w.seq_kv, w.batch, w.heads, w.kv_heads, w.head_dim, str(w.dtype)) for w in workloads} == {
        (True, 1, 32, 32, 128, "fp16")
    }


def test_every_combination_once() -> None:
    workloads = options(seq=["1k,1024,2k"], kv_seq=["4k"], head_dim=["64,128"], dtype=["FP16,bf16"]).workloads()
    assert [(str(w.dtype), w.head_dim, w.seq_q, w.seq_kv) for w in workloads] == [
        (dtype, d, seq, 4096) for dtype in ("fp16", "bf16") for d in (64, 128) for seq in (1024, 2048)
    ]


def test_kv_heads_that_do_not_divide_name_the_option_and_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        options(kv_heads="5").workloads()
    assert caught.value.message == "--kv-heads 5 does not divide --heads 32"
    assert "--kv-heads 4" in (caught.value.hint or "")


def test_huge_lengths_count_exactly() -> None:
    (workload,) = options(seq=["1g"]).workloads()
    assert workload.flops == 2**74


def test_too_many_workloads_are_refused_before_they_are_built() -> None:
    with pytest.raises(UsageError, match=r"more than the 10,000"):
        options(seq=["1:5000:+1"], head_dim=["64,128"], dtype=["fp16,bf16"]).workloads()
