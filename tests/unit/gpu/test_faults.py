from __future__ import annotations

import pytest

from attnprof.gpu.faults import fault
from attnprof.model.errors import ContextLost, KernelFault, LaunchLimitError


@pytest.mark.parametrize(
    ("status", "words"),
    [(700, "illegal memory access"), (716, "misaligned address"), (719, "launch failure"), (715, "trap")],
)
def test_what_ruins_the_context(status: int, words: str) -> None:
    error = fault("fa2", status, "anything")
    assert type(error) is ContextLost
    assert error.message.startswith("fa2: ")
    assert words in error.message
    assert str(status) in error.message


def test_what_does_not() -> None:
    error = fault("fa2", 1, "cudaErrorInvalidValue:\n invalid argument")
    assert type(error) is KernelFault
    assert error.message == "fa2: cudaErrorInvalidValue: invalid argument"
    assert type(fault("fa2", 701, "")) is LaunchLimitError
