"""Runs CUDA or PTX snippets on the emulator with arrays of any NumPy type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attnprof.compiler import Compiler
from attnprof.emulator import EmulatedRun, EmulatorExecutor, Mode, Trace
from attnprof.kernels.executor import Compiled
from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.model.devices import find
from attnprof.model.dtypes import Dtype

A100 = find("A100-SXM4-80GB")


class TextCompiler:
    """Takes the file's text for PTX."""

    def compile(self, build: Build, arch: str, *, target: str = "cubin") -> Compiled:
        return Compiled(build, arch, build.file.read_bytes(), {}, 0.0, False, "")


@dataclass
class Outcome:
    """The outputs by name, in their own types, and what was observed."""

    outputs: dict[str, np.ndarray]
    trace: Trace
    run: EmulatedRun


@dataclass
class Bench:
    """A folder for sources and a compiler that keeps what it compiled."""

    folder: Path
    cuda: Compiler
    files: dict[str, Path] = field(default_factory=dict)

    def build(self, source: str, suffix: str) -> Build:
        path = self.files.get(source)
        if path is None:
            path = self.files[source] = self.folder / f"k{len(self.files)}{suffix}"
            path.write_text(source, encoding="utf-8")
        return Build(path)

    def plan(
        self,
        source: str,
        entry: str,
        arrays: Mapping[str, np.ndarray],
        scalars: Sequence[Scalar] = (),
        *,
        outputs: Sequence[str] = (),
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        smem_bytes: int = 0,
        ptx: bool = False,
    ) -> LaunchPlan:
        """One launch with a pointer to each array, then the scalars. Arrays become tensors of 16- or 32-bit words."""
        tensors = tuple(
            TensorSpec(
                name,
                (array.nbytes // (2 if array.itemsize < 4 else 4),),
                Dtype.FP16 if array.itemsize < 4 else Dtype.FP32,
                "out" if name in outputs else "in",
            )
            for name, array in arrays.items()
        )
        launch = Launch(
            "test",
            self.build(source, ".ptx" if ptx else ".cu"),
            entry,
            grid,
            block,
            smem_bytes,
            (*(Pointer(name) for name in arrays), *scalars),
        )
        return LaunchPlan(tensors, (launch,))

    def run(
        self,
        source: str,
        entry: str,
        arrays: Mapping[str, np.ndarray],
        scalars: Sequence[Scalar] = (),
        *,
        outputs: Sequence[str] = (),
        mode: Mode = Mode.FAST,
        on_fault: str = "raise",
        find_nans: bool = False,
        budget: int = 200_000,
        ptx: bool = False,
        **shape: Any,
    ) -> Outcome:
        plan = self.plan(source, entry, arrays, scalars, outputs=outputs, ptx=ptx, **shape)
        executor = EmulatorExecutor(
            TextCompiler() if ptx else self.cuda,
            A100,
            mode=mode,
            on_fault=on_fault,
            find_nans=find_nans,
            budget=budget,
        )
        run = executor.prepare(plan)
        run.poison()
        for tensor in plan.tensors:
            if tensor.role == "in":
                word = np.float16 if tensor.dtype is Dtype.FP16 else np.float32
                run.write(tensor.name, np.ascontiguousarray(arrays[tensor.name]).reshape(-1).view(word))
        run.launch()
        assert run.trace is not None
        found = {
            name: run.read(name).view(array.dtype).reshape(array.shape)
            for name, array in arrays.items()
            if name in outputs
        }
        return Outcome(found, run.trace, run)


_WIDTHS = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}


def op_kernel(body: str, inputs: Sequence[np.dtype[Any]], output: np.dtype[Any]) -> str:
    """PTX in which thread i computes ``body`` from %a, %b, %c (element i of each input) into %d."""
    params = "".join(f"\t.param .u64 p{n},\n" for n in range(len(inputs)))
    lines = []
    for n, kind in enumerate(inputs):
        size = np.dtype(kind).itemsize
        register = f"%{'abcd'[n] if n < 3 else 'e'}"
        bits = _WIDTHS[size] if size > 1 else "b16"
        lines += [
            f".reg .{bits} {register};",
            f"ld.param.u64 %addr, [p{n}];",
            f"mad.wide.u32 %addr, %tid1, {size}, %addr;",
            f"ld.global.{_WIDTHS[size] if size > 1 else 'u8'} {register}, [%addr];",
        ]
    size = np.dtype(output).itemsize
    bits = _WIDTHS[size] if size > 1 else "b16"
    lines += [f".reg .{bits} %d;", ".reg .pred %p, %q;", body]
    lines += [
        f"ld.param.u64 %addr, [p{len(inputs)}];",
        f"mad.wide.u32 %addr, %tid1, {size}, %addr;",
        f"st.global.{_WIDTHS[size]} [%addr], %d;",
        "ret;",
    ]
    return (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(\n"
        + params
        + f"\t.param .u64 p{len(inputs)}\n)\n{{\n.reg .u64 %addr;\n.reg .u32 %tid1, %ctaid1, %ntid1;\n"
        + "mov.u32 %tid1, %tid.x;\nmov.u32 %ctaid1, %ctaid.x;\nmov.u32 %ntid1, %ntid.x;\n"
        + "mad.lo.u32 %tid1, %ctaid1, %ntid1, %tid1;\n"
        + "\n".join(lines)
        + "\n}\n"
    )


def apply_op(bench: Bench, body: str, *inputs: np.ndarray, output: Any, mode: Mode = Mode.FAST) -> np.ndarray:
    """``body`` on every element; the arrays have one length, which must be a multiple of 32."""
    names = {f"in{n}": array for n, array in enumerate(inputs)}
    result = np.zeros(inputs[0].shape, output)
    source = op_kernel(body, [a.dtype for a in inputs], np.dtype(output))
    outcome = bench.run(
        source,
        "k",
        {**names, "out": result},
        outputs=("out",),
        block=(32, 1, 1),
        grid=(result.size // 32, 1, 1),
        ptx=True,
        mode=mode,
    )
    return outcome.outputs["out"]
