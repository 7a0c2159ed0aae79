"""compute-sanitizer finds nothing in any kernel of the catalogue: no stray access, no race in shared memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnprof.kernels.catalogue import builtin

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {"memcheck": r"ERROR SUMMARY: 0 errors", "racecheck": r"RACECHECK SUMMARY: 0 hazards"}


def sanitizer() -> str:
    found = shutil.which("compute-sanitizer")
    if found:
        return found
    places = [*Path("/usr/local").glob("cuda*/bin/compute-sanitizer")]
    if not places:
        pytest.skip("compute-sanitizer is not installed")
    return str(sorted(places)[-1])


@pytest.mark.parametrize("tool", SUMMARY)
@pytest.mark.parametrize("kernel", [spec.name for spec in builtin()])
def test_the_sanitizer_finds_nothing(tool: str, kernel: str, kernel_cache: Path) -> None:
    command = [sanitizer(), "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "tests.gpu.small_launches"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [*command, kernel, str(kernel_cache)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-4000:]
    assert re.search(SUMMARY[tool], output), output[-4000:]
    assert f"{kernel} pass" in output, output[-4000:]
