"""Where the fused softmax keeps a row, and what the rungs' plans and ledgers say."""

from __future__ import annotations

import re

import pytest

from attnprof.kernels.catalogue import select
from attnprof.kernels.ladder.softmax import MAX_COLUMNS, MAX_ROWS, SPECS
from attnprof.kernels.plan import Scalar
from attnprof.kernels.softmax_placement import fused_layout
from attnprof.kernels.spec import KernelSpec
from attnprof.model.architectures import known_architectures
from attnprof.model.devices import DeviceSpec, find, standing_for
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Pass, Workload

FUSED = SPECS[3]
H200, A100 = find("H200"), find("A100-SXM4-80GB")
DEVICES = tuple(
    device for device in (standing_for(each.compute_capability) for each in known_architectures()) if device is not None
)
COLUMNS = (
    1,
    7,
    64,
    127,
    512,
    1000,
    1024,
    2048,
    2049,
    4096,
    16_384,
    16_385,
    32_768,
    65_536,
    131_072,
    131_080,
    163_840,
    400_000,
    2**20,
)
LABELS = (
    "Rung",
    "Idea",
    "Change from the previous rung",
    "Traffic",
    "Tiles / threads / shared memory",
    "Limits",
    "References",
)


def matrix(rows: int, columns: int, dtype: Dtype = Dtype.FP16) -> Workload:
    return Workload.of(rows, seq_kv=columns, heads=1, dtype=dtype)


def place(columns: int, device: DeviceSpec, dtype: Dtype = Dtype.FP16) -> tuple[str, int, int]:
    """Entry point, cluster size and threads."""
    layout = fused_layout(matrix(100, columns, dtype), device)
    cluster = int(dict(layout.build.defines).get("CLUSTER", "1"))
    return layout.entry.removeprefix("softmax_fused_"), cluster, layout.threads


def test_the_catalogue_has_the_four_rungs_in_order() -> None:
    names = ["softmax-naive", "softmax-safe", "softmax-online", "softmax-fused"]
    assert [spec.name for spec in SPECS] == names
    assert select(names) == SPECS
    assert all(spec.operation == "softmax" for spec in SPECS)
    assert [spec.largest_logit is None for spec in SPECS] == [False, True, True, True]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_header_comment_has_every_label_in_order(spec: KernelSpec) -> None:
    header = spec.file.read_text(encoding="utf-8").split("#include")[0]
    assert re.findall(r"^// ([A-Z][^:]*):", header, re.MULTILINE) == list(LABELS)
    assert f"// Rung: {spec.rung}, {spec.name}" in header


@pytest.mark.parametrize(
    ("columns", "ampere", "hopper"),
    [
        (1, ("warp", 1, 64), ("warp", 1, 64)),
        (1024, ("warp", 1, 64), ("warp", 1, 64)),
        (2048, ("block", 1, 32), ("block", 1, 32)),
        (4096, ("block", 1, 64), ("block", 1, 64)),
        (32_768, ("block", 1, 512), ("block", 1, 512)),
        (40_000, ("shared", 1, 512), ("shared", 1, 512)),
        (65_536, ("shared", 1, 512), ("shared", 1, 512)),
        (131_072, ("shared", 1, 1024), ("shared", 1, 1024)),
        (262_144, ("shared", 1, 1024), ("shared", 2, 1024)),
        (524_288, ("shared", 1, 1024), ("shared", 4, 1024)),
        (1_048_576, ("shared", 1, 1024), ("shared", 8, 1024)),
        (2_000_000, ("shared", 1, 1024), ("shared", 8, 1024)),
    ],
)
def test_a_row_goes_where_it_fits(columns: int, ampere: tuple[str, int, int], hopper: tuple[str, int, int]) -> None:
    assert place(columns, A100) == ampere
    assert place(columns, H200) == hopper


def test_fp32_rows_move_on_at_half_the_columns() -> None:
    for columns in (1024, 2048, 16_384, 32_768, 131_072):
        assert place(columns // 2, H200, Dtype.FP32) == place(columns, H200, Dtype.BF16)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("columns", COLUMNS)
def test_every_layout_holds_its_row_and_fits_every_architecture(columns: int, dtype: Dtype) -> None:
    chunk = 16 // dtype.itemsize
    for device in DEVICES:
        layout = fused_layout(matrix(100, columns, dtype), device)
        macros = dict(layout.build.defines)
        cluster = int(macros.get("CLUSTER", "1"))
        assert layout.threads % 32 == 0
        assert layout.threads <= int(macros["MAX_THREADS"])
        if layout.entry == "softmax_fused_warp":
            assert int(macros["LANES"]) * int(macros["CHUNKS"]) * chunk >= columns // chunk * chunk
            per_block = layout.threads // int(macros["LANES"])
            assert layout.blocks * per_block >= 100 > (layout.blocks - 1) * per_block
            continue
        assert layout.blocks == 100 * cluster
        if layout.entry == "softmax_fused_block":
            assert layout.threads * int(macros["CHUNKS"]) * cluster >= columns // chunk
            continue
        static_bytes = cluster * 32 * 8
        assert layout.smem_bytes + static_bytes <= device.smem_per_block_bytes
        resident = layout.extra[0].value
        assert layout.smem_bytes == resident * layout.threads * 16
        assert int(resident) >= 0
        held = (int(macros["CHUNKS"]) + int(resident)) * layout.threads * cluster * chunk
        assert layout.resident_columns == (held if held < columns // chunk * chunk else None)


def test_clusters_are_for_the_architectures_that_have_them() -> None:
    for device in DEVICES:
        builds = FUSED.builds(device)
        assert len(set(builds)) == len(builds)
        clusters = {dict(build.defines).get("CLUSTER", "1") for build in builds}
        assert clusters == ({"1", "2", "4", "8"} if device.compute_capability >= (9, 0) else {"1"})


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_plan_launches_a_build_of_the_catalogue(spec: KernelSpec) -> None:
    for device in DEVICES:
        builds = set(spec.builds(device))
        for columns in COLUMNS:
            for dtype in Dtype:
                plan = spec.plan(matrix(3, columns, dtype), device)
                assert {launch.build for launch in plan.launches} <= builds
                assert [tensor.name for tensor in plan.tensors] == ["x", "y"]
                assert {tensor.shape for tensor in plan.tensors} == {(3, columns)}


def test_only_the_warp_kernel_is_told_the_rows() -> None:
    (short,), (long,) = FUSED.plan(matrix(5, 100), A100).launches, FUSED.plan(matrix(5, 10_000), A100).launches
    assert Scalar("i64", 5) in short.args
    assert Scalar("i64", 5) not in long.args


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_cannot_run_is_refused_with_the_reason(spec: KernelSpec) -> None:
    assert spec.unsupported(matrix(10, MAX_COLUMNS)) is None
    assert "columns" in (spec.unsupported(matrix(1, MAX_COLUMNS + 1)) or "")
    assert "rows" in (spec.unsupported(matrix(MAX_ROWS + 1, 1)) or "")
    assert "causal" in (spec.unsupported(Workload.of(16, causal=True)) or "")
    assert "forward" in (spec.unsupported(Workload.of(16, direction=Pass.BWD)) or "")


def test_the_grid_stays_below_its_limit() -> None:
    for columns in COLUMNS:
        for spec in SPECS:
            (launch,) = spec.plan(matrix(MAX_ROWS, columns), H200).launches
            assert launch.grid[0] <= 2**31 - 1


def test_on_a_device_the_ledger_knows_what_l2_holds() -> None:
    safe = SPECS[1]
    long, short = matrix(512, 2**20), matrix(2**15, 2**14)
    size = 2**30
    assert safe.demand(long, H200).hbm_bytes == 4 * size
    assert safe.demand(short, H200).hbm_bytes == 2 * size


def test_on_a_device_the_ledger_knows_what_the_chip_holds() -> None:
    for columns in (1024, 32_768, 131_072, 524_288, 2**20):
        assert FUSED.demand(matrix(2**29 // columns, columns), H200).hbm_bytes == 2 * 2**30
    # Registers and shared memory of a cluster of 8 hold 2.75 MiB. With 16 rows in flight on 132 SMs the rest of a row
    # of 1.5 Mi fp16 columns is still in L2, that of 1 Mi fp32 columns, 64 MiB in all, is not.
    in_l2 = FUSED.demand(matrix(512, 3 * 2**19), H200)
    assert in_l2.hbm_bytes == 2 * 512 * 3 * 2**20
    assert any(line.stage.endswith("from L2") for line in in_l2.ledger)
    beyond = FUSED.demand(matrix(256, 2**20, Dtype.FP32), H200).hbm_bytes - 2 * 2**30
    assert beyond == 256 * (4 * 2**20 - 22 * 8 * 1024 * 16)
    assert FUSED.demand(matrix(4096, 2**17), A100).hbm_bytes == 2 * 2**30
    assert FUSED.demand(matrix(512, 2**20), A100).hbm_bytes > 2.8 * 2**30
