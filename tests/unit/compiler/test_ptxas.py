from __future__ import annotations

import pytest

from attnprof.compiler.ptxas import parse_resources

NVRTC_13_5 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_80'
ptxas info    : Function properties for spill
ptxas         .     2320 bytes stack frame, 3716 bytes spill stores, 4360 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 2320 bytes cumulative stack size, 368 bytes cmem[0]
ptxas info    : Compile time = 127.788 ms
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 132 bytes smem, 364 bytes cmem[0]
"""
# Older ones indent the properties line and omit barriers; static + parameter shared memory once printed as a sum.
OLDER = """\
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, 1024+16 bytes smem, 364 bytes cmem[0]
"""


def test_every_entry_is_read() -> None:
    resources = parse_resources(NVRTC_13_5)
    assert set(resources) == {"spill", "one"}
    spill, one = resources["spill"], resources["one"]
    assert (spill.registers, spill.spill_store_bytes, spill.spill_load_bytes) == (32, 3716, 4360)
    assert (spill.stack_bytes, spill.static_smem_bytes) == (2320, 0)
    assert (one.registers, one.spill_store_bytes, one.stack_bytes, one.static_smem_bytes) == (10, 0, 0, 132)


def test_older_layout() -> None:
    one = parse_resources(OLDER)["one"]
    assert (one.registers, one.static_smem_bytes, one.stack_bytes) == (255, 1040, 8)
    assert (one.spill_store_bytes, one.spill_load_bytes) == (4, 12)


def test_spills_of_a_called_function_count_for_the_entries() -> None:
    called = (
        "ptxas info    : Function properties for _Z1ffi\n"
        "ptxas         .     16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads\n"
    )
    resources = parse_resources(NVRTC_13_5 + called)
    assert set(resources) == {"spill", "one"}
    assert (resources["one"].spill_store_bytes, resources["one"].spill_load_bytes) == (20, 24)
    assert resources["spill"].spill_store_bytes == 3716 + 20


@pytest.mark.parametrize("log", ["", "ptxas info    : 0 bytes gmem\n", "\x00garbage Used 3 registers"])
def test_no_entry_gives_nothing(log: str) -> None:
    assert parse_resources(log) == {}
