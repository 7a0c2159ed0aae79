"""``attnprof roofline``: the figures of the article, every format, every width."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

A100 = ("--gpu", "A100-SXM4-80GB", "--kernel", "naive,fa2")
Snapshot = Callable[[str, str], None]


def test_the_figures_of_the_article(cli: Cli) -> None:
    result = cli("roofline", "--seq", "32768", *A100, "--json")
    assert result.code == 0
    assert result.err == ""
    document = result.json
    assert document["schema_version"] == 1
    assert document["command"] == "roofline"
    assert document["device"]["name"] == "A100-SXM4-80GB"
    assert document["device"]["source"] == "table"
    assert document["device"]["sm_count"] == 108
    assert document["device"]["hbm_bytes_per_s"] == 2.039e12
    assert document["device"]["tensor_flops_per_s"]["fp16"] == 312e12
    naive, fa2 = document["rows"]
    for row in (naive, fa2):
        assert row["status"] == "ok"
        assert row["reason"] is None
        assert (row["batch"], row["heads"], row["kv_heads"], row["head_dim"]) == (1, 32, 32, 128)
        assert (row["seq_q"], row["seq_kv"], row["dtype"], row["causal"], row["pass"]) == (
            32768, 32768, "fp16", False, "fwd",
        )  # fmt: skip
        assert row["flops"] == 17_592_186_044_416
        assert sum(line["bytes"] for line in row["ledger"]) == row["hbm_bytes"]
        assert row["predicted_time_s"] >= row["roof_time_s"]
    assert naive["hbm_bytes"] == 275_951_648_768
    assert naive["arithmetic_intensity"] == pytest.approx(63.75, abs=0.005)
    assert naive["bound"] == "hbm"
    assert naive["roof_time_s"] == pytest.approx(135.3e-3, abs=0.05e-3)
    assert naive["speedup_vs_naive"] == 1.0
    assert fa2["hbm_bytes"] == 1_073_741_824
    assert fa2["arithmetic_intensity"] == 16384
    assert fa2["bound"] == "tensor"
    assert fa2["roof_time_s"] == pytest.approx(56.4e-3, abs=0.05e-3)
    assert fa2["speedup_vs_naive"] == pytest.approx(2.40, abs=0.005)


def test_the_backward_shows_its_kernels_and_what_recomputation_saves(cli: Cli) -> None:
    rows = cli("roofline", "--seq", "4096", "--gpu", "H200", "--pass", "bwd", "--json").json["rows"]
    assert [row["kernel"] for row in rows] == ["naive", "fa2-bwd", "fa2-bwd-deterministic"]
    naive, fast, deterministic = rows
    assert naive["unsupported"] == "naive computes the forward pass only"
    assert fast["unsupported"] is None
    assert [stage["stage"] for stage in fast["stages"]] == ["rowsum", "gradients", "convert"]
    assert fast["flops"] == 10 * 4096 * 4096 * 32 * 128
    assert fast["hbm_bytes"] < deterministic["hbm_bytes"] < naive["hbm_bytes"]
    assert fast["speedup_vs_naive"] > 1
    forward = cli("roofline", "--seq", "4096", "--gpu", "H200", "--json").json["rows"]
    assert not [row["kernel"] for row in forward if row["pass"] != "fwd" or "bwd" in row["kernel"]]


def test_one_head_at_4096_splits_into_a_linear_and_a_quadratic_term(cli: Cli) -> None:
    (naive,) = cli("roofline", "--seq", "4k", "--heads", "1", "--kernel", "naive", "--json").json["rows"]
    linear = sum(line["bytes"] for line in naive["ledger"] if line["tensor"] in ("Q", "K", "V", "O"))
    assert linear == 4_194_304
    assert naive["hbm_bytes"] - linear == 134_217_728


def test_the_speed_up_needs_no_naive_among_the_kernels(cli: Cli) -> None:
    (fa2,) = cli("roofline", "--seq", "32k", "--kernel", "fa2", "--json").json["rows"]
    assert fa2["speedup_vs_naive"] == pytest.approx(2.40, abs=0.005)


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_every_format(cli: Cli, snapshot: Snapshot, form: str) -> None:
    option = () if form == "table" else (f"--{form}",)
    result = cli("roofline", "--seq", "1k,32k", *A100, *option)
    assert result.code == 0
    text = result.out
    if form == "json":  # what the GPU is has its own tests
        document = {key: value for key, value in result.json.items() if key not in ("device", "devices")}
        text = json.dumps(document, indent=1) + "\n"
    snapshot(f"roofline.{'txt' if form == 'table' else form}", text)


def test_the_ledger_line_by_line(cli: Cli, snapshot: Snapshot) -> None:
    result = cli("roofline", "--seq", "32k", *A100, "--ledger")
    snapshot("roofline-ledger.txt", result.out)
    assert "68,719,476,736" in result.out
    assert "2.00 GiB" in result.out  # S alone, a head
    rows = list(csv.DictReader(io.StringIO(cli("roofline", "--seq", "32k", *A100, "--ledger", "--csv").out)))
    assert sum(int(row["bytes"]) for row in rows if row["kernel"] == "naive") == 275_951_648_768


def test_the_ledger_option_leaves_json_as_it_is(cli: Cli) -> None:
    arguments = ("roofline", "--seq", "2k", *A100, "--json")
    assert cli(*arguments, "--ledger").out == cli(*arguments).out


def test_several_gpus(cli: Cli, snapshot: Snapshot) -> None:
    arguments = ("roofline", "--seq", "32k", "--gpu", "A100-SXM4-80GB,H200,B200", "--kernel", "naive,fa2")
    snapshot("roofline-gpus.txt", cli(*arguments).out)
    document = cli(*arguments, "--json").json
    assert document["device"]["name"] == "A100-SXM4-80GB"
    assert [device["name"] for device in document["devices"]] == ["A100-SXM4-80GB", "H200", "B200"]
    assert [row["gpu"] for row in document["rows"]] == ["A100-SXM4-80GB"] * 2 + ["H200"] * 2 + ["B200"] * 2


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_every_width_is_whole(cli: Cli, snapshot: Snapshot, width: int) -> None:
    result = cli("roofline", "--seq", "1k,32k", *A100, COLUMNS=str(width))
    snapshot(f"roofline-{width}.txt", result.out)
    text = " ".join(result.out.split())
    for needle in ("302.0 MB", "276.0 GB", "17.59 T", "16384", "135.3 ms", "56.39 ms", "2.40×", "FLOP/B", "Predicted"):
        assert needle in text
    if width >= 40:
        assert max(map(len, result.out.splitlines())) <= width


def test_eighty_columns_hold_the_table(cli: Cli) -> None:
    assert "Seq  Kernel" in cli("roofline", *A100, tty=True, COLUMNS="80", NO_COLOR="1").out


def test_ascii(cli: Cli, snapshot: Snapshot) -> None:
    result = cli("roofline", "--seq", "1k,32k", *A100, encoding="ascii")
    assert result.code == 0
    assert result.out.isascii()
    snapshot("roofline-ascii.txt", result.out)


def test_colours_only_on_a_terminal_that_has_them(cli: Cli) -> None:
    arguments = ("roofline", "--seq", "1k", *A100)
    assert "\x1b[" in cli(*arguments, tty=True, TERM="xterm-256color", COLUMNS="120").out
    for variables in ({"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}):
        assert "\x1b" not in cli(*arguments, tty=True, COLUMNS="120", **variables).out
    assert "\x1b" not in cli(*arguments, TERM="xterm-256color").out


def test_grouped_queries_bf16_causal_and_other_dims(cli: Cli, snapshot: Snapshot) -> None:
    result = cli(
        "roofline", "--seq", "4k", "--kv-seq", "128,4k", "--heads", "32", "--kv-heads", "8", "--causal",
        "--head-dim", "64,44", "--dtype", "bf16,fp16", "--kernel", "fa2", "--gpu", "H200",
    )  # fmt: skip
    snapshot("roofline-mixed.txt", result.out)
    assert "cannot run this" in result.out  # head dim 44 is predicted, and said not to run


def test_a_gpu_too_old_for_the_kernel_is_named_in_the_row(cli: Cli) -> None:
    (row,) = cli("roofline", "--seq", "1k", "--kernel", "fa2", "--gpu", "V100", "--json").json["rows"]
    assert row["unsupported"] == "needs sm_80, this GPU is sm_70"


def test_an_unknown_ceiling_is_null_with_a_reason(cli: Cli) -> None:
    result = cli("roofline", "--seq", "1k", "--kernel", "fa2", "--gpu", "V100", "--dtype", "bf16", "--json")
    (row,) = result.json["rows"]
    assert row["roof_time_s"] is None
    assert row["predicted_time_s"] is None
    assert row["speedup_vs_naive"] is None
    assert "bf16" in row["reason"]
    table = cli("roofline", "--seq", "1k", "--kernel", "fa2", "--gpu", "V100", "--dtype", "bf16").out
    assert "—" in table
    assert row["reason"] in table


def test_huge_lengths_count_exactly_and_say_that_they_do_not_fit(cli: Cli) -> None:
    arguments = ("roofline", "--seq", "1g", "--kernel", "naive", "--gpu", "H200")
    assert cli(*arguments, "--json").json["rows"][0]["flops"] == 2**74
    assert "Needs more memory than the 141 GiB of this GPU: naive at 1073741824" in cli(*arguments).out


def test_a_footprint_that_fits_l2_is_said(cli: Cli) -> None:
    arguments = ("roofline", "--seq", "512", "--heads", "8", "--head-dim", "64", "--gpu", "H200", "--kernel", "fa2")
    assert "fit the L2 cache of 60 MiB" in cli(*arguments).out
    assert cli(*arguments, "--json").json["rows"][0]["l2_resident"] == "footprint"


def test_clock_ceilings(cli: Cli) -> None:
    arguments = ("roofline", "--seq", "32k", "--gpu", "H200", "--kernel", "fa2", "--json")
    clock, sheet = cli(*arguments, "--ceilings", "clock").json, cli(*arguments).json
    assert clock["ceilings"] == "clock"
    assert clock["rows"][0]["roof_time_s"] < sheet["rows"][0]["roof_time_s"]


def test_without_a_gpu_the_heading_says_whose_figures_these_are(cli: Cli) -> None:
    first = cli("roofline", "--seq", "1k").out.splitlines()[0]
    assert first == (
        "GPU       A100-SXM4-80GB (the default; no GPU here: there is no NVIDIA driver (a test says so); "
        "--gpu NAME chooses another)"
    )


def test_the_local_gpu_is_the_default(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.gpu import discovery
    from attnprof.model.devices import from_facts

    spec = from_facts("NVIDIA L4", (8, 9), max_clock_hz=2_040_000_000)
    found = discovery.Discovery((discovery.Gpu(0, "NVIDIA L4", spec),), "GPU 1: GPU is lost")
    monkeypatch.setattr(discovery, "discover", lambda: found)
    result = cli("roofline", "--seq", "1k", "--kernel", "fa2")
    assert result.code == 0
    assert result.out.splitlines()[0] == "GPU       NVIDIA L4 (local GPU; GPU 1: GPU is lost)"
    assert cli("roofline", "--seq", "1k", "--json").json["device"]["source"] == "nvml"


@pytest.mark.parametrize("suffix", ["json", "csv", "md", "txt"])
def test_the_file_takes_its_format_from_its_name(cli: Cli, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"run.{suffix}"
    arguments = ("roofline", "--seq", "1k", *A100)
    option = () if suffix == "txt" else (f"--{suffix}",)
    shown = cli(*arguments, "--output", str(file), tty=True, TERM="xterm", COLUMNS="40")
    assert shown.out == cli(*arguments, tty=True, TERM="xterm", COLUMNS="40").out
    assert file.read_text(encoding="utf-8") == cli(*arguments, *option).out
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]


def test_a_name_without_a_format_takes_that_of_the_option(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "run"
    result = cli("roofline", "--seq", "1k", *A100, "--json", "--output", str(file))
    assert file.read_text(encoding="utf-8") == result.out


def test_a_link_and_a_device_are_written_through(cli: Cli, tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    assert cli("roofline", "--seq", "1k", *A100, "--output", str(link)).code == 0
    assert link.is_symlink()
    assert target.read_text().startswith("{")
    assert cli("roofline", "--seq", "1k", *A100, "--csv", "--output", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    result = cli("roofline", "--seq", "1k", *A100, broken=True)
    assert result.code == 0
    assert result.err == ""


def test_matrices(cli: Cli) -> None:
    done = cli("roofline", "--cols", "4k,1m", "--gpu", "H200", "--json")
    assert done.code == 0
    rows = done.json["rows"]
    assert [row["kernel"] for row in rows] == ["softmax-naive", "softmax-safe", "softmax-online", "softmax-fused"] * 2
    assert {row["seq_q"] * row["seq_kv"] * 2 for row in rows} == {2**30}
    assert {row["flops"] for row in rows} == {5 * 2**29}
    assert [row["hbm_bytes"] // 2**30 for row in rows] == [2, 2, 2, 2, 3, 4, 3, 2]
    assert {row["bound"] for row in rows} == {"hbm"}
    assert rows[5]["speedup_vs_naive"] == 0.75


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cols", "4k", "--kernel", "fa2"), "fa2 computes attention"),
        (("--cols", "4k", "--seq", "4k"), "exclude each other"),
        (("--rows", "4"), "--rows needs --cols"),
        (("--cols", "4k", "--causal"), "causal"),
        (("--seq", "4k", "--dtype", "fp32"), "choose from fp16, bf16"),
    ],
)
def test_matrices_and_attention_are_told_apart(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    done = cli("roofline", *arguments, "--gpu", "H200")
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_the_matrix_table(cli: Cli) -> None:
    done = cli("roofline", "--cols", "1k,128k", "--rows", "1k", "--dtype", "fp32", "--gpu", "H200")
    header = next(line for line in done.out.splitlines() if "Kernel" in line)
    assert header.split()[:3] == ["Rows", "Cols", "Kernel"]
    assert "softmax of a matrix's rows · fp32" in done.out


def test_a_score_matrix_counts_every_head(cli: Cli) -> None:
    done = cli("roofline", "--kernel", "softmax-fused", "--seq", "1k", "--heads", "8", "--gpu", "H200", "--json")
    (row,) = done.json["rows"]
    assert row["hbm_bytes"] == 2 * 8 * 1024 * 1024 * 2


def test_a_kernel_for_few_queries_is_listed_where_it_can_run(cli: Cli) -> None:
    def listed(*arguments: str) -> set[str]:
        rows = cli("roofline", "--gpu", "H200", "--json", *arguments).json["rows"]
        return {row["kernel"] for row in rows}

    assert "fa2-decode" not in listed("--seq", "4096")
    assert "fa2-decode" in listed("--seq", "1", "--kv-seq", "4096")
    assert "fa2-decode" in listed("--seq", "4096", "--kernel", "fa2-decode")


def test_all_kernels_are_those_of_the_pass(cli: Cli) -> None:
    def listed(*arguments: str) -> list[str]:
        rows = cli("roofline", "--gpu", "H200", "--json", *arguments).json["rows"]
        return [row["kernel"] for row in rows]

    forward = listed("--seq", "1k", "--kernel", "all")
    backward = listed("--seq", "1k", "--kernel", "all", "--pass", "bwd")
    assert {"naive", "fa2", "softmax-fused"} <= set(forward)
    assert backward == ["naive", "fa2-bwd", "fa2-bwd-deterministic"]
    assert not set(forward) & set(backward[1:])
    # What is named stays, and a note says that it cannot run.
    assert listed("--seq", "1k", "--kernel", "fa2-bwd") == ["fa2-bwd"]
    assert "fa2-bwd" in listed("--seq", "1k", "--kernel", "all,fa2-bwd")
    both = listed("--seq", "1k", "--kernel", "naive,all,fa2", "--pass", "bwd")
    assert sorted(both) == sorted([*backward, "fa2"])
    assert cli("roofline", "--cols", "4k", "--kernel", "all,fa2").code == 2


def test_a_launch_of_few_blocks_is_noted(cli: Cli) -> None:
    decode = ("roofline", "--seq", "1", "--kv-seq", "32k", "--heads", "32", "--kv-heads", "8", "--gpu", "H200")
    noted = "Fewer blocks than the 132 SMs, which cannot draw the full HBM rate: "
    # A block a head, and 128 of them.
    assert f"{noted}fa2 at 1/32768\n" in cli(*decode, "--kernel", "fa2,fa2-decode").out
    fa2, split = cli(*decode, "--kernel", "fa2,fa2-decode", "--json").json["rows"]
    assert [stage["blocks"] for stage in fa2["stages"]] == [32]
    assert [stage["blocks"] for stage in split["stages"]] == [128, 32]
    # Where the tensor cores bind, the imbalance says it.
    assert noted not in cli("roofline", "--seq", "1k", "--heads", "2", "--kernel", "fa2", "--gpu", "H200").out


def test_several_files(cli: Cli, tmp_path: Path) -> None:
    files = [tmp_path / "run.json", tmp_path / "run.csv"]
    arguments = ("roofline", "--seq", "1k", *A100)
    assert cli(*arguments, *(word for file in files for word in ("--output", str(file)))).code == 0
    for file in files:
        assert file.read_text(encoding="utf-8") == cli(*arguments, f"--{file.suffix[1:]}").out


def test_notes_of_one_kind_stand_together(cli: Cli) -> None:
    out = cli("roofline", "--seq", "5", "--heads", "1", "--head-dim", "72", "--gpu", "H200").out
    kinds = [line.split()[0] for line in out.splitlines() if line.startswith(("Predicted from", "The tensors fit"))]
    assert kinds == ["Predicted"] * 3 + ["The"]
    assert "· 1 head ·" in out
