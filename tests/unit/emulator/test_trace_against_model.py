"""What ``trace`` sets beside the model: equal where tiles are full, and the difference elsewhere is what it says."""

from __future__ import annotations

from typing import Any

import pytest

from attnprof.cli.commands.trace import trace_row
from attnprof.emulator import EmulatorExecutor, Mode
from attnprof.kernels import catalogue
from attnprof.kernels.fa2_tiles import tiles_for
from attnprof.kernels.spec import KernelSpec
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Pass, Workload
from attnprof.report.trace_comparison import EXPONENTIALS, FLOPS, RESCALING, compare
from tests.unit.emulator.emulator_harness import A100, Bench

FULL = (
    Workload.of(256, heads=2, head_dim=64),
    Workload.of(256, seq_kv=512, batch=2, heads=2, kv_heads=1, head_dim=64),
    Workload.of(256, heads=1, head_dim=128, dtype=Dtype.BF16),
)


def row(bench: Bench, name: str, workload: Workload) -> dict[str, Any]:
    (spec,) = catalogue.select([name])
    executor = EmulatorExecutor(bench.cuda, A100, mode=Mode.ALL, on_fault="record", find_nans=True)
    return trace_row(spec, workload, executor, seed=1)


def entries(row: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["stage"], entry["quantity"]): entry for entry in row["comparison"]}


@pytest.mark.parametrize("kernel", ["naive", "fa2"])
@pytest.mark.parametrize("workload", FULL, ids=lambda w: w.label)
def test_full_tiles_differ_in_nothing(bench: Bench, kernel: str, workload: Workload) -> None:
    found = row(bench, kernel, workload)
    assert found["status"] == "ok"
    assert len(found["comparison"]) == (7 if kernel == "fa2" else 11)
    for entry in found["comparison"]:
        if entry["quantity"] == RESCALING:
            assert entry["counted"] > 0
            continue
        assert entry["counted"] == entry["predicted"] > 0, entry
    assert [note for note in found["notes"] if not note.startswith("Exponentials of rescaling")] == []


def test_rescaling_is_told_apart_as_the_source_does(bench: Bench) -> None:
    """The split by pairs multiplied agrees with the exponentials of the lines that rescale."""
    for workload in (FULL[0], Workload.of(300, heads=2, head_dim=64, causal=True)):
        found = row(bench, "fa2", workload)
        (launch,) = found["launches"]
        of_source = sum(line["exponentials"] for line in launch["lines"] if "correction" in line["source"])
        assert entries(found)["attention", RESCALING]["counted"] == of_source > 0


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(130, 200), (100, 70), (128, 65)])
def test_ragged_lengths_cost_whole_tiles(bench: Bench, seq_q: int, seq_kv: int) -> None:
    workload = Workload.of(seq_q, seq_kv=seq_kv, heads=2, head_dim=64)
    found = row(bench, "fa2", workload)
    tiles = tiles_for(64, A100)
    computed = 2 * -(-seq_q // tiles.block_q) * tiles.block_q * -(-seq_kv // tiles.block_kv) * tiles.block_kv
    by_name = entries(found)
    assert by_name["attention", FLOPS]["counted"] == 4 * 64 * computed
    assert by_name["attention", EXPONENTIALS]["counted"] == computed
    assert {entry["difference"] for entry in found["comparison"] if entry["direction"]} == {0}
    assert "the last tiles, which the length does not fill" in found["notes"][0]


def test_the_causal_diagonal_costs_whole_tiles(bench: Bench) -> None:
    workload = Workload.of(512, heads=1, head_dim=64, causal=True)
    found = row(bench, "fa2", workload)
    tiles = tiles_for(64, A100)
    blocks = range(512 // tiles.block_q)
    computed = sum((block + 1) * tiles.block_q * tiles.block_q for block in blocks)
    by_name = entries(found)
    assert by_name["attention", FLOPS]["counted"] == 4 * 64 * computed
    assert by_name["attention", FLOPS]["predicted"] == 4 * 64 * 512 * 513 // 2
    assert by_name["attention", EXPONENTIALS]["counted"] == computed
    assert {entry["difference"] for entry in found["comparison"] if entry["direction"]} == {0}
    assert "the mask's diagonal cuts" in found["notes"][0]


def test_naive_moves_padded_rows_and_diagonal_tiles_of_s(bench: Bench) -> None:
    found = row(bench, "naive", Workload.of(300, heads=1, head_dim=64, causal=True))
    by_name = entries(found)
    more = by_name["scores", "S write, B"]["difference"]
    assert more > 0
    assert by_name["softmax", "P write, B"]["difference"] == more
    assert by_name["output", "P read, B"]["difference"] == more
    assert any("whole tiles and padded rows are moved" in note for note in found["notes"])


# Of each kernel the tensors that the ledger leaves out, or that no launch has, with the reason. So far there are none.
UNPAIRED: dict[str, dict[str, str]] = {}


@pytest.mark.parametrize(
    ("spec", "causal"),
    [
        pytest.param(spec, causal, id=f"{spec.name}{'-causal' * causal}")
        for spec in catalogue.builtin()
        for causal in ((False,) if spec.operation == "softmax" else (False, True))
    ],
)
def test_each_tensor_of_a_launch_has_a_line_and_each_line_a_tensor(
    bench: Bench, spec: KernelSpec, causal: bool
) -> None:
    candidates = (
        Workload.of(70, seq_kv=130, heads=2, kv_heads=1, head_dim=64, causal=causal, direction=spec.direction),
        Workload.of(5, seq_kv=1000, heads=2, kv_heads=1, head_dim=64, causal=causal, direction=spec.direction),
    )
    workload = next(w for w in candidates if spec.unsupported(w) is None)
    found = row(bench, spec.name, workload)
    assert found["status"] == "ok", found["reason"]
    tensors = [entry for entry in found["comparison"] if entry["direction"]]
    unpaired = {entry["tensor"] for entry in tensors if entry["difference"] is None}
    assert unpaired == set(UNPAIRED.get(spec.name, {}))
    stages = spec.demand(workload, A100).stages
    assert {launch["stage"] for launch in found["launches"]} == {stage.name for stage in stages}
    compared = {(entry["stage"], entry["tensor"], entry["direction"]) for entry in tensors}
    assert compared >= {(s.name, line.tensor, line.direction) for s in stages for line in s.ledger if line.bytes}


@pytest.mark.parametrize("kernel", ["fa2-bwd", "fa2-bwd-deterministic"])
@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "head_dim", "causal"),
    [(130, 200, 64, False), (70, 130, 40, False), (200, 200, 128, True), (130, 330, 88, True)],
)
def test_the_backward_moves_the_bytes_of_its_ledger(
    bench: Bench, kernel: str, seq_q: int, seq_kv: int, head_dim: int, causal: bool
) -> None:
    """Whatever the length, the mask and the padding of the heads."""
    workload = Workload.of(seq_q, seq_kv=seq_kv, heads=2, head_dim=head_dim, causal=causal, direction=Pass.BWD)
    found = row(bench, kernel, workload)
    assert {entry["difference"] for entry in found["comparison"] if entry["direction"]} == {0}
    assert any("wider than head dim" in note for note in found["notes"]) == (head_dim in (40, 88))


def test_rows_without_a_key_leave_the_backward_s_sums_alone(bench: Bench) -> None:
    found = row(bench, "fa2-bwd", Workload.of(333, seq_kv=200, heads=1, head_dim=64, causal=True, direction=Pass.BWD))
    by_name = entries(found)
    for direction in ("read", "write"):
        assert by_name["gradients", f"dQ accumulator {direction}, B"]["difference"] == 0
    assert by_name["gradients", "Q read, B"]["difference"] < 0
    assert any("never touched, as where the mask leaves a row without a key" in note for note in found["notes"])


def test_launches_of_one_stage_are_compared_together() -> None:
    def launch(read: int) -> dict[str, Any]:
        tensor = {"name": "q", "unique_read_bytes": read, "read_bytes": 2 * read}
        return {
            "stage": "attention",
            "matrix_flops": 10,
            "exponentials": 3,
            "tensors": [{**tensor, "unique_write_bytes": 0, "write_bytes": 0}],
        }

    flops, exponentials, read = compare([launch(64), launch(32)], None)
    assert (flops["quantity"], flops["counted"], flops["predicted"], flops["difference"]) == (FLOPS, 20, None, None)
    assert (exponentials["quantity"], exponentials["counted"]) == (EXPONENTIALS, 6)
    assert (read["quantity"], read["counted"], read["asked_bytes"]) == ("q read, B", 96, 192)
