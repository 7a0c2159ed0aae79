from __future__ import annotations

import pytest

from attnprof.compiler.arch import exact_arch, needed_cuda, newest_supported, parse_arch


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 1), "sm_121a")],
)
def test_exact_arch(capability: tuple[int, int], arch: str) -> None:
    assert exact_arch(capability) == arch


def test_newest_supported_is_never_newer_than_the_device() -> None:
    assert newest_supported((10, 3), (75, 80, 90, 100, 120)) == "sm_100"
    assert newest_supported((15, 0), (75, 80, 90)) == "sm_90"
    assert newest_supported((7, 0), (75, 80)) is None


def test_names() -> None:
    assert parse_arch("sm_90a") == (90, "a")
    assert parse_arch("compute_120") == (120, "")
    for wrong in ("90", "sm90", "sm_9", "sm_90b"):
        with pytest.raises(ValueError, match="no architecture name"):
            parse_arch(wrong)


def test_the_version_that_is_needed() -> None:
    assert needed_cuda("sm_120a") == "CUDA 12.8 or later"
    assert needed_cuda("sm_70") == "CUDA 12"
    assert needed_cuda("sm_150") == "a later CUDA release"
