from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from attnprof.gpu.peers import PEERS, peer
from attnprof.model.errors import EnvironmentProblem, UnsupportedWorkload, UsageError
from attnprof.model.workload import Pass, Workload

WORKLOAD = Workload.of(1024, heads=8, kv_heads=2, head_dim=64)
EXECUTOR = SimpleNamespace(queue=None, sensors=None, stream=None, guard=lambda what: nullcontext())


def test_flops_and_bytes() -> None:
    assert set(PEERS) >= {"copy", "matmul", "torch-flash", "torch-cudnn"}
    copy = peer("copy", WORKLOAD, EXECUTOR)
    assert (copy.flops, copy.bytes) == (None, 2 * 2**30)
    matmul = peer("matmul", WORKLOAD, EXECUTOR)
    assert (matmul.flops, matmul.bytes) == (1_099_511_627_776, 402_653_184)
    flash = peer("torch-flash", WORKLOAD, EXECUTOR)
    # 4 · 8 heads · 1024² · 64; Q and O of 8 heads, K and V of 2, 2 bytes an element.
    assert (flash.flops, flash.bytes) == (2_147_483_648, 2 * 1024 * 64 * (2 * 8 + 2 * 2))
    backward = peer("torch-cudnn", Workload.of(1024, heads=8, head_dim=64, direction=Pass.BWD), EXECUTOR)
    assert backward.flops == 2_147_483_648 * 5 // 2


def test_an_unknown_peer_names_the_known() -> None:
    with pytest.raises(UsageError, match="unknown peer 'flash'") as caught:
        peer("flash", WORKLOAD, EXECUTOR)
    assert "torch-flash" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["matmul", "torch-flash"])
def test_no_pytorch_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EnvironmentProblem, match="PyTorch is missing") as caught, peer(name, WORKLOAD, EXECUTOR):
        pass
    assert caught.value.hint == "pip install torch"


def test_a_cpu_only_pytorch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(__version__="2.11+cpu", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with (
        pytest.raises(EnvironmentProblem, match=r"PyTorch 2\.11\+cpu has no CUDA here"),
        peer("matmul", WORKLOAD, EXECUTOR),
    ):
        pass


def test_a_causal_mask_that_pytorch_aligns_otherwise_is_refused() -> None:
    workload = Workload.of(128, seq_kv=4096, causal=True)
    with pytest.raises(UnsupportedWorkload, match="top-left"), peer("torch-flash", workload, EXECUTOR):
        pass


def test_timing_outside_the_with_block_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="outside its with block"):
        peer("copy", WORKLOAD, EXECUTOR).enqueue()
