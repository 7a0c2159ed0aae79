from __future__ import annotations

from pathlib import Path

import pytest

from attnprof.compiler import headers
from attnprof.compiler.headers import find_headers, install_hint, is_cuda_header
from attnprof.model.errors import EnvironmentProblem


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_pathfinder", lambda piece: None)


@pytest.fixture
def no_system_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_SYSTEM_ROOTS", ())


def toolkit(root: Path, *, cccl: bool = True) -> Path:
    (root / "include" / "cccl").mkdir(parents=True) if cccl else (root / "include").mkdir(parents=True)
    (root / "include" / "cuda_fp16.h").write_text("")
    return root


@pytest.mark.usefixtures("no_wheels", "no_system_toolkit")
@pytest.mark.parametrize("variable", ["CUDA_PATH", "CUDA_HOME"])
def test_the_environment_names_a_toolkit(tmp_path: Path, variable: str) -> None:
    root = toolkit(tmp_path / "a b")
    assert find_headers(13, {variable: str(root)}).folders == (root / "include", root / "include" / "cccl")


@pytest.mark.usefixtures("no_wheels", "no_system_toolkit")
def test_a_wrong_cuda_path_is_named_with_the_command_to_type(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cuda_fp16\.h is missing.*CUDA_PATH=/nowhere holds no") as caught:
        find_headers(13, {"CUDA_PATH": "/nowhere"})
    assert "pip install 'attnprof[cuda13]'" in (caught.value.hint or "")
    with pytest.raises(EnvironmentProblem) as caught:
        find_headers(12, {})
    assert "attnprof[cuda12]" in (caught.value.hint or "")
    assert "\n" not in caught.value.message


@pytest.mark.usefixtures("no_wheels", "no_system_toolkit")
def test_a_wrong_cuda_path_does_not_hide_a_right_cuda_home(tmp_path: Path) -> None:
    root = toolkit(tmp_path / "cuda", cccl=False)
    found = find_headers(13, {"CUDA_PATH": "/nowhere", "CUDA_HOME": str(root)})
    assert found.folders == (root / "include",)


@pytest.mark.usefixtures("no_system_toolkit")
def test_a_toolkit_serves_for_what_the_wheels_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = toolkit(tmp_path / "wheel", cccl=False) / "include"
    monkeypatch.setattr(headers, "_pathfinder", lambda piece: wheel if piece == "cudart" else None)
    root = toolkit(tmp_path / "cuda")
    found = find_headers(13, {"CUDA_PATH": str(root)})
    assert found.folders == (wheel, root / "include", root / "include" / "cccl")


def test_the_signature_changes_with_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_pathfinder", lambda piece: None)
    root = toolkit(tmp_path)
    before = find_headers(13, {"CUDA_PATH": str(root)}).signature
    (root / "include" / "cuda_fp16.h").write_text("// newer")
    assert find_headers(13, {"CUDA_PATH": str(root)}).signature != before


@pytest.mark.parametrize(
    ("header", "major", "wheel"),
    [
        ("nv/target", 13, "'nvidia-cuda-cccl==13.*'"),
        ("nv/target", 12, "nvidia-cuda-cccl-cu12"),
        ("crt/host_defines.h", 13, "'nvidia-cuda-crt==13.*'"),
        ("cuda_bf16.h", 12, "nvidia-cuda-runtime-cu12"),
    ],
)
def test_each_piece_names_its_wheel(header: str, major: int, wheel: str) -> None:
    assert is_cuda_header(header)
    assert install_hint(header, major).endswith(f"pip install {wheel}")


def test_the_users_headers_are_not_cudas() -> None:
    assert not is_cuda_header("cuda_helpers.cuh")
    assert not is_cuda_header("common/ptx.cuh")
