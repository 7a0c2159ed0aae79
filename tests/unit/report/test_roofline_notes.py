"""What a prediction says about the L2 cache."""

from __future__ import annotations

from attnprof.model.devices import find
from attnprof.model.roofline import roofline, row
from attnprof.model.traffic import three_kernel_demand
from attnprof.model.workload import Workload
from attnprof.report.roofline import notes


def l2_note(heads: int, gpu: str) -> str:
    workload = Workload.of(1024, heads=heads, head_dim=128)
    demand, device = three_kernel_demand(workload), find(gpu)
    fields = row("naive", workload, demand, roofline(workload, demand, device))
    (note,) = notes([{**fields, "unsupported": None}], device)
    return note


def test_tensors_that_fit_need_a_warm_cache_to_beat_the_roof() -> None:
    assert l2_note(4, "A100").startswith("The tensors fit the L2 cache of 40 MiB, so a run with a warm cache can beat")


def test_intermediates_that_fit_beat_it_from_a_cold_one() -> None:
    # S and P of 20 heads are 40 MiB: written and read back within one run.
    assert l2_note(20, "A100").startswith(
        "The intermediates fit the L2 cache of 40 MiB, so a run even from a cold cache can beat"
    )
