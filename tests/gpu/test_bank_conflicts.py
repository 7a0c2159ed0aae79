"""The model's bank conflicts against the hardware's counters, on a micro-kernel a pattern, read with Nsight Compute."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.bank_kernels import REPEAT, Case, cases

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "bank_kernels.py"
METRICS = {("wavefronts", op): f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st")} | {
    ("conflicts", op): f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")
}
# The asynchronous copy writes through a path of its own, whose wavefronts these counters do not separate from others;
# chunk_store has the same addresses.
CASES = tuple(case for case in cases() if case.pattern != "tile_store")

Counted = dict[str, dict[str, float]]


def ncu() -> str:
    """Nsight Compute, on the path or where its installers put it."""
    found = shutil.which("ncu")
    if found:
        return found
    places = [Path("/usr/local/cuda/bin/ncu"), *sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        pytest.skip("Nsight Compute (ncu) is not installed")
    return str(place)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Every metric of every micro-kernel, by entry point."""
    command = [
        ncu(), "--target-processes", "all", "--replay-mode", "kernel", "--clock-control", "none",
        "--cache-control", "all", "--kernel-name-base", "function", "--metrics", ",".join(METRICS.values()),
        "--csv", "--page", "raw", "--print-units", "base", sys.executable, str(SCRIPT),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "TMPDIR": str(tmp_path_factory.mktemp("ncu")),
    }
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    output = result.stdout + result.stderr
    if "ERR_NVGPUCTRPERM" in output:
        pytest.skip("no permission to read the hardware's counters (ERR_NVGPUCTRPERM)")
    assert result.returncode == 0, output[-4000:]
    return dict(_rows(result.stdout))


def _rows(output: str) -> Iterator[tuple[str, dict[str, float]]]:
    lines = [line for line in output.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        if row["Kernel Name"]:  # the line of units has none
            entry = row["Kernel Name"].split("(")[0]
            yield entry, {metric: _number(row[metric]) for metric in METRICS.values() if row.get(metric)}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def test_every_micro_kernel_was_counted(counted: Counted) -> None:
    assert {case.entry for case in CASES} <= set(counted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_the_hardware_counts_what_the_model_says(counted: Counted, case: Case) -> None:
    op = "st" if "store" in case.pattern else "ld"
    found = counted[case.entry]
    wavefronts = found[METRICS["wavefronts", op]] / REPEAT
    conflicts = found[METRICS["conflicts", op]] / REPEAT
    # The counters may see a few wavefronts more that belong to the launch: less than half of one a request.
    assert abs(wavefronts - case.expected.wavefronts) < 0.5
    assert abs(conflicts - (case.expected.wavefronts - case.expected.ideal)) < 0.5
