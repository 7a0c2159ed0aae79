"""What the emulator counts is what the hardware counts: exactly for micro-kernels, closely for attention kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import ncu_table
from tests.gpu.ncu_table import Comparison

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Comparison]:
    cache: Path = tmp_path_factory.mktemp("ptx")
    try:
        measured = ncu_table.profile(ncu_table.find_ncu())
        device = ncu_table.local_device()
    except ncu_table.NcuUnavailableError as problem:
        pytest.skip(str(problem))
    found = ncu_table.compare(ncu_table.emulate(device, cache), measured)
    ncu_table.report(found, measured)
    return found


def test_micro_kernels_agree_exactly(rows: list[Comparison]) -> None:
    micro = [row for row in rows if row.kernel in ncu_table.micro_entries()]
    assert {row.kernel for row in micro} == set(ncu_table.micro_entries())
    assert [row for row in micro if not row.agrees] == []


def test_attention_kernels_agree_within_2_percent(rows: list[Comparison]) -> None:
    attention = [row for row in rows if row.kernel not in ncu_table.micro_entries()]
    assert {row.kernel for row in attention} == {"naive_scores", "naive_softmax", "naive_output", "fa2_forward"}
    assert [row for row in attention if not row.agrees] == []
