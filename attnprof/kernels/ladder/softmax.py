"""The softmax rungs: the same function in two unsafe passes, three, two and one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, Scalar, TensorSpec
from attnprof.kernels.softmax_placement import (
    THREADS_PER_SM,
    WARP,
    chunks_of,
    element_macro,
    fused_builds,
    fused_layout,
)
from attnprof.kernels.sources import kernels_dir
from attnprof.kernels.spec import AMPERE_AND_LATER, KernelSpec
from attnprof.model.demand import Demand, Schedule
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.softmax_traffic import (
    FUSED,
    NAIVE,
    ONLINE,
    SAFE,
    STAGE,
    Rung,
    rereads_hit_l2,
    softmax_demand,
)
from attnprof.model.workload import Pass, Workload

# Columns are 32-bit in the kernels, and a row of 2^30 still leaves room for a batch of chunks past its end.
MAX_COLUMNS = 2**30
# Grids are limited to 2^31 - 1 blocks; a cluster of 8 blocks a row sets the limit.
MAX_ROWS = 2**28 - 1

# The kernels of one block a row (softmax_{naive,safe,online}.cu): most threads, and 16-byte loads that a thread has in
# flight.
THREADS, BATCH = 512, 8
BLOCKS_PER_SM = THREADS_PER_SM // THREADS
# Resident blocks an SM, at the architecture that has fewest.
MAX_BLOCKS_PER_SM = 16

# e^x overflows fp32 from 88.7 on; up to here a sum of 2^20 of them is below 2^126, whose reciprocal is not subnormal.
LARGEST_NAIVE_LOGIT = 73.0


def _unsupported(workload: Workload) -> str | None:
    if workload.direction is not Pass.FWD:
        return "softmax kernels run the forward pass only"
    if workload.causal:
        return "softmax kernels take no causal mask"
    if workload.seq_kv > MAX_COLUMNS:
        return f"rows of {workload.seq_kv} columns; at most {MAX_COLUMNS}"
    if workload.rows > MAX_ROWS:
        return f"{workload.rows} rows; at most {MAX_ROWS}"
    return None


def _plan(workload: Workload, launch: Launch) -> LaunchPlan:
    shape = (workload.rows, workload.seq_kv)
    return LaunchPlan(
        tensors=(
            TensorSpec("x", shape, workload.dtype, "in"),
            TensorSpec("y", shape, workload.dtype, "out"),
        ),
        launches=(launch,),
    )


# ---------------------------------------------------------------------------------------------------------------------
# softmax-naive, softmax-safe, softmax-online: one block a row


def _threads(workload: Workload) -> int:
    """Threads of the block that takes a row: enough for one batch of loads each, in whole warps."""
    batches = -(-chunks_of(workload.seq_kv, workload.dtype) // BATCH)
    return min(THREADS, WARP * max(1, -(-batches // WARP)))


def _blocks_per_sm(workload: Workload) -> int:
    return min(MAX_BLOCKS_PER_SM, THREADS_PER_SM // _threads(workload))


def _block_build(name: str, dtype: Dtype) -> Build:
    return Build(
        kernels_dir() / f"{name.replace('-', '_')}.cu",
        (
            element_macro(dtype),
            ("MAX_THREADS", str(THREADS)),
            ("BLOCKS_PER_SM", str(BLOCKS_PER_SM)),
            ("BATCH", str(BATCH)),
        ),
    )


def _block_spec(
    name: str, number: int, rung: Rung, title: str, idea: str, largest_logit: float | None = None
) -> KernelSpec:
    entry = name.replace("-", "_")

    def demand(workload: Workload, device: DeviceSpec) -> Demand:
        return softmax_demand(
            workload,
            rung,
            schedule=Schedule(workload.rows, _blocks_per_sm(workload)),
            rereads_in_l2=rereads_hit_l2(workload, device.sm_count * _blocks_per_sm(workload), device.l2_bytes),
        )

    def plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
        launch = Launch(
            stage=STAGE,
            build=_block_build(name, workload.dtype),
            entry=entry,
            grid=(workload.rows, 1, 1),
            block=(_threads(workload), 1, 1),
            smem_bytes=0,
            args=(Pointer("x"), Pointer("y"), Scalar("i32", workload.seq_kv)),
        )
        return _plan(workload, launch)

    return _spec(
        name,
        number,
        title,
        idea,
        demand=demand,
        plan=plan,
        builds=lambda _: tuple(_block_build(name, dtype) for dtype in Dtype),
        file=_block_build(name, Dtype.FP16).file,
        largest_logit=largest_logit,
    )


def _spec(
    name: str,
    number: int,
    title: str,
    idea: str,
    *,
    file: Path,
    demand: Callable[[Workload, DeviceSpec], Demand],
    plan: Callable[[Workload, DeviceSpec], LaunchPlan],
    builds: Callable[[DeviceSpec], tuple[Build, ...]],
    largest_logit: float | None = None,
) -> KernelSpec:
    return KernelSpec(
        name=name,
        rung=number,
        title=title,
        idea=idea,
        file=file,
        direction=Pass.FWD,
        arches=AMPERE_AND_LATER,
        demand=demand,
        unsupported=_unsupported,
        plan=plan,
        builds=builds,
        rounds=("o",),
        operation="softmax",
        variants=lambda: _variants(name),
        largest_logit=largest_logit,
    )


def _variants(name: str) -> tuple[KernelSpec, ...]:
    from attnprof.kernels import softmax_variants  # which builds on this module

    return softmax_variants.VARIANTS.get(name, ())


# ---------------------------------------------------------------------------------------------------------------------
# softmax-fused: the row stays on the chip


def _fused_demand(workload: Workload, device: DeviceSpec) -> Demand:
    layout = fused_layout(workload, device)
    # A row that overflows the chip has an SM, or the cluster's SMs, to itself.
    rows_in_flight = max(1, device.sm_count * workload.rows // layout.blocks)
    return softmax_demand(
        workload,
        FUSED,
        rereads_in_l2=rereads_hit_l2(workload, rows_in_flight, device.l2_bytes),
        resident_columns=layout.resident_columns,
    )


def _fused_plan(workload: Workload, device: DeviceSpec) -> LaunchPlan:
    layout = fused_layout(workload, device)
    columns = Scalar("i32", workload.seq_kv)
    # Only the warp kernel takes several rows a block, and so must know where they end.
    rows = (Scalar("i64", workload.rows),) if layout.entry == "softmax_fused_warp" else ()
    launch = Launch(
        stage=STAGE,
        build=layout.build,
        entry=layout.entry,
        grid=(layout.blocks, 1, 1),
        block=(layout.threads, 1, 1),
        smem_bytes=layout.smem_bytes,
        args=(Pointer("x"), Pointer("y"), *rows, columns, *layout.extra),
    )
    return _plan(workload, launch)


SPECS = (
    _block_spec(
        "softmax-naive",
        1,
        NAIVE,
        "softmax by the definition, no maximum",
        "Exponentials are summed and divided as the formula stands; logits above 88 overflow, which is the lesson.",
        LARGEST_NAIVE_LOGIT,
    ),
    _block_spec(
        "softmax-safe",
        2,
        SAFE,
        "three passes: maximum, sum, normalise",
        "Subtracting the row's maximum makes overflow impossible and costs a pass of its own.",
    ),
    _block_spec(
        "softmax-online",
        3,
        ONLINE,
        "one statistics pass, then normalise",
        "A running maximum and a sum that is rescaled when the maximum grows need one pass instead of two.",
    ),
    _spec(
        "softmax-fused",
        4,
        "the row stays on the chip",
        "Registers, a cluster's registers or shared memory hold the row between its statistics and its normalisation.",
        file=kernels_dir() / "softmax_fused.cu",
        demand=_fused_demand,
        plan=_fused_plan,
        builds=fused_builds,
    ),
)
