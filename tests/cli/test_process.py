"""The program as the shell runs it: what it loads, how long it takes, pipes, encodings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from attnprof.cli.command import load, names
from tests.cli.conftest import Cli, environment

ROOT = Path(__file__).resolve().parents[2]
ROOFLINE = ("roofline", "--seq", "32768")
COMMANDS_WITHOUT_GPU = [
    ("--help",),
    ("--version",),
    ROOFLINE,
    (*ROOFLINE, "--json"),
    ("kernels",),
    ("tile", "--gpu", "H200"),
    ("tile", "--gpu", "H200", "--sweep"),
    ("softmax", "1,3,2,4"),
]
# What these commands have no use for: GPU libraries, plotting, NumPy, what Typer brings along for others.
HEAVY = ("cupy", "cupy_backends", "torch", "cuda", "matplotlib", "numpy", "pydantic", "pandas", "PIL", "rich.console")


def attnprof(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "attnprof", *arguments]
    if shell:
        command = ["bash", "-o", "pipefail", "-c", f'"$@" {shell}', "bash", *command]
    return subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, check=False)


@pytest.mark.parametrize("arguments", COMMANDS_WITHOUT_GPU)
def test_nothing_heavy_is_loaded(arguments: tuple[str, ...]) -> None:
    code = (
        "import json, sys\n"
        "from attnprof.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as stop:\n"
        "    print(json.dumps([stop.code, sorted(sys.modules)]), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    status, modules = json.loads(result.stderr)
    assert status == 0
    assert [name for name in modules if name in HEAVY or name.split(".")[0] in HEAVY] == []


def test_start_up_takes_little_more_than_importing_typer_and_rich(tmp_path: Path) -> None:
    """Processor time, the least of ten interleaved runs: what else the machine does hardly counts."""
    commands = {
        "base": ["-c", "import typer, rich"],
        "help": ["-m", "attnprof", "--help"],
        "roofline": ["-m", "attnprof", *ROOFLINE],
    }
    # As installed: compiled once, not at every start.
    variables = {key: value for key, value in environment().items() if key != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    best = dict.fromkeys(commands, float("inf"))
    for run in range(11):
        for name, command in commands.items():
            spent = _processor_time_s([sys.executable, *command], variables)
            if run:  # the first run compiles
                best[name] = min(best[name], spent)
    assert best["help"] <= 1.5 * best["base"], best
    assert best["roofline"] <= 2.5 * best["base"], best


def _processor_time_s(command: list[str], variables: dict[str, str]) -> float:
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("command", [("--help",), ("roofline", "--seq", "1:4096:+1"), ("device", "--list", "--json")])
@pytest.mark.parametrize("reader", ["| head -1", "| true"])
def test_a_reader_that_leaves_early(command: tuple[str, ...], reader: str) -> None:
    result = attnprof(*command, shell=reader)
    assert result.returncode == 0
    assert result.stderr == b""


def test_cat_is_the_same_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "out"
    assert attnprof(*ROOFLINE, shell=f"> '{file}'").returncode == 0
    assert attnprof(*ROOFLINE, shell="| cat").stdout == file.read_bytes()
    assert b"\x1b" not in file.read_bytes()


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0"},
    ],
    ids=["ascii", "C", "de_DE"],
)
@pytest.mark.parametrize("option", [(), ("--csv",), ("--json",), ("--md",), ("--ledger",)])
def test_other_encodings(variables: dict[str, str], option: tuple[str, ...]) -> None:
    result = attnprof(*ROOFLINE, "--gpu", "H200", *option, **variables)
    assert result.returncode == 0
    assert result.stderr == b""
    if variables.get("PYTHONIOENCODING") == "ascii":
        assert result.stdout.isascii()
    if option == ("--csv",):
        assert b"57489926" in result.stdout.replace(b".", b"")
        assert b"0,0574" not in result.stdout


def test_help_fits_an_ascii_terminal() -> None:
    for command in names():
        result = attnprof(command, "--help", PYTHONIOENCODING="ascii")
        assert result.returncode == 0
        assert result.stdout.isascii()
        assert b"--json" in result.stdout


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_is_quiet(name: str) -> None:
    """Ctrl-C, and what ``timeout`` sends."""
    code = "import os, signal\nfrom attnprof.cli import values\n"
    code += f"values.counts = lambda *a, **k: os.kill(os.getpid(), signal.{name})\n"
    code += "from attnprof.cli.main import main\nmain(['roofline'])\n"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, check=False)
    assert result.returncode == 130
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize(("given", "found"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_blas_has_one_thread_unless_told_otherwise(given: dict[str, str], found: str) -> None:
    code = "import os\nfrom attnprof.cli.main import main\n"
    code += "try:\n    main(['--version'])\nexcept SystemExit:\n    print(os.environ['OPENBLAS_NUM_THREADS'])\n"
    variables = {key: value for key, value in environment().items() if key != "OPENBLAS_NUM_THREADS"} | given
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, check=True)
    assert result.stdout.decode().splitlines()[-1] == found


def test_it_works_without_a_home_it_can_write_to(tmp_path: Path) -> None:
    locked = tmp_path / "home"
    locked.mkdir(mode=0o500)
    assert attnprof(*ROOFLINE, HOME=str(locked)).returncode == 0


def test_the_version() -> None:
    from attnprof import __version__

    assert attnprof("--version").stdout.decode() == f"attnprof {__version__}\n"


@pytest.mark.parametrize("name", names())
def test_help_of_a_command(cli: Cli, name: str) -> None:
    """Its own words, not Typer's layout, which differs between versions."""
    result = cli(name, "--help")
    assert result.code == 0
    assert result.out.isascii()
    words = " ".join(result.out.split())
    assert " ".join((load(name).run.__doc__ or "").split()) in words
    assert f"For example: {load(name).example}" in words
    hints = get_type_hints(load(name).run, include_extras=True)
    options = [option for hint in hints.values() for option in getattr(hint, "__metadata__", ())]
    assert len(options) >= 4
    for option in options:
        assert " ".join(option.help.split()) in words
        # An argument goes by its metavar, an option by its names.
        declared = (option.default, *option.param_decls) if option.default is not ... else (option.metavar,)
        assert any(name.split("/")[0] in words for name in declared)


def test_help_lists_every_command(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    for name in names():
        first_line = (load(name).run.__doc__ or "").splitlines()[0]
        assert re.search(rf"^  {name} +{re.escape(first_line)}$", result.out, re.MULTILINE)


def test_no_arguments_show_the_help() -> None:
    result = attnprof()
    assert result.returncode == 0
    assert result.stdout == attnprof("--help").stdout
