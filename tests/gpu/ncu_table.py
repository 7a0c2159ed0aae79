"""The emulator's counts beside Nsight Compute's, for micro-kernels and attention kernels.

``python -m tests.gpu.ncu_table`` profiles every launch in one ncu process, runs the same kernels on the emulator, and
prints a Markdown table; with ATTNPROF_REPORT_DIR it is also written there, with every metric as ncu gave it.

The emulator executes PTX, the hardware what ptxas makes of it: ptxas may merge or split accesses, which the tolerance
of the attention kernels allows for. The micro-kernels leave it no choice.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnprof.compiler import Compiler
from attnprof.emulator import EmulatorExecutor, KernelTrace, Mode
from attnprof.kernels import catalogue
from attnprof.kernels.executor import Run
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, TensorSpec
from attnprof.kernels.trial import inputs_for
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload

MICRO = Path(__file__).resolve().parents[1] / "unit" / "emulator" / "micro_kernels.cu"
MICRO_GRID = 3
ATTENTION = ("naive", "fa2")
WORKLOAD = Workload.of(256, heads=2, head_dim=64)
# Relative difference that is allowed; micro-kernels must agree exactly.
ATTENTION_TOLERANCE = 0.02

_SASS = ("smsp__sass_l1tex_", "sm__sass_l1tex_")  # by instruction; the prefix depends on the GPU
_COPIES = ("_op_ldgsts_cache_access", "_op_ldgsts_cache_bypass")
_SHARED = ("_op_ld", "_op_ldsm", "_op_st", "_op_stsm", *_COPIES)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that both count.

    Attributes:
        name: the heading.
        sums: sets of metrics that add up to it, the best first. The first set whose plain loads and stores ncu knows
            counts; others of it may be unknown (a GPU without such an instruction).
    """

    name: str
    sums: tuple[tuple[str, ...], ...]

    def of_ncu(self, metrics: Mapping[str, int]) -> int | None:
        """The sum of the first set that was measured."""
        names = self.best(metrics)
        return sum(metrics[name] for name in names if name in metrics) if names else None

    def best(self, known: Container[str]) -> tuple[str, ...]:
        """The first set whose indispensable metrics are known; empty if there is none."""
        for names in self.sums:
            needed = [name for name in names if name.endswith(("_op_ld", "_op_st"))] or names
            if all(name in known for name in needed):
                return names
        return ()

    def of_emulator(self, kernel: KernelTrace) -> int:
        """The emulator's figure."""
        counters = kernel.counters
        if self is WAVEFRONTS:
            return counters.shared_wavefronts
        if self is CONFLICTS:
            return counters.bank_conflicts
        stores = sum(c.global_sectors for kind, c in kernel.kinds.items() if kind.startswith("st."))
        return stores if self is STORES else counters.global_sectors - stores


def _sums(stem: str, operations: Iterable[str], hardware: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    operations = tuple(operations)
    by_instruction = (tuple(f"{prefix}{stem}{op}" for op in operations) for prefix in _SASS)
    return (*by_instruction, tuple(f"l1tex__{name}" for name in hardware))


LOADS = Quantity(
    "sectors loaded",
    _sums(
        "t_sectors_pipe_lsu_mem_global",
        ("_op_ld", *_COPIES),
        [f"t_sectors_pipe_lsu_mem_global{op}" for op in ("_op_ld", *_COPIES)],
    ),
)
STORES = Quantity(
    "sectors stored",
    _sums("t_sectors_pipe_lsu_mem_global", ("_op_st",), ["t_sectors_pipe_lsu_mem_global_op_st"]),
)
WAVEFRONTS = Quantity(
    "shared wavefronts",
    _sums("data_pipe_lsu_wavefronts_mem_shared", _SHARED, ["data_pipe_lsu_wavefronts_mem_shared"]),
)
CONFLICTS = Quantity(
    "bank conflicts",
    _sums("data_bank_conflicts_pipe_lsu_mem_shared", _SHARED, ["data_bank_conflicts_pipe_lsu_mem_shared"]),
)
QUANTITIES = (LOADS, STORES, WAVEFRONTS, CONFLICTS)
# Not compared, but kept beside the table: they tell why something differs.
CONTEXT = (
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st",
    "smsp__inst_executed",
)


class NcuUnavailableError(Exception):
    """Why ncu cannot count here, in one line."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity of one kernel.

    ``foreign``: what ncu counts cannot be the kernel's own, see `foreign_conflicts`.
    """

    kernel: str
    quantity: str
    emulated: int
    measured: int | None
    tolerance: float
    foreign: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the two agree within the tolerance; not, where ncu has no figure."""
        if self.measured is None:
            return False
        if self.foreign:
            return True
        return abs(self.emulated - self.measured) <= self.tolerance * max(self.measured, self.emulated)


def micro_entries() -> tuple[str, ...]:
    """The entry points of the micro-kernels, in the order of the file."""
    declared = r'^(?:GLOBAL_LOAD|SHARED_\w+)\((\w+),|^extern "C" __global__ void (\w+)\('
    return tuple(a or b for a, b in re.findall(declared, MICRO.read_text(encoding="utf-8"), re.MULTILINE))


def micro_plan(entry: str) -> LaunchPlan:
    """A launch of ``MICRO_GRID`` blocks of a warp each."""
    tensors = (TensorSpec("in", (4096,), Dtype.FP32, "in"), TensorSpec("out", (4096,), Dtype.FP32, "out"))
    launch = Launch("micro", Build(MICRO), entry, (MICRO_GRID, 1, 1), (32, 1, 1), 0, (Pointer("in"), Pointer("out")))
    return LaunchPlan(tensors, (launch,))


def launch_everything(cache_dir: Path) -> None:
    """Launch each kernel once on the GPU: what ncu profiles."""
    from attnprof.gpu.opening import open_executor

    executor = open_executor(cache_dir=cache_dir)
    for entry in micro_entries():
        with executor.prepare(micro_plan(entry)) as run:
            _launch_micro(run)
    for spec in catalogue.select(ATTENTION):
        with executor.prepare(spec.plan(WORKLOAD, executor.device)) as run:
            _launch_attention(run, spec.name)


def _launch_micro(run: Run) -> None:
    run.write("in", np.zeros(4096, np.float32))
    run.launch()


def _launch_attention(run: Run, name: str) -> None:
    (spec,) = catalogue.select([name])
    for tensor, values in inputs_for(spec, WORKLOAD).items():
        run.write(tensor, values)
    run.launch()


def emulate(device: DeviceSpec, cache_dir: Path | None = None) -> dict[str, KernelTrace]:
    """The same launches on the emulator, by entry point."""
    executor = EmulatorExecutor(Compiler(cache_dir), device, mode=Mode.COUNTS)
    found: dict[str, KernelTrace] = {}
    for entry in micro_entries():
        with executor.prepare(micro_plan(entry)) as run:
            _launch_micro(run)
            assert run.trace is not None
            found[entry] = run.trace.kernels[0]
    for spec in catalogue.select(ATTENTION):
        with executor.prepare(spec.plan(WORKLOAD, device)) as run:
            _launch_attention(run, spec.name)
            assert run.trace is not None
            found |= {kernel.kernel: kernel for kernel in run.trace.kernels}
    return found


def find_ncu() -> str:
    """The newest ncu here.

    Raises:
        NcuUnavailableError: there is none.
    """
    places = [*Path("/opt/nvidia/nsight-compute").glob("*/ncu"), *Path("/usr/local").glob("cuda*/bin/ncu")]
    found = shutil.which("ncu") or next((str(place) for place in sorted(places, reverse=True)), None)
    if found is None:
        raise NcuUnavailableError("ncu (Nsight Compute) is not installed")
    return found


def wanted_metrics(query: str) -> list[str]:
    """Of the metrics that ``ncu --query-metrics`` lists: for each quantity the best set and the last, and `CONTEXT`."""
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    wanted: list[str] = []
    for quantity in QUANTITIES:
        wanted += [*quantity.best(known), *quantity.sums[-1]]
    return [name for name in dict.fromkeys([*wanted, *CONTEXT]) if name in known]


def profile(ncu: str) -> dict[str, dict[str, int]]:
    """Metrics by entry point and name, of one ncu process over all launches.

    Raises:
        NcuUnavailableError: counting is not permitted, or ncu fails for another reason.
    """
    metrics = wanted_metrics(_run([ncu, "--query-metrics"]))
    if not metrics:
        raise NcuUnavailableError("ncu --query-metrics lists none of the metrics")
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as cache:
        text = _run(
            [
                *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function"),
                *("--kernel-name", f"regex:^({'|'.join([*micro_entries(), *ATTENTION])})"),
                *("--replay-mode", "kernel", "--clock-control", "none", "--cache-control", "all"),
                *("--metrics", ",".join(f"{name}.sum" for name in metrics)),
                *(sys.executable, "-m", "tests.gpu.ncu_table", "--launch", cache),
            ],
            cwd=root,
        )
    return parse(text)


def parse(text: str) -> dict[str, dict[str, int]]:
    """ncu's ``--csv --page raw``: a header, a line of units, then a line a launch.

    Raises:
        NcuUnavailableError: there is no table in the text.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise NcuUnavailableError(f"ncu printed no table: {lines[-1] if lines else 'nothing'}")
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(lines[start:]):
        name = re.match(r"\w+", row["Kernel Name"] or "")
        if not row["ID"] or name is None:
            continue  # the line of units
        found[name[0]] = {
            key.removesuffix(".sum"): round(float(value.replace(",", "")))
            for key, value in row.items()
            if key and key.endswith(".sum") and value and re.fullmatch(r"[\d,.]+", value)
        }
    return found


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    text = result.stdout + result.stderr
    if "ERR_NVGPUCTRPERM" in text:
        raise NcuUnavailableError("reading GPU counters is not permitted (ERR_NVGPUCTRPERM)")
    if result.returncode:
        problem = next((line for line in text.splitlines() if line.startswith("==ERROR==")), text.strip()[-300:])
        raise NcuUnavailableError(f"{Path(command[0]).name} failed with {result.returncode}: {problem}")
    return result.stdout


def compare(emulated: Mapping[str, KernelTrace], measured: Mapping[str, Mapping[str, int]]) -> list[Comparison]:
    """Every quantity of every kernel; of micro-kernels those that they are about."""
    micro = set(micro_entries())
    rows = []
    for name, kernel in emulated.items():
        for quantity in QUANTITIES:
            count = quantity.of_emulator(kernel)
            of_ncu = quantity.of_ncu(measured.get(name, {}))
            if name in micro and count == 0 and of_ncu == 0:
                continue
            tolerance = 0 if name in micro else ATTENTION_TOLERANCE
            foreign = quantity is CONFLICTS and foreign_conflicts(kernel, measured.get(name, {}))
            rows.append(Comparison(name, quantity.name, count, of_ncu, tolerance, foreign))
    return rows


def foreign_conflicts(kernel: KernelTrace, metrics: Mapping[str, int]) -> bool:
    """Whether ncu counts bank conflicts of a kernel that makes no shared-memory access, by both counts.

    A conflict is a wavefront beyond the needed, so without wavefronts the counter saw something else: some runs of a
    kernel have a few, others none.
    """
    accesses = WAVEFRONTS.of_emulator(kernel) or WAVEFRONTS.of_ncu(metrics)
    return accesses == 0 and bool(CONFLICTS.of_ncu(metrics))


def markdown(rows: Sequence[Comparison]) -> str:
    """The table that stands in the documentation."""
    lines = ["| Kernel | Quantity | Emulator | ncu | Agrees |", "| --- | --- | ---: | ---: | --- |"]
    for row in rows:
        measured = "—" if row.measured is None else f"{row.measured:,}"
        lines.append(f"| {row.kernel} | {row.quantity} | {row.emulated:,} | {measured} | {_verdict(row)} |")
    return "\n".join(lines) + "\n"


def _verdict(row: Comparison) -> str:
    if row.emulated == row.measured:
        return "exactly"
    if row.foreign:
        return "not from this kernel's accesses: 0 wavefronts"
    return f"within {row.tolerance:.0%}" if row.agrees else "no"


def report(rows: Sequence[Comparison], measured: Mapping[str, Mapping[str, int]]) -> None:
    """Print the table, and keep it with the raw metrics where ATTNPROF_REPORT_DIR says."""
    text = markdown(rows)
    print(text)
    folder = os.environ.get("ATTNPROF_REPORT_DIR")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "emulator-against-ncu.md").write_text(text, encoding="utf-8")
        (Path(folder) / "ncu-metrics.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")


def local_device() -> DeviceSpec:
    """The GPU that ncu profiles on.

    Raises:
        NcuUnavailableError: there is none.
    """
    from attnprof.gpu.discovery import discover

    found = discover()
    device = next((gpu.spec for gpu in found.gpus if gpu.spec is not None), None)
    if device is None:
        raise NcuUnavailableError(f"no GPU: {found.reason}")
    return device


def main(arguments: Sequence[str]) -> int:
    """Without arguments: profile, emulate, print; 1 where something differs. ``--launch DIR`` is what ncu runs."""
    if arguments[:1] == ["--launch"]:
        launch_everything(Path(arguments[1]))
        return 0
    try:
        device = local_device()
        measured = profile(find_ncu())
    except NcuUnavailableError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    rows = compare(emulate(device), measured)
    report(rows, measured)
    return 0 if all(row.agrees for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
