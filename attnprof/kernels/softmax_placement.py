"""Where softmax-fused keeps a row on a device, and with what it is built for that."""

from __future__ import annotations

from dataclasses import dataclass

from attnprof.kernels.plan import Build, LaunchPlan, Scalar
from attnprof.kernels.sources import kernels_dir
from attnprof.model.devices import DeviceSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload

# The oldest compute capability with thread block clusters.
CLUSTERS_SINCE = (9, 0)
CHUNK_BYTES = 16
WARP = 32
# 64 registers a thread leave room for as many on every architecture.
THREADS_PER_SM = 1024

# Measured on an H200, where small blocks won: see docs/decisions/0010-softmax-placement.md.
# Rows in the registers of a part of a warp: (lanes a row, chunks a lane), shortest rows first.
WARP_SHAPES = ((4, 2), (8, 4), (16, 4), (32, 4))
WARP_KERNEL_THREADS = 64
# Rows in the registers of a block: chunks a thread, and most threads.
REGISTER_CHUNKS, REGISTER_THREADS = 8, 512
REGISTER_BYTES = REGISTER_CHUNKS * REGISTER_THREADS * CHUNK_BYTES
# Rows in registers and shared memory: threads a block where two blocks may share an SM, and where one has it alone.
SHARED_THREADS, ALONE_THREADS = 512, 1024
SHARED_BATCH = 4
CLUSTERS = (1, 2, 4, 8)


def element_macro(dtype: Dtype) -> tuple[str, str]:
    """What chooses the element type of a softmax kernel."""
    return ("ELEMENT", f"ELEMENT_{dtype.name}")


def chunks_of(columns: int, dtype: Dtype) -> int:
    """16-byte chunks of a row, at most: fewer when the row starts off a boundary."""
    return columns * dtype.itemsize // CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """Where softmax-fused keeps a row, and how it is launched.

    ``resident_columns``: how many columns of a row stay on the chip, None for all.
    """

    build: Build
    entry: str
    blocks: int
    threads: int
    smem_bytes: int = 0
    extra: tuple[Scalar, ...] = ()
    resident_columns: int | None = None


def fused_layout(workload: Workload, device: DeviceSpec) -> Layout:
    """Where a row goes on a device.

    A warp's registers for rows up to 2 KiB, a block's up to 64 KiB. Beyond, registers and shared memory together: of
    a block that leaves room for a second one on its SM up to 128 KiB, then of a block that has an SM to itself, then,
    where there are clusters, of 2, 4 or 8 of those. What does not fit even there is read twice.
    """
    chunks = chunks_of(workload.seq_kv, workload.dtype)
    for lanes, per_lane in WARP_SHAPES:
        if chunks <= lanes * per_lane:
            return Layout(
                build=_warp_build(workload.dtype, lanes, per_lane),
                entry="softmax_fused_warp",
                blocks=-(-workload.rows // (WARP_KERNEL_THREADS // lanes)),
                threads=WARP_KERNEL_THREADS,
            )
    if chunks <= REGISTER_THREADS * REGISTER_CHUNKS:
        return Layout(
            build=_register_build(workload.dtype),
            entry="softmax_fused_block",
            blocks=workload.rows,
            threads=-(-chunks // (REGISTER_CHUNKS * WARP)) * WARP,
        )
    if chunks <= 2 * REGISTER_CHUNKS * SHARED_THREADS:
        return _shared_layout(workload, chunks, device, SHARED_THREADS, 1)
    layouts = [_shared_layout(workload, chunks, device, ALONE_THREADS, cluster) for cluster in _clusters(device)]
    return next((layout for layout in layouts if layout.resident_columns is None), layouts[-1])


def _clusters(device: DeviceSpec) -> tuple[int, ...]:
    """How many blocks may hold a row together."""
    return CLUSTERS if device.compute_capability >= CLUSTERS_SINCE else CLUSTERS[:1]


def uses_clusters(plan: LaunchPlan) -> bool:
    """Whether a plan of softmax-fused, or of a variant, has rows that several blocks hold together."""
    return any("CLUSTER" in dict(launch.build.defines) for launch in plan.launches)


def _shared_layout(workload: Workload, chunks: int, device: DeviceSpec, threads: int, cluster: int) -> Layout:
    static_bytes = cluster * 32 * 8  # (m, l) of 32 warps of each block of the cluster
    room_bytes = device.smem_per_block_bytes - static_bytes
    members = cluster * threads
    beyond_registers = max(0, -(-chunks // members) - REGISTER_CHUNKS)
    resident = min(beyond_registers, room_bytes // (threads * CHUNK_BYTES))
    on_chip = (REGISTER_CHUNKS + resident) * members
    return Layout(
        build=_shared_build(workload.dtype, threads, cluster),
        entry="softmax_fused_shared",
        blocks=workload.rows * cluster,
        threads=threads,
        smem_bytes=resident * threads * CHUNK_BYTES,
        extra=(Scalar("i32", resident),),
        resident_columns=on_chip * CHUNK_BYTES // workload.dtype.itemsize if on_chip < chunks else None,
    )


def _fused_build(dtype: Dtype, place: str, cluster: int = 1, **macros: int) -> Build:
    return Build(
        kernels_dir() / "softmax_fused.cu",
        (
            element_macro(dtype),
            ("PLACE", f"PLACE_{place}"),
            *(((("CLUSTER", str(cluster)),)) if cluster > 1 else ()),
            *((macro, str(value)) for macro, value in macros.items()),
        ),
    )


def _warp_build(dtype: Dtype, lanes: int, chunks: int) -> Build:
    return _fused_build(dtype, "WARP", LANES=lanes, CHUNKS=chunks, MAX_THREADS=WARP_KERNEL_THREADS)


def _register_build(dtype: Dtype) -> Build:
    return _fused_build(
        dtype,
        "BLOCK",
        CHUNKS=REGISTER_CHUNKS,
        MAX_THREADS=REGISTER_THREADS,
        BLOCKS_PER_SM=THREADS_PER_SM // REGISTER_THREADS,
    )


def _shared_build(dtype: Dtype, threads: int, cluster: int) -> Build:
    return _fused_build(
        dtype,
        "SHARED",
        cluster,
        CHUNKS=REGISTER_CHUNKS,
        MAX_THREADS=threads,
        BLOCKS_PER_SM=THREADS_PER_SM // threads,
        BATCH=SHARED_BATCH,
    )


def fused_builds(device: DeviceSpec) -> tuple[Build, ...]:
    """Every build that `fused_layout` may choose on a device."""
    return tuple(
        build
        for dtype in Dtype
        for build in (
            *(_warp_build(dtype, lanes, chunks) for lanes, chunks in WARP_SHAPES),
            _register_build(dtype),
            _shared_build(dtype, SHARED_THREADS, 1),
            *(_shared_build(dtype, ALONE_THREADS, cluster) for cluster in _clusters(device)),
        )
    )
