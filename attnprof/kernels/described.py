"""What the callbacks of a KernelSpec have to return: checked for descriptions that are not our own.

Each check raises `Misfit` at the first thing that is wrong. What a device has too little of (threads, shared memory, a
large enough grid) is for executors to say; this is what nothing could run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from reprlib import repr as shown  # in a few words, however long it is
from typing import get_args

from attnprof.kernels.attention import forward_tensors
from attnprof.kernels.candidates import Candidate
from attnprof.kernels.plan import Arg, Build, Launch, LaunchPlan, Pointer, Role, Scalar, ScalarKind, TensorSpec
from attnprof.kernels.spec import KernelSpec
from attnprof.model.demand import Demand, LedgerLine, Schedule, Stage
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Pass, Workload

_BITS = {"i32": 32, "i64": 64}


class Misfit(Exception):
    """What is wrong with a returned value, and what would be right."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def check_plan(plan: object, spec: KernelSpec, workload: Workload) -> None:
    """A plan: its tensors are those that the kernel's operation has, its launches point to them, sizes are counts."""
    if not isinstance(plan, LaunchPlan):
        raise _not_a("a LaunchPlan", plan)
    tensors: dict[str, TensorSpec] = {}
    for each in _sequence(plan.tensors, "tensors"):
        tensor = _tensor(each)
        if tensor.name in tensors:
            raise Misfit(f"two tensors are called {tensor.name}")
        tensors[tensor.name] = tensor
    for wanted in _tensors_of(spec, workload):
        found = tensors.get(wanted.name)
        if found is None or found.role != wanted.role:
            kind = "output" if wanted.role == "out" else "input"
            given = ", ".join(f"{each.name} ({each.role})" for each in tensors.values())
            raise Misfit(f"has no {kind} tensor {wanted.name!r}", f"it has {given}")
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise Misfit(
                f"tensor {found.name} is {found.dtype} {found.shape}", f"here it must be {wanted.dtype} {wanted.shape}"
            )
    if not _sequence(plan.launches, "launches"):
        raise Misfit("launches nothing")
    for launch in plan.launches:
        _check_launch(launch, tensors)


def check_demand(demand: object) -> None:
    """A demand: whole numbers throughout."""
    if not isinstance(demand, Demand):
        raise _not_a("a Demand", demand)
    for name in ("footprint_bytes", "intermediate_bytes"):
        _check_whole(getattr(demand, name), name)
    for stage in _sequence(demand.stages, "stages"):
        if not isinstance(stage, Stage):
            raise Misfit(f"stages has {shown(stage)}, not a Stage")
        for name in ("tensor_flops", "fp32_flops", "exponentials"):
            _check_whole(getattr(stage, name), f"{name} of stage {stage.name}")
        _check_whole(stage.launches, f"launches of stage {stage.name}", least=1)
        for line in _sequence(stage.ledger, f"ledger of stage {stage.name}"):
            if not isinstance(line, LedgerLine):
                raise Misfit(f"ledger of stage {stage.name} has {shown(line)}, not a LedgerLine")
            _check_whole(line.bytes, f"bytes of {line.tensor} in stage {stage.name}")
        if stage.schedule is not None:
            _check_schedule(stage.schedule, stage.name)


def check_refusal(reason: object) -> None:
    """Why a workload cannot run, or None."""
    if reason is not None and not isinstance(reason, str):
        raise _not_a("a str or None", reason)


def check_builds(builds: object) -> None:
    """The builds for a device."""
    for build in _sequence(builds, None):
        _check_build(build)


def check_candidates(candidates: object) -> None:
    """The tile choices of a workload."""
    for candidate in _sequence(candidates, None):
        if not isinstance(candidate, Candidate):
            raise _not_a("Candidates", candidate)


def check_specs(specs: object) -> None:
    """The variants of a kernel."""
    for spec in _sequence(specs, None):
        check_spec(spec)


def check_spec(spec: object) -> None:
    """The same kernel on another layout."""
    if not isinstance(spec, KernelSpec):
        raise _not_a("a KernelSpec", spec)


def _tensors_of(spec: KernelSpec, workload: Workload) -> Iterator[TensorSpec]:
    """The tensors that a kernel of this operation, pass and layout is given, and those that it has to fill."""
    w = workload
    if spec.operation == "softmax":
        yield TensorSpec("x", (w.rows, w.seq_kv), w.dtype, "in")
        yield TensorSpec("y", (w.rows, w.seq_kv), w.dtype, "out")
        return
    q, k, v, o = forward_tensors(w)
    if spec.layout == "bshd":
        q, k, v, o = (replace(each, shape=(w.batch, each.shape[2], each.shape[1], w.head_dim)) for each in (q, k, v, o))
    yield from (q, k, v)
    if spec.direction is Pass.FWD:
        yield o
        return
    yield replace(o, role="in")
    yield TensorSpec("lse", (w.batch, w.heads, w.seq_q), Dtype.FP32, "in")
    yield replace(o, name="dout", role="in")
    for gradient_of in (q, k, v):
        yield replace(gradient_of, name=f"d{gradient_of.name}", role="out")


def _tensor(tensor: object) -> TensorSpec:
    if not isinstance(tensor, TensorSpec):
        raise Misfit(f"tensors has {shown(tensor)}, not a TensorSpec")
    if tensor.role not in get_args(Role):
        raise Misfit(
            f"the role of tensor {tensor.name} is {shown(tensor.role)}", f"it is one of {_listed(get_args(Role))}"
        )
    if not isinstance(tensor.dtype, Dtype):
        raise Misfit(f"the type of tensor {tensor.name} is {shown(tensor.dtype)}", "it is a Dtype, such as Dtype.FP32")
    if not isinstance(tensor.shape, tuple) or not all(_is_whole(extent, 1) for extent in tensor.shape):
        raise Misfit(f"the shape of tensor {tensor.name} is {shown(tensor.shape)}", _COUNTS)
    return tensor


def _check_launch(launch: object, tensors: dict[str, TensorSpec]) -> None:
    if not isinstance(launch, Launch):
        raise Misfit(f"launches has {shown(launch)}, not a Launch")
    _check_build(launch.build)
    for name in ("stage", "entry"):
        if not isinstance(getattr(launch, name), str):
            raise Misfit(f"{name} is {shown(getattr(launch, name))}, not a str")
    for name in ("grid", "block"):
        extents = getattr(launch, name)
        if not (isinstance(extents, tuple) and len(extents) == 3 and all(_is_whole(each, 1) for each in extents)):
            raise Misfit(f"{name} of {launch.entry} is {shown(extents)}", f"it is three, as in (8, 1, 1): {_COUNTS}")
    _check_whole(launch.smem_bytes, f"smem_bytes of {launch.entry}")
    for position, argument in enumerate(_sequence(launch.args, f"args of {launch.entry}")):
        _check_argument(argument, f"argument {position} of {launch.entry}", tensors)


def _check_argument(argument: Arg | object, where: str, tensors: dict[str, TensorSpec]) -> None:
    if isinstance(argument, Pointer):
        if argument.tensor not in tensors:
            raise Misfit(
                f"{where} points to {argument.tensor!r}, which is none of its tensors", f"they are {_listed(tensors)}"
            )
        return
    if not isinstance(argument, Scalar):
        raise Misfit(f"{where} is {shown(argument)}", 'it is a Pointer("q") or a Scalar("i32", 1)')
    kinds = get_args(ScalarKind)
    if argument.kind not in kinds:
        raise Misfit(f"the kind of {where} is {shown(argument.kind)}", f"it is one of {_listed(kinds)}")
    bits = _BITS.get(argument.kind)
    if not isinstance(argument.value, int if bits else (int, float)):
        raise Misfit(f"{where} is {shown(argument.value)}, not {'a whole' if bits else 'a'} number")
    if bits and not -(2 ** (bits - 1)) <= argument.value < 2 ** (bits - 1):
        raise Misfit(f"{where} is {argument.value}, which {bits} bits do not hold")


def _check_build(build: object) -> None:
    if not isinstance(build, Build):
        raise Misfit(f"has {shown(build)} where a Build is needed")
    if not isinstance(build.file, Path):
        raise Misfit(
            f"the file of a build is {shown(build.file)}",
            'it is a Path, as in Path("mine.cu").resolve()',
        )
    pairs = build.defines if isinstance(build.defines, tuple) else (None,)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise Misfit(
            f"the defines of a build are {shown(build.defines)}", 'they are pairs, as in (("HEAD_DIM", "64"),)'
        )


def _check_schedule(schedule: object, stage: str) -> None:
    if not isinstance(schedule, Schedule):
        raise Misfit(f"the schedule of stage {stage} is {shown(schedule)}, not a Schedule")
    for name in ("blocks", "blocks_per_sm"):
        _check_whole(getattr(schedule, name), f"{name} of stage {stage}", least=1)


_COUNTS = "whole numbers from 1 on; a / b is none, a // b and ceil_div(a, b) are"


def _check_whole(value: object, what: str, *, least: int = 0) -> None:
    if not _is_whole(value, least):
        raise Misfit(f"{what} is {shown(value)}", f"it is a whole number from {least} on; a / b is none, a // b is")


def _is_whole(value: object, least: int) -> bool:
    # A bool is an int, and never a size.
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _sequence(value: object, what: str | None) -> tuple[object, ...]:
    """The value, where it is a tuple or a list."""
    if not isinstance(value, tuple | list):
        raise _not_a("a tuple", value) if what is None else Misfit(f"{what} is {shown(value)}, not a tuple")
    return tuple(value)


def _not_a(wanted: str, value: object) -> Misfit:
    given = "None" if value is None else f"{shown(value)}, a {type(value).__name__}"
    return Misfit(f"returned {given}, not {wanted}", "does it end in return?" if value is None else None)


def _listed(names: object) -> str:
    return ", ".join(map(str, names))  # type: ignore[call-overload]
