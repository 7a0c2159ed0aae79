"""The built wheel, installed in a fresh environment away from the checkout, does what the checkout does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]


def run(*command: str | Path, cwd: Path) -> str:
    """Run to success and return stdout; the environment is the caller's less what could leak the checkout in."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment that holds the wheel and the compiler extra."""
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=True)
    bin_dir = home / "bin"
    run(bin_dir / "pip", "install", "-q", f"attnprof[nvrtc] @ {wheel.as_uri()}", cwd=home)
    return bin_dir


def test_the_wheel_carries_every_cuda_source(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = [path.relative_to(ROOT) for path in (ROOT / "kernels_cu").rglob("*.cu*")]
    assert sources
    assert {f"attnprof/{source.as_posix()}" for source in sources} <= names


def test_the_wheel_carries_no_tests(wheel: Path) -> None:
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tests/")]


def test_roofline_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    out = run(installed / "attnprof", "roofline", "--seq", "32768", "--gpu", "A100-SXM4-80GB", "--json", cwd=tmp_path)
    rows = {row["kernel"]: row for row in json.loads(out)["rows"]}
    assert rows["naive"]["hbm_bytes"] == 275_951_648_768
    assert rows["fa2"]["hbm_bytes"] == 1_073_741_824


def test_the_compile_check_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    script = (
        "import pathlib\n"
        "from attnprof.compiler import Compiler\n"
        "from attnprof.kernels.catalogue import builtin\n"
        "from attnprof.model.devices import find\n"
        "build = builtin()[-1].builds(find('A100-SXM4-80GB'))[0]\n"
        "assert 'site-packages' in str(build.file), build.file\n"
        f"compiled = Compiler(pathlib.Path({str(tmp_path / 'cache')!r})).compile(build, 'sm_80')\n"
        "print(len(compiled.image), len(compiled.resources))\n"
    )
    size, entries = run(installed / "python", "-c", script, cwd=tmp_path).split()
    assert int(size) > 0
    assert int(entries) > 0


def test_the_readme_job_command_works_in_a_copy(tmp_path: Path) -> None:
    """The README's first command, word for word, in a copy of the project."""
    copy = tmp_path / "attnprof"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "*cache*", "__pycache__"))
    readme = (copy / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- job command -->")[1].split("<!-- /job command -->")[0]
    command = "\n".join(line for line in block.strip().splitlines() if not line.startswith("```"))
    out = run("bash", "-ec", command, cwd=copy)
    assert "naive" in out
    assert "fa2" in out
