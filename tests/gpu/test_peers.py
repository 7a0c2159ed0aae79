"""The library calls that are timed beside a kernel."""

from __future__ import annotations

from statistics import median

import pytest

from attnprof.gpu.executor import GpuExecutor
from attnprof.gpu.memory import free_bytes
from attnprof.gpu.peers import ATTENTION_PEERS
from attnprof.model.dtypes import Dtype
from attnprof.model.errors import UnsupportedWorkload
from attnprof.model.workload import Pass, Workload

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
def test_matmul_is_within_the_datasheet(executor: GpuExecutor, dtype: Dtype) -> None:
    limit = executor.device.tensor_flops_per_s.get(dtype) or executor.device.tensor_flops_per_s_at_max_clock(dtype)
    assert limit is not None
    with executor.peer("matmul", Workload.of(128, dtype=dtype)) as matmul:
        time_s = median(matmul.time(3, cold_l2=False).time_s for _ in range(9))
    assert matmul.flops is not None
    assert 0.3 * limit < matmul.flops / time_s <= limit


@pytest.mark.parametrize("name", ATTENTION_PEERS)
@pytest.mark.parametrize("direction", list(Pass))
@pytest.mark.parametrize("causal", [False, True])
def test_attention_runs_cold_and_warm(executor: GpuExecutor, name: str, direction: Pass, causal: bool) -> None:
    workload = Workload.of(2048, heads=16, head_dim=128, causal=causal, direction=direction)
    with executor.peer(name, workload) as peer:
        cold = median(peer.time(5, cold_l2=True).time_s for _ in range(5))
        warm = median(peer.time(5, cold_l2=False).time_s for _ in range(5))
    limit = executor.device.tensor_flops_per_s_at_max_clock(Dtype.FP16)
    assert limit is not None
    assert peer.flops == workload.flops
    for time_s in (cold, warm):
        assert 0.005 * limit < workload.flops / time_s <= limit
    # 30 µs or more of work: what the host spends on enqueueing a PyTorch call must not show.
    assert cold == pytest.approx(warm, rel=0.35)


def test_flash_takes_heads_inside_the_sequence_as_they_lie(executor: GpuExecutor) -> None:
    """No copy: one of Q, K and V alone would cost more than the 20 % allowed here."""
    workload = Workload.of(256, batch=64, heads=16, head_dim=128)
    with executor.peer("torch-flash", workload) as outside, executor.peer("torch-flash", workload, "bshd") as inside:
        times = [(outside.time(5, cold_l2=True).time_s, inside.time(5, cold_l2=True).time_s) for _ in range(7)]
    assert median(b for _, b in times) == pytest.approx(median(a for a, _ in times), rel=0.2)


def refusal(executor: GpuExecutor, name: str, workload: Workload) -> str | None:
    """None where the peer runs, else why not."""
    try:
        with executor.peer(name, workload) as peer:
            assert peer.time(2, cold_l2=True).time_s > 0
    except UnsupportedWorkload as error:
        return error.message
    return None


def test_grouped_queries_run_or_say_why_not(executor: GpuExecutor) -> None:
    refusals = {name: refusal(executor, name, Workload.of(1024, heads=8, kv_heads=2)) for name in ATTENTION_PEERS}
    assert refusals["torch-flash"] is None
    for name, reason in refusals.items():
        assert reason is None or (reason.startswith(f"{name} cannot run ") and "\n" not in reason)


def test_an_element_type_that_a_backend_lacks_is_a_reason(executor: GpuExecutor) -> None:
    with (
        pytest.raises(UnsupportedWorkload, match=r"^torch-flash cannot run "),
        executor.peer("torch-flash", Workload.of(256, dtype=Dtype.FP32)),
    ):
        pass


def test_what_does_not_fit_is_a_reason_and_leaves_the_memory_free(executor: GpuExecutor) -> None:
    before = free_bytes()
    reason = refusal(executor, "torch-math", Workload.of(65536, heads=64))
    assert reason is not None
    assert "out of memory" in reason
    assert free_bytes() > before - 512 * 2**20


def test_peers_interleave_on_one_stream_and_give_their_memory_back(executor: GpuExecutor) -> None:
    workload = Workload.of(1024, heads=8)
    with executor.peer("torch-flash", workload):
        pass
    before = free_bytes()
    with executor.peer("torch-flash", workload) as flash, executor.peer("copy", workload) as copy:
        for cold in (True, False, True):
            assert flash.time(2, cold_l2=cold).time_s < copy.time(2, cold_l2=cold).time_s
    assert free_bytes() == pytest.approx(before, abs=64 * 2**20)


def test_a_copy_is_as_fast_warm_as_cold(executor: GpuExecutor) -> None:
    """A gigabyte fits no cache: where the two differ, something other than HBM was measured."""
    with executor.peer("copy", Workload.of(64)) as copy:
        cold = median(copy.time(7, cold_l2=True).time_s for _ in range(5))
        warm = median(copy.time(7, cold_l2=False).time_s for _ in range(5))
    assert warm == pytest.approx(cold, rel=0.05)
