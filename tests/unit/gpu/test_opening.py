from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from attnprof.gpu import opening
from attnprof.gpu.discovery import Discovery, discover
from attnprof.gpu.opening import Target, choose_target, device_spec, open_executor
from attnprof.model.errors import EnvironmentProblem
from tests.unit.gpu.fake_nvml import FakeNvml, h200


class CudaError(RuntimeError):
    status = 35


def runtime(count: int | Exception) -> SimpleNamespace:
    def get_count() -> int:
        if isinstance(count, Exception):
            raise count
        return count

    return SimpleNamespace(getDeviceCount=get_count, CUDARuntimeError=CudaError)


@pytest.mark.parametrize(
    ("capability", "supported", "target"),
    [
        ((8, 0), (75, 80, 90), Target("sm_80", native=True)),
        ((9, 0), (75, 80, 90), Target("sm_90a", native=True)),
        ((12, 0), (75, 80, 90), Target("sm_90", native=False)),
        ((12, 1), (80, 90, 100, 120), Target("sm_120", native=False)),
    ],
)
def test_what_to_compile_for(capability, supported, target: Target) -> None:
    assert choose_target(capability, supported) == target


def test_a_gpu_older_than_nvrtc_supports() -> None:
    with pytest.raises(EnvironmentProblem, match=r"sm_70.*needs the NVRTC of CUDA 12"):
        choose_target((7, 0), (75, 80))


def test_no_cupy_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    monkeypatch.setattr(opening, "discover", lambda: discover(FakeNvml(h200()), {}))
    with pytest.raises(EnvironmentProblem, match="CuPy is missing") as caught:
        open_executor()
    assert "pip install 'attnprof[cuda13]'" in (caught.value.hint or "")
    assert "attnprof roofline --gpu NAME" in (caught.value.hint or "")


def test_no_cupy_and_no_gpu_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    monkeypatch.setattr(opening, "discover", lambda: Discovery(reason="there is no NVIDIA driver"))
    with pytest.raises(EnvironmentProblem, match=r"^no GPU: there is no NVIDIA driver$") as caught:
        open_executor()
    assert "attnprof roofline --gpu NAME" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("count", "index", "message"),
    [
        (CudaError("cudaErrorInsufficientDriver:\n too old"), None, "^no GPU: cudaErrorInsufficientDriver: too old$"),
        (0, None, "^no GPU: CUDA finds none$"),
        (2, 2, "^there is no GPU 2: CUDA sees 2, numbered from 0$"),
        (2, -1, "there is no GPU -1"),
    ],
)
def test_cuda_without_the_device(monkeypatch: pytest.MonkeyPatch, count, index, message: str) -> None:
    monkeypatch.setattr(opening, "_runtime", lambda found: runtime(count))
    monkeypatch.setattr(opening, "discover", Discovery)
    with pytest.raises(EnvironmentProblem, match=message):
        open_executor(index)


def test_cudas_figures_win_and_nvml_gives_the_clocks() -> None:
    attributes = {16: 132, 37: 6144, 38: 62_914_560, 81: 233_472, 97: 232_448}
    cuda = SimpleNamespace(
        deviceGetAttribute=lambda attribute, number: attributes[attribute],
        getDeviceProperties=lambda number: {"name": b"NVIDIA H200"},
    )
    (gpu,) = discover(FakeNvml(h200()), {}).gpus
    spec = device_spec(cuda, 0, (9, 0), gpu)
    assert (spec.l2_bytes, spec.smem_per_block_bytes, spec.memory_bus_bits) == (62_914_560, 232_448, 6144)
    assert (spec.memory_clock_hz, spec.max_clock_hz) == (3_201_000_000, 1_980_000_000)
    alone = device_spec(cuda, 0, (9, 0), None)
    assert alone.memory_clock_hz is None
    assert alone.sm_count == 132
