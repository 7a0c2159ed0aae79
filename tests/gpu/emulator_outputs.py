"""What the emulator computes beside what a GPU does: the same plans and inputs through both, element by element.

``python -m tests.gpu.emulator_outputs`` prints a Markdown table; with ATTNPROF_REPORT_DIR it is also written there. The
emulator runs the PTX for sm_80, the GPU its own machine code of the same source and macros.

Two rules, with the unit roundoff u of the element type, each for every output of every case:

* the norm of the difference is at most twice that of the rounding errors that the output may have: 2 u ‖output‖, and of
  a kernel that rounds S too, 2 u ‖Σ P (1 + |S|) |V|‖;
* an element's difference is at most 2 u times the sum of the magnitudes that were added up for it (Σ P |V| for O) and
  its own.

The first is the claim: outputs agree within twice the type's rounding. The second keeps single elements from hiding in
a norm. A kernel sums in fp32 and rounds P or dS, then its output, to its element type. The two sum in different orders,
so a value next to a rounding boundary falls on different sides of it, and is then 2 u apart: in each addend, and in
the output. A rounding of S by u |S| changes P by as much, relative to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnprof.check.cases import cases_for
from attnprof.check.numerics import BEYOND_ANY_LIMIT
from attnprof.check.workloads import NumericsCase
from attnprof.compiler import Compiler
from attnprof.emulator import EmulatorExecutor
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.executor import Executor
from attnprof.kernels.ladder import fa2
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec
from attnprof.kernels.trial import inputs_for, run_once
from attnprof.kernels.verify import UNIT_ROUNDOFF
from attnprof.model.devices import DEFAULT_GPU, DeviceSpec, find
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import decode
from attnprof.model.workload import Pass, Workload

Array = NDArray[Any]
Floats = NDArray[np.float64]
Arrays = Mapping[str, Array]

# A kernel that is asked for the log-sum-exp too.
FA2_LSE = replace(fa2.SPECS[0], name="fa2-lse", plan=fa2.plan_lse)
SPECS = (*builtin(), FA2_LSE)
# Every output of an fp32 softmax is a product of ex2.approx, whose last bits are the hardware's own: it may err by
# 2^-22 (PTX ISA, "ex2"). No 16-bit type shows that.
EXPONENTIAL = {Dtype.FP16: 0.0, Dtype.BF16: 0.0, Dtype.FP32: 2.0**-22}
# Half the distance between the smallest values of each type: what rounding costs where relative precision ends.
SMALLEST_ROUNDING = {Dtype.FP16: 2.0**-25, Dtype.BF16: 2.0**-134, Dtype.FP32: 2.0**-150}
# A log-sum-exp is fp32 whatever the type: dot products in another order, and the approximate ex2 and lg2, relative to
# its size, or to 1 where that is less.
LSE_TOLERANCE = 2.0**-19


@dataclass(frozen=True, slots=True)
class Agreement:
    """One output of one case.

    Attributes:
        kernel: its name.
        case: the workload's label.
        tensor: the output.
        dtype: its element type.
        elements: how many it has.
        differing: how many of them are not the same bits.
        norm: ‖emulator − GPU‖ / ‖GPU‖; 0 where both are 0.
        of_norm_limit: the norm of the difference, of what it may be.
        of_element_limit: the largest difference of an element, of what it may be.
    """

    kernel: str
    case: str
    tensor: str
    dtype: Dtype
    elements: int
    differing: int
    norm: float
    of_norm_limit: float
    of_element_limit: float

    @property
    def agrees(self) -> bool:
        """Whether both rules hold; NaN holds none."""
        return self.of_norm_limit <= 1.0 and self.of_element_limit <= 1.0


def cases(spec: KernelSpec) -> Iterator[NumericsCase]:
    """The emulator's own set, without what the kernel refuses or gets wrong by design."""
    for case in cases_for(spec, full=False):
        case = replace(case, workload=replace(case.workload, direction=spec.direction))
        beyond = spec.largest_logit is not None and case.distribution in BEYOND_ANY_LIMIT
        if spec.unsupported(case.workload) is None and not beyond:
            yield case


def shared_plan(spec: KernelSpec, workload: Workload, device: DeviceSpec) -> LaunchPlan:
    """One plan for both: the GPU's, or where that is for clusters of blocks, which sm_80 lacks, the A100's."""
    plan = spec.plan(workload, device)
    if any(macro == "CLUSTER" for launch in plan.launches for macro, _ in launch.build.defines):
        return spec.plan(workload, find(DEFAULT_GPU))
    return plan


def emulated(spec: KernelSpec, device: DeviceSpec, cache_dir: Path | None) -> list[tuple[Arrays, Arrays]]:
    """Inputs and outputs of every case on the emulator, standing for a device."""
    executor = EmulatorExecutor(Compiler(cache_dir), device)
    found: list[tuple[Arrays, Arrays]] = []
    for case in cases(spec):
        inputs = inputs_for(spec, case.workload, distribution=case.distribution)
        found.append((inputs, run_once(shared_plan(spec, case.workload, device), inputs, executor)))
    return found


def compare(spec: KernelSpec, gpu: Executor, runs: Sequence[tuple[Arrays, Arrays]]) -> list[Agreement]:
    """Run what the emulator ran on the GPU, and set the outputs side by side."""
    rows = []
    for case, (inputs, emulator_outputs) in zip(cases(spec), runs, strict=True):
        gpu_outputs = run_once(shared_plan(spec, case.workload, gpu.device), inputs, gpu)
        sizes = magnitudes(spec, case.workload, inputs)
        for tensor, got in gpu_outputs.items():
            rows.append(agreement(spec, case, tensor, emulator_outputs[tensor], got, sizes.get(tensor)))
    return rows


def agreement(
    spec: KernelSpec, case: NumericsCase, tensor: str, emulator: Array, gpu: Array, size: Floats | None
) -> Agreement:
    """Set one output beside the other.

    Args:
        spec: the kernel.
        case: what was computed.
        tensor: the output's name.
        emulator: what the emulator gave, in storage form.
        gpu: what the GPU gave.
        size: the sums of magnitudes behind each element; None where an element is as large as they are.
    """
    dtype = Dtype.FP32 if tensor == "lse" else case.workload.dtype
    one, other = (decode(values, dtype).astype(np.float64) for values in (emulator, gpu))
    differing = int(np.count_nonzero(emulator.view(_bits(emulator)) != gpu.view(_bits(gpu))))
    # Infinities and NaN that both have are equal; one that only one has is infinitely far off.
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(one - other))
    difference[np.isnan(difference)] = np.inf
    finite = np.where(np.isfinite(other), np.abs(other), 0.0)
    if tensor == "lse":
        by_element = LSE_TOLERANCE * np.maximum(finite, 1.0)
        by_norm = by_element
    else:
        relative = 2 * (UNIT_ROUNDOFF[dtype] + EXPONENTIAL[dtype])
        by_norm = np.maximum(relative * finite, 2 * SMALLEST_ROUNDING[dtype] * (finite > 0))
        by_element = by_norm if size is None else relative * size + by_norm
        if size is not None and "s" in spec.rounds:
            by_norm = np.maximum(by_norm, relative * size)
    return Agreement(
        spec.name,
        case.label,
        tensor,
        dtype,
        one.size,
        differing,
        _ratio(_norm(difference), _norm(finite)),
        _ratio(_norm(difference), _norm(by_norm)),
        float(np.max(_shares(difference, by_element), initial=0.0)),
    )


def magnitudes(spec: KernelSpec, workload: Workload, inputs: Arrays) -> dict[str, Floats]:
    """Of each output of an attention kernel, element by element, the sum of the magnitudes that are added up for it."""
    if spec.operation == "softmax":
        return {}
    w = workload
    values = {name: decode(inputs[name], w.dtype).astype(np.float64) for name in inputs if name != "lse"}
    backward = w.direction is Pass.BWD
    sizes = {"dq": np.zeros_like(values["q"]), "dk": np.zeros_like(values["k"]), "dv": np.zeros_like(values["v"])}
    sizes["o"] = np.zeros_like(values["q"])
    for batch, head in np.ndindex(w.batch, w.heads):
        kv_head = head // (w.heads // w.kv_heads)
        q, k, v = values["q"][batch, head], values["k"][batch, kv_head], values["v"][batch, kv_head]
        p, s = _probabilities(q, k, w)
        weight = p * (1.0 + np.abs(s)) if "s" in spec.rounds else p
        sizes["o"][batch, head] = weight @ np.abs(v)
        if backward:
            do = values["dout"][batch, head]
            dp = do @ v.T
            # dS is a difference, P (dP - D): what is subtracted counts, however much of it cancels.
            ds = p * (np.abs(dp) + np.abs((p * dp).sum(axis=1, keepdims=True)))
            sizes["dq"][batch, head] = w.scale * (ds @ np.abs(k))
            sizes["dk"][batch, kv_head] += w.scale * (ds.T @ np.abs(q))
            sizes["dv"][batch, kv_head] += p.T @ np.abs(do)
    return sizes


def _probabilities(q: Floats, k: Floats, workload: Workload) -> tuple[Floats, Floats]:
    """P and S of one head, both 0 where the mask forbids a pair."""
    s = workload.scale * (q @ k.T)
    allowed = np.ones((len(q), len(k)), bool)
    if workload.causal:
        allowed = np.tri(len(q), len(k), k=workload.seq_kv - workload.seq_q, dtype=bool)
    highest = np.max(s, axis=1, where=allowed, initial=-np.inf, keepdims=True)
    p = np.where(allowed, np.exp(np.minimum(s - np.where(np.isfinite(highest), highest, 0.0), 0.0)), 0.0)
    total = p.sum(axis=1, keepdims=True)
    return p / np.where(total > 0.0, total, 1.0), np.where(allowed, s, 0.0)


def _bits(values: Array) -> np.dtype[Any]:
    return np.dtype(f"u{values.itemsize}")


def _norm(values: Floats) -> float:
    return float(np.sqrt(np.sum(values**2)))


def _ratio(value: float, limit: float) -> float:
    """How much of a limit a value takes; where nothing is allowed, nothing or infinitely much."""
    if limit > 0.0:
        return value / limit
    return 0.0 if value == 0.0 else float("inf")


def _shares(difference: Floats, limit: Floats) -> Floats:
    """How much of its limit each element takes."""
    nothing_allowed = np.where(difference > 0.0, np.inf, 0.0)
    shares: Floats = np.divide(difference, limit, out=nothing_allowed, where=limit > 0.0)
    return shares


def markdown(rows: Sequence[Agreement]) -> str:
    """One line a kernel, output and type: how many elements differ, and the cases that come closest to the limits."""
    lines = [
        "| Kernel | Output | Type | Cases | Elements | Differing | Worst norm of the difference | Of its limit "
        "| Worst element, of its limit |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    groups: dict[tuple[str, str, Dtype], list[Agreement]] = {}
    for row in rows:
        groups.setdefault((row.kernel, row.tensor, row.dtype), []).append(row)
    for (kernel, tensor, dtype), group in groups.items():
        elements, differing = sum(row.elements for row in group), sum(row.differing for row in group)
        worst = max(group, key=lambda row: row.of_norm_limit)
        element = max(row.of_element_limit for row in group)
        lines.append(
            f"| `{kernel}` | {tensor} | {dtype} | {len(group)} | {elements:,} | {100 * differing / elements:.2g} % "
            f"| {worst.norm:.2g} ({worst.case}) | {worst.of_norm_limit:.2g} | {element:.2g} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Emulate in as many processes as there are cores, run on the GPU, print; 1 where something differs by too much."""
    from attnprof.gpu.opening import open_executor

    gpu = open_executor()
    cache = Compiler().cache_dir
    # Started afresh: a process that has opened the GPU must not be forked.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        runs = pool.map(_emulated_by_name, [(spec.name, gpu.device, cache) for spec in SPECS])
        rows = [row for spec, found in zip(SPECS, runs, strict=True) for row in compare(spec, gpu, found)]
    text = markdown(rows)
    print(text)
    if folder := os.environ.get("ATTNPROF_REPORT_DIR"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "emulator-outputs.md").write_text(text, encoding="utf-8")
    different = [row for row in rows if not row.agrees]
    for row in different:
        print(f"differs: {row}", file=sys.stderr)
    return 1 if different else 0


def _emulated_by_name(job: tuple[str, DeviceSpec, Path]) -> list[tuple[Arrays, Arrays]]:
    name, device, cache = job
    return emulated(next(spec for spec in SPECS if spec.name == name), device, cache)


if __name__ == "__main__":
    sys.exit(main())
