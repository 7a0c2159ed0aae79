"""Variants of fa2: they compute attention too, and each has exactly the fault, or the cure, that it is named after."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from attnprof.compiler.compiler import Compiler
from attnprof.emulator.counter import EmulatorCounter
from attnprof.emulator.executor import EmulatorExecutor, Mode
from attnprof.kernels.executor import Counted
from attnprof.kernels.fa2_tiles import tiles_for
from attnprof.kernels.fa2_variants import BASE, OVERSIZED, PAD, PLAIN, TILE_256, VARIANTS, WRITE_P
from attnprof.kernels.inputs import make_inputs
from attnprof.kernels.spec import KernelSpec, variant_name
from attnprof.kernels.verify import verify
from attnprof.model.devices import DeviceSpec, find
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UsageError
from attnprof.model.rounding import decode
from attnprof.model.workload import Pass, Workload

H200, A100 = find("H200"), find("A100-SXM4-80GB")
NAMES = [variant_name(BASE, spec) for spec in VARIANTS]
WORKLOADS = [
    Workload.of(seq_q, seq_kv=seq_kv, batch=2, heads=6, kv_heads=2, head_dim=head_dim, causal=causal)
    for (seq_q, seq_kv), head_dim, causal in product(
        [(1, 1), (257, 129), (1000, 1000), (128, 4096)], [64, 128], [False, True]
    )
]


def run(spec: KernelSpec, workload: Workload, tensor: str = "o") -> tuple[Any, Any]:
    """Inputs, and a tensor after a checked run."""
    plan = spec.plan(workload, H200)
    inputs = make_inputs(workload)
    with EmulatorExecutor(Compiler(), H200, mode=Mode.CHECKS).prepare(plan) as prepared:
        for name, values in inputs.items():
            prepared.write(name, values)
        prepared.poison()
        prepared.launch()
        return inputs, prepared.read(tensor)


@cache
def counted(name: str, gpu: str, head_dim: int) -> Counted:
    spec, device = next(spec for spec in (BASE, *VARIANTS) if spec.name == name), find(gpu)
    workload = Workload.of(256, heads=1, head_dim=head_dim)
    return EmulatorCounter(Compiler(), device).count(spec.plan(workload, device), make_inputs(workload))


def test_names() -> None:
    assert NAMES == ["plain", "pad", "write-p", "tile-256"]
    assert [BASE.variant(name) for name in NAMES] == list(VARIANTS)
    assert all(spec.file == BASE.file and spec.name.startswith("fa2[") for spec in VARIANTS)


def test_an_unknown_variant_lists_those_there_are() -> None:
    with pytest.raises(UsageError) as error:
        BASE.variant("pat")
    assert error.value.message == "fa2 has no variant 'pat'"
    assert error.value.hint == "it has plain, pad, write-p, tile-256"
    with pytest.raises(UsageError):
        PLAIN.variant("plain")


def test_the_kernel_itself_is_built_without_the_macros_of_its_variants() -> None:
    for build in BASE.builds(H200):
        assert not {"LAYOUT", "WRITE_P"} & dict(build.defines).keys()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", VARIANTS, ids=NAMES)
def test_emulated_it_computes_attention(spec: KernelSpec, causal: bool) -> None:
    workload = Workload.of(
        150, seq_kv=330, heads=2, kv_heads=1, head_dim=128, dtype=Dtype.BF16 if causal else Dtype.FP16, causal=causal
    )
    inputs, o = run(spec, workload)
    verdict = verify(workload, spec.rounds, inputs, o)
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_emulated_the_layouts_conflict_or_not(device: DeviceSpec, head_dim: int) -> None:
    swizzle, pad, plain = (counted(spec.name, device.name, head_dim) for spec in (BASE, PAD, PLAIN))
    assert swizzle.bank_conflicts == pad.bank_conflicts == 0
    assert swizzle.shared_wavefronts == pad.shared_wavefronts
    # 8-way in every ldmatrix and where O is stored; the copies in, and O's chunks on the way out, never conflict.
    assert 5.0 < plain.shared_wavefronts / swizzle.shared_wavefronts < 8.0
    assert plain.bank_conflicts == plain.shared_wavefronts - swizzle.shared_wavefronts


@pytest.mark.parametrize("spec", [BASE, PLAIN, PAD, WRITE_P, TILE_256], ids=lambda spec: spec.name)
def test_emulated_the_ledger_is_what_is_moved(spec: KernelSpec) -> None:
    workload = Workload.of(256, heads=1)
    assert counted(spec.name, "H200", 128).tensor_bytes == spec.demand(workload, H200).hbm_bytes


@pytest.mark.parametrize("causal", [False, True])
def test_emulated_p_is_the_attention_map_of_each_key_block(causal: bool) -> None:
    workload = Workload.of(70, seq_kv=130, heads=2, kv_heads=1, head_dim=64, causal=causal)
    inputs, stored = run(WRITE_P, workload, "p")
    p = decode(stored, workload.dtype).astype(np.float64)
    block = tiles_for(64, H200).block_kv
    assert p.shape == (1, 2, 70, -(-130 // block) * block)
    q, k = (decode(inputs[name], workload.dtype).astype(np.float64) for name in ("q", "k"))
    scores = np.einsum("bhqd,bkd->bhqk", q, k[:, 0]) * workload.scale
    if causal:
        scores[..., np.arange(130)[None, :] > np.arange(70)[:, None] + 60] = -np.inf
    for start in range(0, 130, block):
        end = min(start + block, 130)
        ours, theirs = p[..., start:end], scores[..., start:end]
        seen = np.isfinite(theirs).any(axis=-1)
        expected = np.exp(theirs[seen] - theirs[seen].max(axis=-1, keepdims=True))
        found = ours[seen] / ours[seen].max(axis=-1, keepdims=True)
        np.testing.assert_allclose(found, expected, atol=2e-3)
    assert np.all(p[..., 130:] == 0.0)  # keys that do not exist, in a block that does


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.label)
@pytest.mark.parametrize("spec", VARIANTS, ids=NAMES)
def test_plan_and_demand_agree(spec: KernelSpec, workload: Workload) -> None:
    if spec.unsupported(workload) is not None:
        pytest.skip(str(spec.unsupported(workload)))
    asked, plan = spec.demand(workload, H200), spec.plan(workload, H200)
    (stage,), (launch,) = asked.stages, plan.launches
    assert (stage.name, stage.schedule and stage.schedule.blocks) == (launch.stage, launch.blocks)
    assert plan.footprint_bytes == asked.footprint_bytes
    assert launch.build in spec.builds(H200)
    assert set(spec.builds(H200)).isdisjoint(BASE.builds(H200))


def test_p_costs_a_square() -> None:
    workload = Workload.of(4096, heads=32)
    more = WRITE_P.demand(workload, H200).hbm_bytes - BASE.demand(workload, H200).hbm_bytes
    assert more == 2 * 32 * 4096**2
    assert WRITE_P.demand(workload, H200).intermediate_bytes == more
    causal = Workload.of(4096, heads=32, causal=True)
    assert WRITE_P.demand(causal, H200).hbm_bytes - BASE.demand(causal, H200).hbm_bytes == 2 * 32 * 4096 * 4097 // 2


def test_padding_costs_a_chunk_a_row() -> None:
    plain, pad = tiles_for(128, H200, "plain"), tiles_for(128, H200, "pad")
    assert plain.smem_bytes == tiles_for(128, H200).smem_bytes == 96 * 1024
    assert pad.smem_bytes == 102 * 1024
    assert pad.smem_bytes * 2 <= H200.smem_per_sm_bytes


def test_the_oversized_tile_leaves_room_for_one_block() -> None:
    assert OVERSIZED.smem_bytes == 144 * 1024
    for device in (A100, H200):
        assert device.smem_per_sm_bytes // 2 < OVERSIZED.smem_bytes <= device.smem_per_block_bytes
    assert TILE_256.unsupported(Workload.of(64, head_dim=64)) == "fa2[tile-256] takes head dim 128, not 64"


@pytest.mark.parametrize("spec", VARIANTS, ids=NAMES)
def test_what_fa2_refuses_they_refuse_and_still_predict(spec: KernelSpec) -> None:
    for workload in (Workload.of(64, head_dim=40), Workload.of(64, direction=Pass.BWD)):
        assert spec.unsupported(workload) is not None
        assert spec.demand(workload, H200) == BASE.demand(workload, H200)


@pytest.mark.parametrize(("arch", "device"), [("sm_80", A100), ("sm_90a", H200)])
@pytest.mark.parametrize("spec", VARIANTS, ids=NAMES)
def test_registers_do_not_explain_the_difference(spec: KernelSpec, arch: str, device: DeviceSpec) -> None:
    """A few spilled bytes at most: what a variant costs is its trap, not its registers."""
    compiler = Compiler()
    for build in spec.builds(device):
        for entry in compiler.compile(build, arch).resources.values():
            assert entry.spill_store_bytes + entry.spill_load_bytes <= 128, build.defines
