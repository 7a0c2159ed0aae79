"""Bad input: one line that says what was wrong, one that says what to type, exit 2, nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

BAD = {
    "unknown command": (["rofline"], "No such command 'rofline'", "choose from roofline, bench, check"),
    "unknown option": (["roofline", "--sequ", "1k"], "No such option: --sequ", "for example: attnprof roofline --seq"),
    "missing value": (["roofline", "--seq"], "requires an argument", "for example: attnprof roofline --seq"),
    "extra argument": (["roofline", "1024"], "unexpected extra argument", "attnprof roofline --help lists"),
    "GPUs apart": (["roofline", "--gpu", "H200", "B200"], "argument(s) (B200)", "no space: --gpu H200,B200; attnprof"),
    "lengths apart": (["bench", "--json", "--seq=1k,", "2k", ",", "4k"], "(2k , 4k)", "no space: --seq 1k,2k,4k; attn"),
    "kernels apart": (["trace", "--kernel", "fa2", "fa1"], "argument(s) (fa1)", "no space: --kernel fa2,fa1; attnprof"),
    "a flag's value": (["roofline", "--causal", "true"], "(true)", "--causal takes no value: --causal or --no-causal;"),
    "a value of no": (["bench", "--no-rates", "1"], "argument(s) (1)", "--no-rates takes no value: --rates or --no-ra"),
    "a format's value": (["roofline", "--json", "a.json"], "argument(s) (a.json)", "--json takes no value; attnprof"),
    "two batches": (["roofline", "--batch", "1", "2"], "argument(s) (2)", "--batch takes one value; attnprof roofline"),
    "two files": (["roofline", "--output", "a.json", "b.csv"], "(b.csv)", "--output a.json --output b.csv; attnprof"),
    "before options": (["roofline", "1024", "--causal"], "argument(s) (1024)", "attnprof roofline --help lists"),
    "no number": (["roofline", "--seq", "abc"], "--seq 'abc' is not a positive whole number", "--seq 4096"),
    "zero": (["roofline", "--seq", "0"], "--seq must be at least 1, not 0", "--seq 4096"),
    "negative": (["roofline", "--heads", "-1"], "--heads '-1' is not a positive whole number", "--heads 32"),
    "thousands separator": (["roofline", "--seq", "32,768,024"], "leading zero", "write 1024, not 1,024"),
    "huge batch": (["roofline", "--batch", "1g"], "--batch 1g is above the largest allowed, 1,048,576", "--batch 1"),
    "no divisor": (["roofline", "--kv-heads", "7"], "--kv-heads 7 does not divide --heads 32", "--kv-heads 8"),
    "unknown type": (["roofline", "--dtype", "fp8"], "--dtype 'fp8' is not known", "choose from fp16, bf16"),
    "unknown pass": (["roofline", "--pass", "both"], "--pass 'both' is not known", "choose from fwd, bwd"),
    "unknown ceilings": (["roofline", "--ceilings", "peak"], "--ceilings 'peak' is not known", "datasheet, clock"),
    "unknown kernel": (["roofline", "--kernel", "fa9"], "unknown kernel 'fa9'", "or all; or give a file: --kernel"),
    "a kernel in capitals": (["roofline", "--kernel", "FA2"], "unknown kernel 'FA2'", "did you mean fa2? choose"),
    "nearly a kernel": (["roofline", "--kernel", "fa3"], "unknown kernel 'fa3'", "did you mean fa"),
    "nearly a check": (["check", "--check", "numeric"], "'numeric' is not known", "did you mean numerics? choose"),
    "a variant": (
        ["bench", "--kernel", "fa2[plain]"],
        "fa2[plain] is a variant, and no kernel of its own", "--kernel fa2 --variant plain",
    ),
    "no variant": (["bench", "--kernel", "fa2[plane]"], "fa2 has no variant 'plane'", "it has plain, pad"),
    "CUDA source": (
        ["trace", "--kernel", "./mine.cu"],
        "./mine.cu is CUDA source: --kernel takes the .py file", "docs/how-to/your-own-kernel.md",
    ),
    "unknown GPU": (["roofline", "--gpu", "H20000"], "unknown GPU 'H20000'", "did you mean"),
    "unknown GPU among known ones": (["roofline", "--gpu", "H200,Z1"], "unknown GPU 'Z1'", "the table has"),
    "no such file": (["roofline", "--kernel", "./none.py"], "no such file: none.py", "attnprof kernels"),
    "two formats": (["roofline", "--json", "--csv"], "--json and --csv exclude each other", "--output run.csv"),
    "no format": (["roofline", "--output", "run"], "does not tell the format", ".json, .csv, .md or .txt"),
    "no folder": (["roofline", "--output", "/none/a.json"], "there is no folder /none", "mkdir -p /none"),
    "a folder": (["roofline", "--output", "/tmp", "--json"], "--output /tmp is a folder", "name a file"),
    "an empty name": (["roofline", "--output", ""], "--output is empty", "--output run.json"),
    "a step of 0": (["roofline", "--seq", "1:10:+0"], "--seq 1:10:+0: step must be at least 1", "--seq 1k:32k:x2"),
    "a step that is none": (["roofline", "--cols", "1:10:xa"], "step 'a' is not a positive", "--cols 1k:32k:x2"),
    "backwards": (["roofline", "--seq", "10:1:+1"], "'10:1:+1' runs backwards", "--seq 1:10:+1"),
    "rows and a length": (["trace", "--seq", "1k", "--rows", "7"], "--rows and --seq", "attnprof trace --seq 256"),
    "columns and keys": (["bench", "--cols", "4k", "--kv-seq", "4"], "--cols and --kv-seq", "bench --cols 4096"),
    "attention's options": (
        ["roofline", "--cols", "4k", "--pass", "bwd", "--heads", "32", "--batch", "3", "--head-dim", "64"],
        "softmax kernels take no --batch, --heads, --head-dim, --pass", "attnprof roofline --cols 4096",
    ),
    "a layout of a matrix": (["bench", "--cols", "4k", "--layout", "bhsd"], "take no --layout", "bench --cols 4096"),
    "a scale of a matrix": (["bench", "--cols", "4k", "--scale", "1"], "take no --scale", "bench --cols 4096"),
    "KV heads of a matrix": (["trace", "--cols", "4k", "--kv-heads", "2"], "take no --kv-heads", "trace --cols 4096"),
    "list and GPU": (["device", "--list", "--gpu", "H200"], "exclude each other", "attnprof device --list"),
    "decimal comma": (["bench", "--min-time", "0,125"], "a dot, not a comma", "--min-time 0.5"),
    "unknown L2 mode": (["bench", "--l2", "hot"], "--l2 'hot' is not known", "choose from cold, warm"),
    "unknown peer": (["bench", "--peer", "fa4"], "--peer 'fa4' is not known", "torch-flash"),
    "a rate is no peer": (["bench", "--peer", "copy"], "--peer 'copy' is not known", "torch-flash"),
    "negative seed": (["bench", "--seed", "-1"], "--seed '-1' is not a whole number", "--seed 0"),
    "unknown check": (["check", "--check", "speed"], "--check 'speed' is not known", "numerics"),
    "unknown backend": (["check", "--backend", "cpu"], "--backend 'cpu' is not known", "gpu, emulator"),
    "contradiction": (["check", "--backend", "emulator", "--require-gpu"], "exclude each other", "leave one of them"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "says", "hints"), BAD.values(), ids=BAD)
def test_bad_input(cli: Cli, arguments: list[str], says: str, hints: str) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    error, hint = result.err.splitlines()
    assert error.startswith("error: ")
    assert says in error
    assert hint.startswith("hint: ")
    assert hints in hint


@pytest.mark.parametrize(
    ("options", "option", "is_"),
    [
        (("--seq", "32,768"), "--seq 32,768", "32 and 768; one number is 32768"),
        (("--seq", "1k", "--seq", "131,172"), "--seq 131,172", "131 and 172; one number is 131172"),
        (("--seq", "1k", "--kv-seq", "8,192"), "--kv-seq 8,192", "8 and 192; one number is 8192"),
        (("--cols", "1,248,576", "--rows", "1"), "--cols 1,248,576", "1, 248 and 576; one number is 1248576"),
        (("--cols", "1k", "--rows", "2,304"), "--rows 2,304", "2 and 304; one number is 2304"),
    ],
)
def test_a_list_that_reads_like_one_number_is_warned_of(
    cli: Cli, options: tuple[str, ...], option: str, is_: str
) -> None:
    result = cli("roofline", *options)
    assert result.code == 0
    assert result.err == f"warning: a comma separates values: {option} is {is_}\n"


@pytest.mark.parametrize("options", ["--seq 128,256,512 --head-dim 96,128", "--seq 1k,2k", "--seq 4096"])
def test_other_lists_are_not(cli: Cli, options: str) -> None:
    assert cli("roofline", *options.split()).err == ""


@pytest.mark.parametrize(("command", "defaults"), [("roofline", ("1k:32k:x2", "for 1 GiB")), ("trace", ("256", "64"))])
def test_help_tells_the_defaults_of_its_own_command(cli: Cli, command: str, defaults: tuple[str, str]) -> None:
    text = " ".join(cli(command, "--help").out.split())
    for option, default in zip(("--seq N", "--rows N"), defaults, strict=True):
        assert text.partition(option)[2].partition("[default: ")[2].startswith(f"{default}]")


def test_bench_without_a_gpu_names_what_works(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.cli import backends
    from attnprof.gpu.opening import PREDICT_HINT
    from attnprof.model.errors import EnvironmentProblem

    def none_here() -> None:
        raise EnvironmentProblem("no GPU: there is no NVIDIA driver", PREDICT_HINT)

    monkeypatch.setattr(backends, "open_gpu", none_here)
    result = cli("bench", "--seq", "1k")
    assert result.code == 2
    assert result.out == ""
    assert result.err.splitlines()[0] == "error: no GPU: there is no NVIDIA driver"
    assert "attnprof roofline --gpu NAME" in result.err.splitlines()[1]


def test_a_file_without_a_kernel(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a b" / "é.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    result = cli("roofline", "--kernel", str(file))
    assert result.code == 2
    assert f"{file} holds no KernelSpec" in result.err


BROKEN = {
    "import": ("\nimport nosuch_x\n", "line 2: ModuleNotFoundError: No module named 'nosuch_x'"),
    "syntax": ("x = (", "line 1: SyntaxError: '(' was never closed"),
    "name": ("x = 1\n\ny = z\n", "line 3: NameError: name 'z' is not defined"),
    "type": ("def f(a):\n    return 1 + a\n\n\nf('b')\n", "line 2: TypeError: unsupported operand"),
    "deeper": ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError: "),
    "no message": ("assert 1 == 2\n", "line 1: AssertionError\n"),
    "exit": ("import sys\nsys.exit('no')\n", "line 2: SystemExit: no"),
    "lines": ("raise ValueError('a\\nb')\n", "line 1: ValueError: a b\n"),
    "no exception": ("import asyncio\nraise asyncio.CancelledError('x')\n", "line 2: CancelledError: x\n"),
    "no words": (
        "class Odd(Exception):\n    def __str__(self):\n        raise TypeError\n\n\nraise Odd\n",
        "line 6: Odd: <exception str() failed>\n",
    ),
    "architecture": (
        "from dataclasses import replace\nfrom attnprof.kernels.ladder.fa2 import SPECS\n\n"
        "SPEC = replace(SPECS[0], arches=('sm_80', 'hopper'))\n",
        "line 4: ValueError: fa2: 'hopper' is no architecture name; arches look like",
    ),
    "no architecture": (
        "from dataclasses import replace\nfrom attnprof.kernels.ladder.fa2 import SPECS\n\n"
        "SPEC = replace(SPECS[0], arches=())\n",
        "line 4: ValueError: fa2: names no architecture; arches look like",
    ),
    "rounding": (
        "from dataclasses import replace\nfrom attnprof.kernels.ladder.fa2 import SPECS\n\n"
        "SPEC = replace(SPECS[0], rounds=('x',))\n",
        "line 4: ValueError: fa2: rounds holds 'x'; it may hold 's', 'p', 'ds', 'o'",
    ),
    "own class": ("class Odd(Exception):\n    pass\n\n\nraise Odd\n", "line 5: Odd\n"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_imported(cli: Cli, tmp_path: Path, case: str) -> None:
    source, says = BROKEN[case]
    file = tmp_path / "mine.py"
    file.write_text(source)
    result = cli("roofline", "--kernel", str(file))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: cannot import {file}: {says}")
    assert result.err.splitlines()[1:] == [f"hint: python {file} shows the whole traceback"]


def test_an_interrupt_while_a_file_is_imported_is_an_interrupt(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise KeyboardInterrupt\n")
    assert cli("roofline", "--kernel", str(file)).code == 130


def test_a_file_that_refuses_in_our_own_words_is_quoted_as_it_is(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from attnprof.model.errors import UsageError\nraise UsageError('not on Sundays')\n")
    assert cli("roofline", "--kernel", str(file)).err == "error: not on Sundays\n"


def test_what_a_file_prints_is_no_result(cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from attnprof.kernels.ladder.fa2 import SPECS\nprint('compiling...')\n")
    assert cli("roofline", "--kernel", str(file), "--seq", "1k", "--json").json["rows"]
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", "compiling...\n")


NAMED_FA2 = "from dataclasses import replace\nfrom attnprof.kernels.ladder import fa2\n\n"


def _named(file: Path, *names: str) -> str:
    specs = ", ".join(f"replace(fa2.SPECS[0], name={name!r})" for name in names)
    file.write_text(f"{NAMED_FA2}MINE = ({specs},)\n")
    return str(file)


@pytest.mark.parametrize("beside", ["", ",fa2", ",all", ",naive"])
def test_a_kernel_that_is_called_like_a_built_in_one_is_refused(cli: Cli, tmp_path: Path, beside: str) -> None:
    file = _named(tmp_path / "dup.py", "fa2")
    result = cli("roofline", "--kernel", f"{file}{beside}")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: two kernels are called fa2: the built-in one and one of {file}\n"
        'hint: give yours a name of its own, as in KernelSpec(name="my-fa2", ...)\n'
    )


@pytest.mark.parametrize("callback", ["demand", "unsupported"])
def test_a_callback_that_raises_is_one_line(cli: Cli, tmp_path: Path, callback: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{NAMED_FA2}MINE = replace(\n    fa2.SPECS[0], name='mine', {callback}=lambda *_: nothing\n)\n")
    result = cli("roofline", "--kernel", str(file), "--seq", "1k")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: mine: {callback} on b1 h32 s1024 d128 fp16 failed in {file}, line 5: "
        "NameError: name 'nothing' is not defined\n"
        "hint: docs/how-to/your-own-kernel.md says what each callback takes and returns\n"
    )


def test_two_kernels_of_one_name_are_refused(cli: Cli, tmp_path: Path) -> None:
    one, other, twice = (_named(tmp_path / f"{name}.py", *names) for name, names in SAME_NAMES.items())
    assert (
        f"two kernels are called mine: one of {one} and one of {other}"
        in cli("kernels", "--kernel", f"{one},{other}").err
    )
    assert f"two kernels are called mine: one of {twice} and one of {twice}" in cli("kernels", "--kernel", twice).err


SAME_NAMES = {"one": ("mine",), "other": ("mine",), "twice": ("mine", "mine")}


def test_a_file_that_is_named_twice_is_one(cli: Cli, tmp_path: Path) -> None:
    file = Path(_named(tmp_path / "mine.py", "mine"))
    file.write_text(file.read_text() + "SAME = MINE[0]\n")
    again = str(file.parent / ".." / file.parent.name / file.name)
    rows = cli("kernels", "--kernel", f"{file},fa2,{again}", "--json").json["kernels"]
    assert [row["name"] for row in rows] == ["mine", "fa2"]


def test_an_installed_kernel_that_is_called_like_a_built_in_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from importlib import metadata

    from attnprof.kernels import catalogue

    _named(tmp_path / "package_of_theirs.py", "fa2")
    monkeypatch.syspath_prepend(tmp_path)
    point = metadata.EntryPoint("theirs", "package_of_theirs:MINE", catalogue.ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])
    catalogue.catalogue.cache_clear()
    result = cli("roofline", "--kernel", "all")
    catalogue.catalogue.cache_clear()
    assert (result.code, result.out) == (2, "")
    assert "entry point theirs (package_of_theirs:MINE) has a kernel called fa2, and so has another" in result.err
    assert cli("roofline", "--kernel", "fa2", "--seq", "1k").code == 0


def test_a_file_may_define_dataclasses(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Tile:\n    rows: int\n"
    )
    assert f"{file} holds no KernelSpec" in cli("roofline", "--kernel", str(file)).err


def test_an_installed_package_that_cannot_be_imported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    from attnprof.kernels import catalogue

    point = metadata.EntryPoint("theirs", "nosuch_package.kernels:SPEC", catalogue.ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])
    catalogue.catalogue.cache_clear()
    result = cli("roofline", "--kernel", "all")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "error: cannot import entry point theirs (nosuch_package.kernels:SPEC): ModuleNotFoundError: No module named"
    )
    catalogue.catalogue.cache_clear()


def test_a_read_only_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from attnprof.cli import output

    monkeypatch.setattr(output.os, "access", lambda *_: False)  # root may write anywhere
    result = cli("roofline", "--output", str(tmp_path / "a.json"))
    assert result.code == 2
    assert "no permission" in result.err


def test_errors_fit_an_ascii_terminal(cli: Cli) -> None:
    result = cli("roofline", "--seq", "é—", encoding="ascii")
    assert result.code == 2


def test_an_interrupt_outside_a_sweep(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.cli import options

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options.WorkloadOptions, "workloads", interrupt)
    result = cli("roofline")
    assert result.code == 130
    assert result.out == ""
    assert "Traceback" not in result.err
