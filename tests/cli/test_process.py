"""The program as the shell runs it: what it loads, how long it takes, pipes, encodings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import get_type_hints

import pytest

from attnprof.cli import main as entry
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


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_text_are_refused_in_every_locale(locale: str) -> None:
    result = attnprof("softmax", "-", shell="< <(printf '1,\\377')", LC_ALL=locale)
    assert result.returncode == 2
    assert b"standard input is not text" in result.stderr


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


# Workers that start, and then work for long; with the program's own entry point, as a terminal sees it.
BUSY = """\
import sys, time
from attnprof.check.workers import Workers
from attnprof.cli import values
from attnprof.cli.main import main

def work(*_, **__):
    with Workers(2) as workers:
        for _ in range(100):
            workers.start("processes", time.sleep, 600)
        print("begun", file=sys.stderr, flush=True)
        time.sleep(600)

if __name__ == "__main__":
    values.counts = work
    main(["roofline"])
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize(("name", "times"), [("SIGINT", 1), ("SIGINT", 4), ("SIGTERM", 2)])
@pytest.mark.parametrize("busy_s", [0.1, 1.0], ids=["while workers start", "while they work"])
def test_interrupts_end_the_workers_and_say_nothing_of_them(
    tmp_path: Path, name: str, times: int, busy_s: float
) -> None:
    script = tmp_path / "script.py"
    script.write_text(BUSY)
    _, err, code = interrupted([str(script)], name, times, busy_s)
    assert code == 130
    assert err.strip() in ("", "error: interrupted")  # some versions of Typer make an exit code of it


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_an_impatient_ctrl_c_keeps_the_finished_rows(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    file = tmp_path / "run.json"
    command = ["-m", "attnprof", "check", "--kernel", "softmax-naive", "--backend", "emulator", "--output", str(file)]
    out, err, code = interrupted(command, "SIGINT", 3, ATTNPROF_CACHE_DIR=str(tmp_path / "cache"))
    assert code == 130
    assert "Traceback" not in err
    assert out.endswith(", interrupted\n")
    saved = json.loads(file.read_text())
    assert saved["interrupted"] is True
    assert saved["rows"]


def interrupted(
    arguments: list[str], name: str, times: int, later_s: float = 0.0, **variables: str
) -> tuple[str, str, int]:
    """Send a signal as a terminal does, to all processes, after the first line on stderr; the output and the status."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(PYTHONPATH=str(ROOT), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert process.stderr.readline()
            time.sleep(later_s)
            for _ in range(times):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, getattr(signal, name))
                time.sleep(0.05)
            out, err = process.communicate(timeout=60)  # ends when nobody is left who could print
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return out, err, process.returncode


def test_a_later_interrupt_is_for_what_did_not_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(entry.time, "monotonic", lambda: now_s)
    interrupt = entry._Interrupt()
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)
    for now_s in (0.05, 2.9):  # noqa: B007
        interrupt(signal.SIGTERM, None)
    now_s = 3.1
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, None)


def test_in_the_background_of_a_shell_ctrl_c_is_for_others() -> None:
    code = "import os, signal\nfrom attnprof.cli import values\ncounts = values.counts\n"
    code += "def sent(*a, **k):\n    os.kill(os.getpid(), signal.SIGINT)\n    return counts(*a, **k)\n"
    code += "values.counts = sent\nfrom attnprof.cli.main import main\nmain(['roofline'])\n"
    command = ["bash", "-c", "trap '' INT; exec \"$@\"", "bash", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [*COMMANDS_WITHOUT_GPU, ("device", "--list")], ids=" ".join)
def test_stdout_that_takes_nothing_is_no_failed_check(command: tuple[str, ...]) -> None:
    result = attnprof(*command, shell="> /dev/full")
    assert result.returncode == 2
    assert result.stderr.decode().splitlines() == [
        "error: cannot write to stdout: No space left on device",
        "hint: free some space, or send the output elsewhere",
    ]


@pytest.mark.parametrize("command", [("kernels",), ("--version",), ("check", "--kernel", "fa2")], ids=" ".join)
def test_a_closed_stdout_is_refused_before_any_work(command: tuple[str, ...]) -> None:
    result = attnprof(*command, shell=">&-")
    assert result.returncode == 2
    error, hint = result.stderr.decode().splitlines()
    assert error == "error: stdout is closed: there is nowhere to print"
    assert hint.startswith("hint: send it to a file")


@pytest.mark.parametrize("shell", ["2>&-", "2> /dev/full"])
def test_without_stderr_it_works_in_silence(shell: str) -> None:
    fine = attnprof("kernels", shell=shell)
    assert (fine.returncode, fine.stdout) == (0, attnprof("kernels").stdout)
    assert attnprof("kernels", "--none", shell=shell).returncode == 2
    assert attnprof("kernels", shell=f">&- {shell}").returncode == 2


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
