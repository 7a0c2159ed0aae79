"""Versions of what a run's figures depend on."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attnprof.compiler import nvrtc
from attnprof.gpu.versions import cuda_version, cudnn_version, software
from tests.unit.gpu.fake_nvml import NOT_SUPPORTED, FakeNvml, h200


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    return made


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = module("cupy.cuda.runtime", driverGetVersion=lambda: 13020, runtimeGetVersion=lambda: 12090)
    monkeypatch.setitem(sys.modules, "cupy", module("cupy", __version__="14.2.0"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", module("cupy.cuda", runtime=runtime))


def torch(cudnn: int | None) -> Any:
    return SimpleNamespace(
        __version__="2.11.0+cu130", backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: cudnn))
    )


@pytest.mark.usefixtures("cupy")
def test_every_version_is_found() -> None:
    assert software(FakeNvml(h200()), {"torch": torch(91900)}) == {
        "driver": "580.65.06",
        "cuda_driver": "13.2",
        "cuda_runtime": "12.9",
        "nvrtc": ".".join(map(str, nvrtc.version())),
        "cupy": "14.2.0",
        "torch": "2.11.0+cu130",
        "cudnn": "9.19.0",
    }


@pytest.mark.usefixtures("cupy")
def test_what_took_no_part_or_is_unknown_is_none() -> None:
    found = software(FakeNvml(start=NOT_SUPPORTED), {})
    assert {name for name, version in found.items() if version is None} == {"driver", "torch", "cudnn"}
    without_cudnn = software(FakeNvml(h200()), {"torch": torch(None)})
    assert (without_cudnn["torch"], without_cudnn["cudnn"]) == ("2.11.0+cu130", None)


@pytest.mark.usefixtures("cupy")
def test_a_library_that_raises_costs_its_version_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("cudaErrorIllegalAddress, or: cuDNN version incompatibility")

    monkeypatch.setattr(sys.modules["cupy.cuda"].runtime, "runtimeGetVersion", broken)
    of_torch = torch(91900)
    of_torch.backends.cudnn.version = broken
    found = software(FakeNvml(h200()), {"torch": of_torch})
    assert {name for name, version in found.items() if version is None} == {"cuda_runtime", "cudnn"}


def test_numbers_of_cuda_and_cudnn() -> None:
    assert [cuda_version(number) for number in (12080, 13000, 13010)] == ["12.8", "13.0", "13.1"]
    assert [cudnn_version(number) for number in (8902, 90100, 91902)] == ["8.9.2", "9.1.0", "9.19.2"]
