"""Tensors of more than 2^31 elements on a real device. Each test takes tens of gigabytes: run this module by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnprof.check.large import check_large_tensors
from attnprof.check.rows import CheckStatus
from attnprof.gpu.executor import GpuExecutor
from attnprof.kernels.catalogue import builtin
from attnprof.kernels.spec import KernelSpec
from tests.mutants.mutants import OFFSET_MUTANTS, Mutant, materialise

# All in one worker of pytest-xdist, one after the other.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("large-tensors")]


@pytest.mark.parametrize("spec", builtin(), ids=lambda spec: spec.name)
def test_offsets_past_two_to_the_31_elements_are_right(spec: KernelSpec, executor: GpuExecutor) -> None:
    rows = list(check_large_tensors(spec, executor))
    assert {row.status for row in rows} == {CheckStatus.PASS}, [row.detail for row in rows]


@pytest.mark.parametrize("mutant", OFFSET_MUTANTS, ids=lambda mutant: mutant.id)
def test_offsets_that_lose_their_upper_bits_fail(mutant: Mutant, executor: GpuExecutor, tmp_path: Path) -> None:
    rows = list(check_large_tensors(materialise(mutant, tmp_path), executor))
    assert CheckStatus.FAIL in {row.status for row in rows}, [row.detail for row in rows]
