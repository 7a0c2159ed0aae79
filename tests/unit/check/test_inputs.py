from __future__ import annotations

import numpy as np
import pytest

from attnprof.kernels import inputs as module
from attnprof.kernels.inputs import CHUNK, Distribution, make_inputs
from attnprof.model.dtypes import Dtype
from attnprof.model.rounding import decode
from attnprof.model.workload import Workload


def fresh(workload: Workload, **options: object) -> dict[str, np.ndarray]:
    module._inputs.cache_clear()
    return {
        name: decode(values, workload.dtype).astype(np.float64)
        for name, values in make_inputs(workload, **options).items()  # type: ignore[arg-type]
    }


def test_values_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload.of(CHUNK // 64 + 100, heads=2, head_dim=64)  # a bit over two chunks
    several = fresh(workload)
    monkeypatch.setattr(module, "available_cores", lambda: 1)
    one = fresh(workload)
    for name in ("q", "k", "v"):
        assert np.array_equal(several[name], one[name])


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
def test_normal_values_are_normal_and_tensors_differ(dtype: Dtype) -> None:
    tensors = fresh(Workload.of(512, heads=4, head_dim=64, dtype=dtype))
    for values in tensors.values():
        assert abs(values.mean()) < 0.02
        assert abs(values.std() - 1) < 0.02
    assert abs(np.corrcoef(tensors["q"].ravel(), tensors["k"].ravel())[0, 1]) < 0.02
    assert not np.array_equal(tensors["q"], tensors["v"])


def test_another_seed_gives_other_values_and_the_same_seed_the_same() -> None:
    workload = Workload.of(64, heads=1, head_dim=64)
    assert not np.array_equal(fresh(workload, seed=1)["q"], fresh(workload, seed=2)["q"])
    assert np.array_equal(fresh(workload, seed=1)["q"], fresh(workload, seed=1)["q"])


def test_shapes_and_storage_are_those_of_the_workload_and_read_only() -> None:
    workload = Workload.of(20, seq_kv=30, batch=2, heads=6, kv_heads=2, head_dim=64, dtype=Dtype.BF16)
    tensors = make_inputs(workload)
    assert {name: values.shape for name, values in tensors.items()} == {
        "q": (2, 6, 20, 64),
        "k": (2, 2, 30, 64),
        "v": (2, 2, 30, 64),
    }
    assert all(values.dtype == np.uint16 for values in tensors.values())
    with pytest.raises(ValueError, match="read-only"):
        tensors["q"][0, 0, 0, 0] = 1


def scores(workload: Workload, tensors: dict[str, np.ndarray]) -> np.ndarray:
    return workload.scale * tensors["q"] @ tensors["k"].swapaxes(-1, -2)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_large_logits_overflow_and_underflow_exp_in_every_row(head_dim: int) -> None:
    workload = Workload.of(65, heads=2, head_dim=head_dim)
    s = scores(workload, fresh(workload, distribution=Distribution.LARGE_LOGITS))
    assert (s[..., ::2, :] > np.log(np.finfo(np.float32).max)).all()
    assert (s[..., 1::2, :] < np.log(np.finfo(np.float32).smallest_subnormal)).all()
    assert (s.std(axis=-1) < 2).all()  # and yet no key takes the whole row


def test_a_dominant_key_takes_most_of_most_rows() -> None:
    workload = Workload.of(200, heads=2, head_dim=64)
    s = scores(workload, fresh(workload, distribution=Distribution.DOMINANT_KEY))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    assert np.median((p / p.sum(axis=-1, keepdims=True)).max(axis=-1)) > 0.9


def test_tiny_values_are_subnormal_in_fp16_and_the_last_column_is_the_smallest() -> None:
    workload = Workload.of(64, heads=1, head_dim=64)
    v = fresh(workload, distribution=Distribution.TINY)["v"]
    assert (v > 0).all()
    assert np.median(v) < np.finfo(np.float16).tiny
    assert (v[..., -1] == 2.0**-24).all()


def test_a_long_tensor_repeats_itself_and_one_with_a_ragged_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 64)
    monkeypatch.setattr(module, "PERIOD", 3)
    q = make_inputs(Workload.of(8, heads=1, head_dim=40))["q"].reshape(-1)  # five chunks
    module.forget_inputs()
    assert np.array_equal(q[192:], q[:128])
    assert len(np.unique(q[:192].view(np.uint16))) > 100


def test_what_repeats_is_not_found_by_an_offset_that_lost_bits() -> None:
    assert all(2**bits % module.PERIOD for bits in range(64))
