"""red.v2 and red.v4: four additions at once, aligned as one access."""

from __future__ import annotations

import numpy as np
import pytest

from attnprof.emulator.faults import EmulatedFault
from attnprof.model.errors import AttnprofError
from tests.unit.emulator.emulator_harness import Bench


def kernel(body: str) -> str:
    """PTX in which %at is the address of `sums`, %lane the thread and %x the thread as a float."""
    return (
        ".version 8.1\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 sums)\n{\n"
        ".reg .u64 %at; .reg .u32 %lane, %group; .reg .f32 %x;\n"
        "ld.param.u64 %at, [sums]; mov.u32 %lane, %tid.x; cvt.rn.f32.u32 %x, %lane;\n" + body + "\nret;\n}\n"
    )


def sums_of(bench: Bench, body: str, floats: int) -> np.ndarray:
    outcome = bench.run(kernel(body), "k", {"sums": np.ones(floats, "f4")}, block=(32, 1, 1), ptx=True)
    return outcome.run.read("sums").view("f4")


@pytest.mark.parametrize("count", [2, 4])
def test_each_element_is_added_for_itself_also_where_lanes_meet(bench: Bench, count: int) -> None:
    values = ", ".join(["%x", "0f3F800000", "%x", "0f40000000"][:count])
    body = (
        "and.b32 %group, %lane, 7;"
        f"mad.wide.u32 %at, %group, {4 * count}, %at; red.relaxed.gpu.global.add.v{count}.f32 [%at], {{{values}}};"
    )
    lanes = np.arange(32, dtype="f4").reshape(4, 8).sum(axis=0)
    expected = np.stack([1 + lanes, np.full(8, 5.0), 1 + lanes, np.full(8, 9.0)][:count], axis=1)
    assert np.array_equal(sums_of(bench, body, 8 * count).reshape(8, count), expected)


def test_a_vector_that_is_not_aligned_as_a_whole_is_a_fault(bench: Bench) -> None:
    body = "add.u64 %at, %at, 8; red.relaxed.gpu.global.add.v4.f32 [%at], {%x, %x, %x, %x};"
    with pytest.raises(EmulatedFault, match="align"):
        sums_of(bench, body, 64)


@pytest.mark.parametrize(
    "instruction",
    [
        "red.relaxed.gpu.global.max.v4.f32 [%at], {%x, %x, %x, %x};",
        "red.relaxed.gpu.global.add.v4.f32 [%at], {%x, %x};",
        "red.relaxed.gpu.add.v2.f32 [%at], {%x, %x};",
    ],
)
def test_what_does_not_exist_is_refused(bench: Bench, instruction: str) -> None:
    with pytest.raises(AttnprofError):
        sums_of(bench, instruction, 64)
