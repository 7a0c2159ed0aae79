"""The model's bank conflicts against what the emulator counts on a micro-kernel a pattern."""

from __future__ import annotations

import pytest

from attnprof.emulator import EmulatorExecutor, Mode
from tests.gpu.bank_kernels import REPEAT, SAME_AS, Case, cases
from tests.unit.emulator.emulator_harness import A100, Bench

CASES = tuple(cases())


def test_every_pattern_has_a_micro_kernel_in_every_layout() -> None:
    from attnprof.model.patterns import PATTERNS

    for each in PATTERNS:
        name = SAME_AS.get(each.name, each.name)
        layouts = {case.layout for case in CASES if case.pattern == name and case.row_elements == 64}
        assert {layout.value for layout in layouts} == {"plain", "pad", "swizzle"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.entry)
def test_the_emulator_counts_what_the_model_says(bench: Bench, case: Case) -> None:
    run = EmulatorExecutor(bench.cuda, A100, mode=Mode.COUNTS).prepare(case.plan)
    run.launch()
    assert run.trace is not None
    counters = run.trace.counters
    assert counters.shared_requests == REPEAT
    assert counters.shared_wavefronts == REPEAT * case.expected.wavefronts
    assert counters.shared_ideal_wavefronts == REPEAT * case.expected.ideal
