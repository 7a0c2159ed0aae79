"""Tile choices of the tunable kernels: what there is to choose from, on every GPU, and that each computes attention."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.kernels import fa2_bwd_tiles, fa2_tiles
from attnprof.kernels.attention import built_in, fit_together
from attnprof.kernels.candidates import Candidate, chosen_first
from attnprof.kernels.catalogue import builtin, select
from attnprof.kernels.fa2_variants import VARIANTS
from attnprof.kernels.plan import LaunchPlan
from attnprof.kernels.spec import KernelSpec, tile_fields
from attnprof.kernels.trial import inputs_for, judge, run_once
from attnprof.model.devices import DeviceSpec, find, table
from attnprof.model.dtypes import Dtype
from attnprof.model.occupancy import occupancy
from attnprof.model.workload import Pass, Workload

H200, A100, L4 = find("H200"), find("A100-SXM4-80GB"), find("L4")
MODERN = [device for device in table() if device.compute_capability >= (8, 0)]
TUNABLE = select(["fa2", "fa2-bwd", "fa2-bwd-deterministic", "fa2-decode"])
FA2, BWD, _, DECODE = TUNABLE


def workloads(spec: KernelSpec) -> list[Workload]:
    lengths = ((1, 9000), (16, 300)) if spec is DECODE else ((1000, 1000), (1000, 4000))
    return [
        Workload.of(q, seq_kv=kv, batch=2, heads=8, kv_heads=2, head_dim=d, causal=causal, direction=spec.direction)
        for (q, kv), d, causal in product(lengths, (64, 72, 128, 256), (False, True))
        if spec is not DECODE or d != 72
    ]


CASES = [
    pytest.param(spec, workload, id=f"{spec.name} {workload.label}") for spec in TUNABLE for workload in workloads(spec)
]


@pytest.mark.parametrize(("spec", "workload"), CASES)
def test_candidates_on_every_gpu(spec: KernelSpec, workload: Workload) -> None:
    for device in MODERN:
        first, *others = spec.candidates(workload, device)
        # The first is what runs without tuning.
        assert first.plan() == spec.plan(workload, device)
        assert first.demand() == spec.demand(workload, device)
        assert not first.tuned
        assert others, device.name
        every = (first, *others)
        assert len({candidate.label for candidate in every}) == len(every)
        assert len({candidate.plan() for candidate in every}) == len(every)
        assert {candidate.family for candidate in every} == {first.family}
        for candidate in every:
            fits(candidate, device)


def fits(candidate: Candidate, device: DeviceSpec) -> None:
    """Launched and predicted alike, within the device's shared memory as often as the schedule says."""
    facts = device.architecture
    assert facts is not None
    schedules = {stage.name: stage.schedule for stage in candidate.demand().stages}
    for launch in candidate.plan().launches:
        assert launch.smem_bytes <= device.smem_per_block_bytes
        schedule = schedules[launch.stage]
        if schedule is not None and launch.smem_bytes:
            assert schedule.blocks == launch.blocks
            found = occupancy(facts, threads=launch.threads, registers=32, smem_bytes=launch.smem_bytes)
            assert found.blocks_by["shared-memory"] >= schedule.blocks_per_sm


@pytest.mark.parametrize("spec", TUNABLE, ids=lambda spec: spec.name)
def test_what_cannot_run_has_no_candidates(spec: KernelSpec) -> None:
    workload = Workload.of(64, head_dim=63, direction=spec.direction)
    assert spec.candidates(workload, H200) == ()
    assert spec.tiles(workload, H200) is None
    other = Pass.BWD if spec.direction is Pass.FWD else Pass.FWD
    assert spec.candidates(replace(workload, head_dim=64, direction=other), H200) == ()


def test_kernels_without_a_choice_say_so() -> None:
    (naive,) = select(["naive"])
    assert naive.candidates(Workload.of(64), H200) == ()
    assert tile_fields(naive, Workload.of(64), H200) == {"layout": "bhsd", "tiles": None, "tiles_source": None}
    # What a variant is about would be lost with other tiles.
    assert all(variant.candidates(Workload.of(64), H200) == () and variant.bshd is None for variant in VARIANTS)


@pytest.mark.parametrize(
    ("of", "every"),
    [
        (fa2_tiles.Tiles.of, [*fa2_tiles.DEFAULTS.values(), *fa2_tiles.CANDIDATES.values()]),
        (fa2_bwd_tiles.Tiles.of, [*fa2_bwd_tiles.DEFAULTS.values(), *fa2_bwd_tiles.CANDIDATES.values()]),
    ],
    ids=["fa2", "fa2-bwd"],
)
def test_a_label_names_its_tiles(of, every) -> None:  # type: ignore[no-untyped-def]
    for tiles in (tiles for row in every for tiles in row):
        assert of(tiles.head_dim, tiles.label) == tiles
    with pytest.raises(ValueError, match="names no tiles"):
        of(64, "128x64")


@pytest.mark.parametrize(
    "tiles",
    [t for table in (fa2_tiles.CANDIDATES, fa2_tiles.SMALL_CANDIDATES) for row in table.values() for t in row],
    ids=lambda tiles: f"d{tiles.head_dim} {tiles.label}",
)
def test_what_a_thread_must_hold_fits_its_registers(tiles: fa2_tiles.Tiles) -> None:
    """Else it would only ever be compiled to be dropped: O, S, and Q where it stays, beside 32 for addresses."""
    products = tiles.block_q // (16 * tiles.warps)
    held = tiles.head_dim // 2 + tiles.block_kv // 2 + (tiles.head_dim // 4 if tiles.q_in_registers else 0)
    assert products * held + 32 <= min(255, 65_536 // (tiles.blocks_per_sm * tiles.threads))


def test_blocks_share_an_sm_with_what_the_system_takes() -> None:
    """1 KiB a block, from sm_80 on: half of 164 KiB is not there for each of two."""
    half = A100.smem_per_sm_bytes // 2
    assert fit_together(2, half - 1024, A100)
    assert not fit_together(2, half - 1023, A100)


def test_the_built_in_choice_goes_by_architecture_and_by_what_the_device_reports() -> None:
    row = fa2_tiles.DEFAULTS[128]
    assert [built_in(row, device).label for device in (H200, A100, L4)] == [
        "128x64 4w 2st 2b", "128x32 4w 2st 2b", "128x32 4w 1st 2b",
    ]  # fmt: skip
    orin, thor = replace(A100, compute_capability=(8, 7)), replace(H200, compute_capability=(10, 3))
    assert (built_in(row, orin), built_in(row, thor)) == (row[2], row[1])
    unknown = replace(H200, compute_capability=(13, 0))
    assert built_in(row, unknown) == row[1]
    # An H200 that reports less shared memory an SM than it has gets what fits it.
    assert built_in(row, replace(H200, smem_per_sm_bytes=100 * 1024)) == row[3]


def test_short_causal_heads_have_tiles_of_their_own_where_they_were_measured() -> None:
    short, long = (Workload.of(n, head_dim=256, causal=True) for n in (1024, 4096))
    assert fa2_tiles.tiles_of(short, H200) == fa2_tiles.SM_90_D256_SHORT_CAUSAL
    assert fa2_tiles.tiles_of(long, H200) == fa2_tiles.SM_90_D256
    assert fa2_tiles.tiles_of(replace(short, causal=False), H200) == fa2_tiles.SM_90_D256
    assert fa2_tiles.tiles_of(replace(short, seq_kv=4096), H200) == fa2_tiles.SM_90_D256
    assert fa2_tiles.tiles_of(replace(short, seq_q=1025), H200) == fa2_tiles.SM_90_D256
    assert fa2_tiles.tiles_of(short, H200, strided=True) == fa2_tiles.DEFAULTS[256][0]
    assert fa2_tiles.tiles_of(short, A100) == fa2_tiles.DEFAULTS[256][2]


# -- choosing


def test_choosing_puts_the_named_candidate_first() -> None:
    workload = Workload.of(1000, head_dim=64)
    label = FA2.candidates(workload, H200)[3].label
    chosen = FA2.choosing(lambda *_: label)
    first, second, *_ = chosen.candidates(workload, H200)
    assert (first.label, first.tuned, second.tuned) == (label, True, False)
    assert len(chosen.candidates(workload, H200)) == len(FA2.candidates(workload, H200))
    assert chosen.plan(workload, H200) == first.plan() != FA2.plan(workload, H200)
    assert chosen.demand(workload, H200) == first.demand()
    assert tile_fields(chosen, workload, H200) == {"layout": "bhsd", "tiles": label, "tiles_source": "tuned"}


def test_choosing_what_is_not_there_changes_nothing() -> None:
    workload = Workload.of(1000, head_dim=64)
    chosen = FA2.choosing(lambda *_: "7x7 1w 1st 1b")
    assert chosen.plan(workload, H200) == FA2.plan(workload, H200)
    assert tile_fields(chosen, workload, H200)["tiles_source"] == "built-in"
    unsupported = Workload.of(1000, head_dim=63)
    assert chosen.demand(unsupported, H200) == FA2.demand(unsupported, H200)
    assert chosen_first((), "any") == ()


# -- the layout


def test_a_layout_that_a_kernel_has_not_is_a_refusal() -> None:
    for spec in builtin():
        laid = spec.laid_out("bshd")
        assert laid.layout == "bshd"
        assert spec.laid_out("bhsd") is spec
        if spec is not FA2:
            assert laid.unsupported(Workload.of(64)) == f"{spec.name} takes bhsd tensors only, not bshd"
            assert laid.candidates(Workload.of(64), H200) == ()


def test_heads_inside_the_sequence_cost_the_same_bytes() -> None:
    workload = Workload.of(1000, heads=6, kv_heads=2, head_dim=64, batch=2)
    strided = FA2.laid_out("bshd")
    assert strided.plan(workload, H200).tensor("q").shape == (2, 1000, 6, 64)
    assert strided.plan(workload, H200).tensor("k").shape == (2, 1000, 2, 64)
    assert strided.demand(workload, H200).hbm_bytes == FA2.demand(workload, H200).hbm_bytes
    assert {dict(c.plan().launches[0].build.defines)["STRIDED"] for c in strided.candidates(workload, H200)} == {"1"}
    assert strided.candidates(workload, H200)[0].family == "d64 strided"
    assert strided.plan_lse is not None
    assert strided.plan_lse(workload, H200).tensor("lse").shape == (2, 6, 1000)


# -- what they compute


def emulated(spec: KernelSpec, plan: LaunchPlan, workload: Workload, device: DeviceSpec) -> None:
    executor = EmulatorExecutor(Compiler(), device, mode=Mode.CHECKS)
    inputs = inputs_for(spec, workload, executor=executor)
    outputs = run_once(plan, inputs, executor)
    verdict = judge(spec, workload, inputs, outputs)
    assert verdict.passed, verdict.detail


def few_queries(head_dim: int, rows: int) -> Workload:
    return Workload.of(rows // 4, seq_kv=600, heads=4, kv_heads=1, head_dim=head_dim, causal=True)


RAGGED = [
    *((FA2, Workload.of(130, seq_kv=150, heads=1, head_dim=d, causal=True)) for d in (32, 64, 72, 128, 160, 256)),
    *((BWD, Workload.of(70, seq_kv=150, heads=1, head_dim=d, causal=True, direction=Pass.BWD)) for d in (64, 128, 256)),
    *((DECODE, few_queries(d, rows)) for d in (64, 256) for rows in (16, 64)),
]
# What fits an H200; of what is tried on GPUs with 100 KiB an SM besides, all that an L4 has room for.
EVERY = [
    pytest.param(spec, workload, device, index, id=f"{spec.name} {workload.label} {device.name} {candidate.label}")
    for spec, workload in RAGGED
    for device in (H200, L4)
    for index, candidate in enumerate(spec.candidates(workload, device))
    if device is H200 or candidate.label not in {other.label for other in spec.candidates(workload, H200)}
]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "workload", "device", "index"), EVERY)
def test_emulated_every_candidate_computes_attention(
    spec: KernelSpec, workload: Workload, device: DeviceSpec, index: int
) -> None:
    emulated(spec, spec.candidates(workload, device)[index].plan(), workload, device)


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
@pytest.mark.parametrize("head_dim", [64, 72])
def test_emulated_heads_inside_the_sequence(head_dim: int, dtype: Dtype) -> None:
    spec = FA2.laid_out("bshd")
    workload = Workload.of(65, seq_kv=100, batch=2, heads=4, kv_heads=2, head_dim=head_dim, dtype=dtype, causal=True)
    emulated(spec, spec.plan(workload, A100), workload, A100)
