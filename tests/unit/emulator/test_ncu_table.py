"""The table of `tests.gpu.ncu_table` from what ncu prints, without ncu."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import ncu_table
from tests.unit.emulator.emulator_harness import A100
from tests.unit.emulator.test_micro_kernels import SECTORS, WAVEFRONTS

SASS = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld"
OUTPUT = f"""==PROF== Connected to process 17 (/usr/bin/python3.12)
==PROF== Disconnected from process 17
"ID","Process ID","Kernel Name","Block Size","Grid Size","{SASS}.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
"","","","","","sector","sector"
"0","17","global_coalesced","(32, 1, 1)","(3, 1, 1)","12","0"
"1","17","fa2_forward(const __half *, int)","(128, 1, 1)","(2, 2, 1)","10,240","2,048"
"""


def test_parsing() -> None:
    found = ncu_table.parse(OUTPUT)
    assert found["global_coalesced"] == {SASS: 12, "l1tex__t_sectors_pipe_lsu_mem_global_op_st": 0}
    assert found["fa2_forward"][SASS] == 10_240
    assert ncu_table.LOADS.of_ncu(found["fa2_forward"]) == 10_240
    assert ncu_table.STORES.of_ncu(found["fa2_forward"]) == 2048
    assert ncu_table.WAVEFRONTS.of_ncu(found["fa2_forward"]) is None
    with pytest.raises(ncu_table.NcuUnavailableError, match="no kernels were profiled"):
        ncu_table.parse("==WARNING== no kernels were profiled")


def test_only_known_metrics_are_asked_for() -> None:
    query = f"Device NVIDIA H200 (GH100)\n\n{SASS}    Counter   # of sectors\nsm__cycles_elapsed  Counter\n"
    assert ncu_table.wanted_metrics(query) == [SASS]
    # Conflicts of plain loads are unknown by instruction here: the sum of the hardware's counter stands in.
    by_instruction = "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm"
    hardware = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
    assert ncu_table.wanted_metrics(f"{by_instruction} Counter\n{hardware} Counter\n") == [hardware]
    assert ncu_table.CONFLICTS.of_ncu({by_instruction: 5, hardware: 7}) == 7


def test_a_difference_is_seen() -> None:
    exact = ncu_table.Comparison("shared_plain", "shared wavefronts", 3, 3, 0)
    assert exact.agrees
    assert not ncu_table.Comparison("shared_plain", "shared wavefronts", 3, 4, 0).agrees
    assert not ncu_table.Comparison("shared_plain", "shared wavefronts", 3, None, 0.02).agrees
    assert ncu_table.Comparison("fa2_forward", "sectors loaded", 10_200, 10_240, 0.02).agrees
    assert not ncu_table.Comparison("fa2_forward", "sectors loaded", 10_000, 10_240, 0.02).agrees
    assert "| shared_plain | shared wavefronts | 3 | 3 | exactly |" in ncu_table.markdown([exact])


def test_conflicts_without_a_wavefront_are_not_the_kernels_own(tmp_path: Path) -> None:
    without, plain = "global_coalesced", "shared_plain"
    kernels = {name: trace for name, trace in ncu_table.emulate(A100, tmp_path).items() if name in (without, plain)}
    wavefronts, conflicts = ncu_table.WAVEFRONTS.sums[-1][0], ncu_table.CONFLICTS.sums[-1][0]

    def compared(name: str, **of_ncu: int) -> ncu_table.Comparison:
        metrics = {{"wavefronts": wavefronts, "conflicts": conflicts}[key]: value for key, value in of_ncu.items()}
        rows = ncu_table.compare({name: kernels[name]}, {name: metrics})
        return next(row for row in rows if row.quantity == "bank conflicts")

    foreign = compared(without, wavefronts=0, conflicts=11)
    assert foreign.agrees
    assert (
        f"| {without} | bank conflicts | 0 | 11 | not from this kernel's accesses: 0 wavefronts |"
        in ncu_table.markdown([foreign])
    )
    # With wavefronts on either side, or unknown ones, conflicts are compared as ever.
    assert not compared(without, wavefronts=1, conflicts=11).agrees
    assert not compared(without, conflicts=11).agrees
    assert not compared(plain, wavefronts=0, conflicts=11).agrees
    assert not compared(plain, wavefronts=3, conflicts=11).agrees
    assert not ncu_table.Comparison(without, "bank conflicts", 0, None, 0, foreign=True).agrees


def test_the_emulated_side(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert set(ncu_table.micro_entries()) == set(SECTORS) | set(WAVEFRONTS)
    kernels = ncu_table.emulate(A100, tmp_path_factory.mktemp("cache"))
    assert kernels.keys() == {
        *ncu_table.micro_entries(),
        "naive_scores",
        "naive_softmax",
        "naive_output",
        "fa2_forward",
    }
    measured = {name: {} for name in kernels}
    rows = {(row.kernel, row.quantity): row.emulated for row in ncu_table.compare(kernels, measured)}
    assert rows["global_stride_2", "sectors loaded"] == 3 * SECTORS["global_stride_2"]
    assert rows["global_store_v4", "sectors stored"] == 3 * SECTORS["global_store_v4"]
    assert rows["ldmatrix_two_way", "bank conflicts"] == 3 * WAVEFRONTS["ldmatrix_two_way"][1]
    # O leaves once: 2 heads x 256 x 64 elements of 2 bytes.
    assert rows["fa2_forward", "sectors stored"] == 2 * 256 * 64 * 2 // 32
