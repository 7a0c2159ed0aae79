"""``attnprof device`` and ``attnprof kernels``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnprof.gpu import discovery
from attnprof.model.devices import from_facts
from tests.cli.conftest import Cli

Snapshot = Callable[[str, str], None]


def test_a_gpu_of_the_table(cli: Cli, snapshot: Snapshot) -> None:
    result = cli("device", "--gpu", "H200,H20")
    assert result.code == 0
    snapshot("device.txt", result.out)
    snapshot("device.csv", cli("device", "--gpu", "H200,H20", "--csv").out)
    rows = cli("device", "--gpu", "H200", "--json").json["rows"]
    figures = {row["quantity"]: (row["datasheet"], row["clock"]) for row in rows}
    assert figures["HBM"] == (4.8e12, pytest.approx(4.814e12, rel=1e-3))
    assert figures["tensor fp16"] == (989e12, pytest.approx(1070e12, rel=1e-3))
    assert figures["knee fp16"][0] == pytest.approx(989 / 4.8)


def test_the_whole_table_with_its_sources(cli: Cli) -> None:
    document = cli("device", "--list", "--json").json
    assert len(document["devices"]) >= 20
    assert all(device["references"] for device in document["devices"])
    out = cli("device", "--list").out
    for device in document["devices"]:
        assert out.count(device["name"]) >= 2  # its row, and its sources


def test_no_gpu_here(cli: Cli) -> None:
    result = cli("device")
    assert result.code == 0
    assert result.out.startswith("GPU       none here: there is no NVIDIA driver (a test says so)\n")
    assert "attnprof device --list" in result.out
    document = cli("device", "--json").json
    assert document["device"] is None
    assert document["reason"] == "there is no NVIDIA driver (a test says so)"


def test_healthy_gpus_are_listed_beside_a_lost_one_and_an_unknown_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    known = from_facts(
        "NVIDIA L4", (8, 9), sm_count=58, memory_clock_hz=6_251_000_000, memory_bus_bits=192,
        max_clock_hz=2_040_000_000, hbm_bytes=24 * 2**30,
    )  # fmt: skip
    nameless = from_facts("unknown GPU", (9, 9), sm_count=10, max_clock_hz=1_000_000_000)
    found = discovery.Discovery(
        (
            discovery.Gpu(0, "NVIDIA L4", known, "GPU-1234", "00000000:65:00.0"),
            discovery.Gpu(2, "unknown GPU", nameless, unknown={"name": "NVML's answer is not UTF-8"}),
        ),
        "GPU 1: GPU is lost",
        driver_version="580.65.06",
    )
    monkeypatch.setattr(discovery, "discover", lambda: found)
    result = cli("device")
    assert result.code == 0
    snapshot("device-local.txt", result.out)
    for needle in ("NVIDIA L4", "unknown GPU", "unknown name: NVML's answer is not UTF-8", "GPU 1: GPU is lost"):
        assert needle in result.out
    assert [device["name"] for device in cli("device", "--json").json["devices"]] == ["NVIDIA L4", "unknown GPU"]


def test_the_catalogue(cli: Cli, snapshot: Snapshot) -> None:
    document = cli("kernels", "--json").json
    by_name = {kernel["name"]: kernel for kernel in document["kernels"]}
    assert by_name["fa2"]["file"] == "kernels_cu/fa2.cu"
    assert by_name["fa2"]["pass"] == "fwd"
    assert by_name["fa2"]["requires"] == "sm_80"
    assert by_name["fa2"]["title"]
    assert [variant["name"] for variant in by_name["softmax-fused"]["variants"]] == [
        "scalar",
        "streaming",
        "no-hint",
        "no-max",
    ]
    assert all(each["title"] and each["idea"] for each in by_name["softmax-fused"]["variants"])
    assert by_name["naive"]["variants"] == []
    header, row = cli("kernels", "--kernel", "softmax-online", "--csv").out.splitlines()
    assert header.endswith(",variants")
    assert row.endswith(",scalar;evict-last;tree;per-element")
    snapshot("kernels.txt", cli("kernels", "--kernel", "naive,fa2").out)


def test_a_kernel_of_ones_own_is_shown_as_it_is_named(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "é,[x]"
    folder.mkdir(parents=True)
    (folder / "[mine].cu").touch()
    (folder / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from pathlib import Path\n"
        "from attnprof.kernels.catalogue import builtin\n"
        "fa2 = next(spec for spec in builtin() if spec.name == 'fa2')\n"
        "SPEC = replace(fa2, name='mine[causal]', file=Path(__file__).parent / '[mine].cu')\n"
        "del fa2\n",
        encoding="utf-8",
    )
    result = cli("kernels", "--kernel", str(folder / "mine.py"))
    assert result.code == 0
    assert "mine[causal]" in result.out
    assert str(folder / "[mine].cu") in result.out
    rows = cli("roofline", "--seq", "1k", "--kernel", str(folder / "mine.py"), "--json").json["rows"]
    assert [row["kernel"] for row in rows] == ["mine[causal]"]
    ascii_only = cli("kernels", "--kernel", str(folder / "mine.py"), encoding="ascii")
    assert ascii_only.code == 0
    assert "\\xe9" in ascii_only.out
