from __future__ import annotations

import json
import subprocess
import sys

import pytest

from attnprof.gpu import nvml as nvml_module
from attnprof.gpu.discovery import Discovery, discover
from attnprof.gpu.nvml import Sensors, open_nvml
from attnprof.gpu.opening import match_bus_id
from tests.unit.gpu.fake_nvml import LOST, NOT_SUPPORTED, VERSION_MISMATCH, FakeNvml, h200


def found(*gpus, visible: str | None = None, **fake) -> Discovery:
    return discover(FakeNvml(*gpus, **fake), {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


def test_what_nvml_reports_becomes_a_spec() -> None:
    result = found(h200())
    assert result.reason is None
    assert result.driver_version == "580.65.06"
    (gpu,) = result.gpus
    assert gpu.unknown == {}
    assert gpu.spec is not None
    assert (gpu.spec.name, gpu.spec.source) == ("NVIDIA H200", "nvml")
    assert (gpu.spec.compute_capability, gpu.spec.sm_count) == ((9, 0), 132)
    assert gpu.spec.max_clock_hz == 1_980_000_000
    # 2 × 3201 MHz × 6016 bit / 8
    assert gpu.spec.hbm_bytes_per_s_at_max_clock() == pytest.approx(4.814304e12, rel=1e-9)
    assert gpu.spec.hbm_bytes == 150_754_820_096


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA L4", "NVIDIA L4"),
        (b"\xff\xfe\xff", "unknown GPU"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "unknown GPU"),
        (NOT_SUPPORTED, "unknown GPU"),
    ],
)
def test_a_name_in_bytes_or_not_decodable(name, shown: str) -> None:
    result = found(h200(name=name, capability=(8, 9), cores=58 * 128, memory_mhz=6251, bus_bits=192))
    (gpu,) = result.gpus
    assert gpu.name == shown
    assert gpu.spec is not None
    assert gpu.spec.sm_count == 58
    assert gpu.spec.hbm_bytes_per_s_at_max_clock() == 2 * 6251e6 * 192 / 8
    assert ("name" in gpu.unknown) == (shown == "unknown GPU")
    json.loads(json.dumps(gpu.spec.as_json(), allow_nan=False))


def test_a_version_mismatch_is_one_line_with_a_remedy() -> None:
    result = found(start=VERSION_MISMATCH)
    assert result.gpus == ()
    assert result.reason == "NVML does not start: Driver/library version mismatch"
    assert result.hint is not None
    assert "reboot" in result.hint


def test_no_driver_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvml_module.ctypes, "CDLL", refuse)
    monkeypatch.setattr(nvml_module.sys, "platform", "linux")
    assert discover().reason == "there is no NVIDIA driver (libnvidia-ml.so.1 not found)"


def test_no_pynvml_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module.ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    result = discover()
    assert result.reason == "the module pynvml is missing"
    assert result.hint == "pip install nvidia-ml-py"


@pytest.mark.parametrize(
    ("field", "attribute"),
    [("memory_mhz", "memory_clock_hz"), ("bus_bits", "memory_bus_bits")],
)
def test_one_unsupported_field_is_unknown_and_the_rest_stands(field: str, attribute: str) -> None:
    (gpu,) = found(h200(**{field: NOT_SUPPORTED})).gpus
    assert gpu.spec is not None
    assert getattr(gpu.spec, attribute) is None
    assert gpu.unknown == {attribute: "Not Supported"}
    assert gpu.spec.hbm_bytes_per_s_at_max_clock() is None
    assert gpu.spec.sm_count == 132


def test_an_unknown_core_count_comes_from_the_table_or_leaves_a_reason() -> None:
    (known,) = found(h200(cores=NOT_SUPPORTED)).gpus
    assert known.spec is not None
    assert known.spec.sm_count == 132
    result = found(h200(cores=NOT_SUPPORTED, name="Mystery 9000"))
    (unknown,) = result.gpus
    assert unknown.spec is None
    assert result.reason is not None
    assert "how many SMs" in result.reason


def test_an_unknown_compute_capability_leaves_a_reason() -> None:
    result = found(h200(capability=NOT_SUPPORTED))
    assert result.gpus[0].spec is None
    assert result.reason == "GPU 0 (NVIDIA H200): its compute capability is unknown (Not Supported)"


def test_gpu_1_of_3_is_lost() -> None:
    result = found(h200(0), LOST, h200(2))
    assert [gpu.nvml_index for gpu in result.gpus] == [0, 2]
    assert result.reason == "GPU 1: GPU is lost"


def test_a_gpu_that_is_lost_only_when_asked() -> None:
    lost = dict.fromkeys(h200(), LOST)
    result = found(h200(0), lost)
    assert [gpu.nvml_index for gpu in result.gpus] == [0]
    assert result.reason == "GPU 1 (unknown GPU): GPU is lost"


def test_no_gpu_at_all() -> None:
    assert found().reason == "the driver finds no GPU"


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        ("1,0", [1, 0]),
        ("2", [2]),
        (" 1 , 2", [1, 2]),
        ("GPU-2", [2]),
        ("GPU-1aaa-bbbb,0", [1, 0]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
        ("nonsense", []),
        ("MIG-none", []),
    ],
)
def test_cuda_visible_devices(setting: str, indices: list[int]) -> None:
    result = found(h200(0), h200(1), h200(2), visible=setting)
    assert [gpu.nvml_index for gpu in result.gpus] == indices
    assert result.reason is not None
    assert "CUDA_VISIBLE_DEVICES" in result.reason


def test_a_mig_instance_has_its_own_sms_and_no_bandwidth() -> None:
    instance = {"name": "NVIDIA H200 MIG 1g.18gb", "mig_sms": 16, "memory_bytes": 17_000_000_000}
    result = found(h200(0), h200(1, mig={"MIG-1234": instance}), visible="MIG-1234")
    (gpu,) = result.gpus
    assert (gpu.nvml_index, gpu.uuid) == (1, "MIG-1234")
    assert gpu.spec is not None
    assert gpu.spec.sm_count == 16
    assert gpu.spec.hbm_bytes == 17_000_000_000
    assert gpu.spec.hbm_bytes_per_s_at_max_clock() is None
    assert result.reason is None


def test_joined_to_cuda_by_bus_id_whatever_the_order() -> None:
    result = found(h200(0), h200(1, bus_id=b"00000000:C1:00.0"))
    matched = match_bus_id(result, "0000:c1:00.0")
    assert matched is not None
    assert matched.nvml_index == 1
    assert match_bus_id(result, "0001:C1:00.0") is None


def test_sensors_read_what_there_is_and_ask_no_more_for_what_there_is_not() -> None:
    api = FakeNvml(h200(power_mw=NOT_SUPPORTED, reasons=0x4 | 0x20 | 0x1))
    sensors = Sensors(open_nvml(api), api.gpus[0])
    for _ in range(2):
        assert sensors.sm_clock_hz() == 1_755_000_000
        assert sensors.power_w() is None
        assert sensors.temperature_c() == 61.0
        assert sensors.throttle_reasons() == ("power cap", "thermal slowdown (software)")
    assert api.calls.count("power_mw") == 1


def test_idle_and_chosen_clocks_are_no_throttling() -> None:
    api = FakeNvml(h200(reasons=0x1 | 0x2))
    assert Sensors(open_nvml(api), api.gpus[0]).throttle_reasons() == ()


def test_importing_discovery_loads_no_cuda_library() -> None:
    program = (
        "import sys, attnprof.gpu.discovery as d; d.discover()\n"
        "print([m for m in ('cupy', 'torch', 'numpy', 'cuda.bindings') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
