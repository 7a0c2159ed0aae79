"""``attnprof tile``: a tile's figures, the sweep, and kernels as compiled."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from attnprof.cli import gpus
from attnprof.model.devices import from_facts, table
from attnprof.model.patterns import PATTERNS
from tests.cli.conftest import Cli

Snapshot = Callable[[str, str], None]
EXAMPLE = ("tile", "--head-dim", "128", "--block-q", "64", "--block-kv", "64", "--stages", "1")


def test_the_example_of_the_design(cli: Cli, snapshot: Snapshot) -> None:
    document = cli(*EXAMPLE, "--gpu", "H200", "--json").json
    assert document["smem_bytes"] == 49_152
    assert document["smem_parts"] == {"q": 16_384, "k": 16_384, "v": 16_384}
    assert document["device"]["name"] == "H200"
    # 144 registers x 32 lanes = 4608 a warp: 3 warps a sub-partition, 12 an SM, 3 blocks of 4; 4 x 50,176 would fit.
    assert (document["registers"], document["registers_source"]) == (144, "estimate")
    assert (document["blocks_per_sm"], document["warps_per_sm"]) == (3, 12)
    assert document["occupancy"] == 12 / 64
    assert document["limited_by"] == "registers"
    assert document["blocks_by"] == {"threads": 16, "registers": 3, "shared-memory": 4, "blocks": 32}
    assert set(document["bank_conflict_degree"]) == {pattern.name for pattern in PATTERNS}
    (row,) = document["rows"]
    assert all(document[key] == value for key, value in row.items() if key != "gpu")
    snapshot("tile.txt", cli(*EXAMPLE, "--gpu", "H200").out)
    snapshot("tile.md", cli(*EXAMPLE, "--gpu", "H200", "--md").out)
    snapshot("tile-40.txt", cli(*EXAMPLE, "--gpu", "H200", COLUMNS="40").out)


@pytest.mark.parametrize(
    ("layout", "ldmatrix", "column", "fragment"), [("plain", 8, 32, 4), ("pad", 1, 4, 1), ("swizzle", 1, 4, 1)]
)
def test_bank_conflicts_of_64_halves(cli: Cli, layout: str, ldmatrix: int, column: int, fragment: int) -> None:
    document = cli("tile", "--head-dim", "64", "--layout", layout, "--json").json
    degree = document["bank_conflict_degree"]
    assert degree["q_load"] == degree["k_load"] == degree["v_load"] == degree["column_chunks"] == ldmatrix
    assert degree["o_store"] == degree["p_store"] == ldmatrix
    assert degree["tile_store"] == degree["o_load"] == 1
    assert (degree["column_read"], degree["v_fragment"]) == (column, fragment)
    chunks = next(each for each in document["bank_conflicts"] if each["name"] == "column_chunks")
    assert {key: value["wavefronts"] for key, value in chunks["layouts"].items()} == {
        "plain": 32, "pad": 4, "swizzle": 4,
    }  # fmt: skip


def test_two_halves_of_padding_cure_single_halves_and_nothing_else(cli: Cli) -> None:
    document = cli("tile", "--head-dim", "64", "--layout", "pad", "--pad", "2", "--json").json
    assert document["bank_conflict_degree"]["column_read"] == 1
    assert document["bank_conflict_degree"]["k_load"] is None
    cures = {each["name"]: each["conflict_free_pad"] for each in document["bank_conflicts"]}
    assert (cures["column_read"], cures["column_chunks"], cures["k_load"]) == (2, 8, 8)


def test_padding_costs_shared_memory(cli: Cli) -> None:
    assert cli(*EXAMPLE, "--layout", "pad", "--json").json["smem_bytes"] == 3 * 64 * 136 * 2
    assert cli(*EXAMPLE, "--p-smem", "--json").json["smem_bytes"] == 49_152 + 64 * 64 * 2
    assert cli(*EXAMPLE[:-1], "3", "--json").json["smem_bytes"] == 16_384 * 7


@pytest.mark.parametrize(("pad", "banks"), [("8", "8 banks"), ("16", "4 banks"), ("24", "8 banks"), ("64", "1 bank")])
def test_why_a_column_read_conflicts(cli: Cli, pad: str, banks: str) -> None:
    assert f"it reads 32 rows at once, which start in {banks}.\n" in cli("tile", "--layout", "pad", "--pad", pad).out


def test_a_sweep_in_which_nothing_fits_says_so(cli: Cli) -> None:
    result = cli("tile", "--sweep", "--stages", "99", "--gpu", "H200")
    assert result.code == 0
    assert "· 0 of 250 tiles fit\n" in result.out
    # Sixteen warps, which the block of a single tile could not share, have larger ones in the sweep.
    assert cli("tile", "--sweep", "--warps", "16", "--gpu", "H200", "--top", "1").code == 0


def test_every_gpu_of_the_table(cli: Cli) -> None:
    names = ",".join(spec.name for spec in table())
    rows = cli(*EXAMPLE, "--gpu", names, "--json").json["rows"]
    assert [row["gpu"] for row in rows] == [spec.name for spec in table()]
    for row in rows:
        assert row["blocks_per_sm"] >= 1
        assert row["blocks_per_sm"] == min(row["blocks_by"].values())
        assert 0 < row["occupancy"] <= 1


def test_a_tile_that_does_not_fit_says_what_is_missing(cli: Cli, snapshot: Snapshot) -> None:
    result = cli("tile", "--block-q", "256", "--block-kv", "256", "--warps", "8", "--gpu", "H200,A100")
    assert result.code == 0
    snapshot("tile-too-large.txt", result.out)
    h200, a100 = cli(
        "tile", "--block-q", "256", "--block-kv", "256", "--warps", "8", "--gpu", "H200,A100", "--json"
    ).json["rows"]
    assert (h200["blocks_per_sm"], a100["blocks_per_sm"]) == (1, 0)
    assert "444 registers, and a thread can have 255" in h200["reason"]
    assert "196,608 B of shared memory, and a block can have 166,912" in a100["reason"]


def test_threads_that_the_register_file_does_not_hold_are_a_reason(cli: Cli) -> None:
    tile = ("tile", "--head-dim", "256", "--block-q", "256", "--warps", "16", "--gpu", "H200", "--json")
    (row,) = cli(*tile).json["rows"]
    assert row["blocks_per_sm"] == 0
    assert row["reason"] == (
        "needs 512 threads of 208 registers, and the quarters of an SM's 65,536 registers do not hold them"
    )
    assert cli(*tile, "--registers", "128").json["reason"] is None


def test_a_gpu_without_the_instructions_says_so(cli: Cli) -> None:
    (row,) = cli(*EXAMPLE, "--gpu", "T4", "--json").json["rows"]
    assert row["reason"] == "needs sm_80 or later for mma.m16n8k16 and cp.async, and is sm_75"
    swept = cli("tile", "--sweep", "--gpu", "T4", "--top", "1")
    assert f"T4: {row['reason']}: figures only\n" in swept.out
    assert cli("tile", "--sweep", "--gpu", "T4", "--json").json["sweeps"][0]["reason"] == row["reason"]
    assert cli(*EXAMPLE, "--gpu", "A100", "--json").json["rows"][0]["reason"] is None


def test_registers_that_are_known(cli: Cli) -> None:
    document = cli(*EXAMPLE, "--registers", "128", "--gpu", "H200", "--json").json
    assert (document["registers"], document["registers_source"], document["register_parts"]) == (128, "given", None)
    assert document["blocks_per_sm"] == 4
    assert "128 a thread, as given" in cli(*EXAMPLE, "--registers", "128").out


def test_rows_that_cannot_be_swizzled_are_padded(cli: Cli) -> None:
    assert cli("tile", "--head-dim", "80", "--json").json["layout"] == "pad"
    assert cli("tile", "--head-dim", "80", "--json").json["bank_conflict_degree"]["k_load"] == 1
    assert cli("tile", "--block-kv", "48", "--p-smem", "--json").json["layout"] == "pad"


def test_a_gpu_outside_the_architecture_table_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    device = from_facts("Foo 9000", (13, 0), sm_count=10)
    monkeypatch.setattr(gpus, "targets", lambda gpu: (gpus.Target(device, "a test's"),))
    reason = "compute capability 13.0 is not in the architecture table"
    for command in (("tile",), ("tile", "--sweep")):
        result = cli(*command)
        assert result.code == 0
        assert f"Foo 9000: {reason}\n" in result.out
    assert cli("tile", "--json").json["reason"] == reason
    document = cli("tile", "--sweep", "--json").json
    assert document["rows"] == []
    assert document["sweeps"] == [{"gpu": "Foo 9000", "tried": None, "fit": None, "reason": reason}]


def test_the_sweep(cli: Cli, snapshot: Snapshot) -> None:
    result = cli("tile", "--sweep", "--gpu", "H200,A100", "--top", "5")
    assert result.code == 0
    snapshot("tile-sweep.txt", result.out)
    document = cli("tile", "--sweep", "--gpu", "H200", "--json").json
    assert document["sweeps"] == [{"gpu": "H200", "tried": 1000, "fit": 287, "reason": None}]
    rows = document["rows"]
    assert [row["rank"] for row in rows] == list(range(1, 21))
    # What fa2 was tuned to on this GPU.
    assert (rows[0]["block_q"], rows[0]["block_kv"], rows[0]["stages"], rows[0]["warps"]) == (128, 64, 2, 4)
    kept = cli("tile", "--sweep", "--block-q", "64", "--stages", "3", "--gpu", "H200", "--json").json["rows"]
    assert {(row["block_q"], row["stages"]) for row in kept} == {(64, 3)}
    assert len(list(csv.reader(io.StringIO(cli("tile", "--sweep", "--csv", "--top", "7").out)))) == 8


@pytest.mark.parametrize(
    ("block_q", "warps"), [("48", {3}), ("80", {5}), ("112", {7}), ("96", {3, 6}), ("192", {6, 12})]
)
def test_a_sweep_tries_every_number_of_warps_that_can_share_a_given_block(
    cli: Cli, block_q: str, warps: set[int]
) -> None:
    rows = cli("tile", "--sweep", "--block-q", block_q, "--gpu", "H200", "--top", "1000", "--json").json["rows"]
    assert {row["warps"] for row in rows} == warps
    one = cli("tile", "--sweep", "--block-q", block_q, "--warps", str(min(warps)), "--gpu", "H200", "--json").json
    assert {row["warps"] for row in one["rows"]} == {min(warps)}


def test_csv_is_a_row_a_gpu(cli: Cli) -> None:
    rows = list(csv.DictReader(io.StringIO(cli(*EXAMPLE, "--gpu", "H200,A100", "--csv").out)))
    assert [row["gpu"] for row in rows] == ["H200", "A100-SXM4-80GB"]
    assert [row["smem_bytes"] for row in rows] == ["49152", "49152"]
    assert rows[0]["bank_conflict_degree_column_read"] == "4.0"


def test_csv_says_which_tile_each_row_is_of(cli: Cli) -> None:
    def only_row(*arguments: str) -> dict[str, str]:
        (row,) = csv.DictReader(io.StringIO(cli("tile", *arguments, "--gpu", "H200", "--csv").out))
        return row

    padded = ("--layout", "pad", "--pad")
    assert [only_row(*padded, "8")[key] for key in ("layout", "pad", "p_in_smem")] == ["pad", "8", "false"]
    assert [only_row(*padded, "16", "--p-smem")[key] for key in ("layout", "pad", "p_in_smem")] == ["pad", "16", "true"]
    swept = only_row("--sweep", "--top", "1", "--head-dim", "64", "--dtype", "bf16", *padded, "16", "--p-smem")
    assert [swept[key] for key in ("head_dim", "dtype", "layout", "pad", "p_in_smem")] == [
        "64", "bf16", "pad", "16", "true",
    ]  # fmt: skip
    assert "P shared" not in cli("tile", "--sweep", "--top", "1", "--p-smem").out


BAD = {
    "head dim": (["--head-dim", "63"], "--head-dim 63 is not a multiple of 16", "--head-dim 64"),
    "block of queries": (["--block-q", "100"], "--block-q 100 is not a multiple of 16", "--block-q 96"),
    "block of keys": (["--block-kv", "8"], "--block-kv 8 is not a multiple of 16", "--block-kv 16"),
    "warps": (["--warps", "3"], "--warps 3 cannot share --block-q 64", "--warps 4"),
    "warps of few rows": (["--block-q", "48", "--warps", "4"], "cannot share --block-q 48", "--warps 3"),
    "no stage": (["--stages", "0"], "--stages must be at least 1", "--stages 2"),
    "no padding": (["--pad", "0"], "--pad must be at least 1", "--pad 8"),
    "layout": (["--layout", "xor"], "--layout 'xor' is not known", "plain, pad, swizzle"),
    "dtype": (["--dtype", "fp32"], "--dtype 'fp32' is not known", "fp16, bf16"),
    "swizzle": (["--head-dim", "80", "--layout", "swizzle"], "a swizzle needs rows of", "--layout pad"),
    "too large": (["--block-q", "1m"], "--block-q 1m is above the largest allowed, 1,024", "--block-q 64"),
    "registers": (["--registers", "256"], "above the largest allowed, 255", "--registers 128"),
    "kernel and tile": (["--kernel", "fa2", "--block-q", "64"], "--kernel and --block-q exclude", "tile --kernel fa2"),
    "kernel and sweep": (["--kernel", "fa2", "--sweep"], "--kernel and --sweep exclude", "tile --kernel fa2"),
    "kernel and padding": (["--kernel", "fa2", "--pad", "3"], "--kernel and --pad exclude", "tile --kernel fa2"),
    "kernel and top": (["--kernel", "fa2", "--top", "3"], "--kernel and --top exclude", "tile --kernel fa2"),
    "sweep of no padding": (["--sweep", "--pad", "16"], "--pad 16 is of --layout pad", "--layout pad --pad 8"),
    "sweep and registers": (["--sweep", "--registers", "9"], "--sweep and --registers exclude", "tile --sweep"),
    "length without a kernel": (["--seq", "1k"], "--seq and --causal choose a variant of a --kernel", "--kernel fa2"),
    "sweep of no tile": (["--sweep", "--head-dim", "8"], "--head-dim 8 is not a multiple of 16", "--head-dim 16"),
    "sweep of an odd block": (["--sweep", "--block-q", "7"], "--block-q 7 is not a multiple of 16", "--block-q 16"),
    "sweep of odd keys": (["--sweep", "--block-kv", "7"], "--block-kv 7 is not a multiple of 16", "--block-kv 16"),
    "sweep of odd warps": (["--sweep", "--warps", "5"], "no block of queries that --warps 5 can share", "--warps 4"),
    "sweep of many warps": (["--sweep", "--warps", "8", "--block-q", "64"], "cannot share --block-q 64", "--warps 4"),
    "sweep of an odd row": (["--sweep", "--layout", "pad", "--pad", "3"], "no multiple of 16 bytes", "--pad 8"),
    "sweep of a misfit": (["--sweep", "--layout", "swizzle", "--head-dim", "80"], "a swizzle needs", "--layout pad"),
    "top without a sweep": (["--top", "5"], "--top says how many tiles of a --sweep to show", "tile --sweep --top 10"),
    "GPU": (["--gpu", "H900"], "unknown GPU 'H900'", "did you mean"),
}


@pytest.mark.parametrize(("arguments", "says", "hints"), BAD.values(), ids=BAD)
def test_bad_input(cli: Cli, arguments: list[str], says: str, hints: str) -> None:
    result = cli("tile", *arguments)
    assert result.code == 2
    assert result.out == ""
    error, hint = result.err.splitlines()
    assert says in error
    assert hints in hint


def test_a_kernel_as_compiled(cli: Cli) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    rows = cli("tile", "--kernel", "fa2", "--gpu", "H200,A100,T4", "--json").json["rows"]
    h200, a100, t4 = rows
    assert (h200["arch"], a100["arch"]) == ("sm_90a", "sm_80")
    assert h200["entry"] == "fa2_forward"
    assert h200["smem_bytes"] == 98_304
    assert h200["registers_source"] == "compiled"
    assert 128 < h200["registers"] <= 255
    assert (h200["blocks_per_sm"], h200["warps_per_sm"], h200["spill_bytes"]) == (2, 8, 0)
    assert t4["status"] == "skipped"
    assert t4["reason"] == "needs sm_80, this GPU is sm_75"
    text = cli("tile", "--kernel", "fa2", "--gpu", "T4,H200").out
    assert "fa2: needs sm_80, this GPU is sm_75" in text
    assert "fa2_forward" in text


def test_the_rows_of_a_kernel_say_for_what_it_was_compiled(cli: Cli) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    chosen = ("tile", "--kernel", "fa2", "--gpu", "H200,T4", "--head-dim", "64", "--seq", "1k", "--causal")
    for row in csv.DictReader(io.StringIO(cli(*chosen, "--csv").out)):
        found = [row[key] for key in ("seq_q", "seq_kv", "head_dim", "dtype", "causal", "pass")]
        assert found == ["1024", "1024", "64", "fp16", "true", "fwd"]
    assert {row["head_dim"] for row in cli(*chosen, "--json").json["rows"]} == {64}


def test_a_kernel_of_another_head_dim_is_skipped_with_its_reason(cli: Cli) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    result = cli("tile", "--kernel", "fa2", "--head-dim", "272", "--json")
    assert result.code == 0
    assert result.json["rows"][0]["reason"] == "fa2 takes head dims that are multiples of 8 up to 256, not 272"


def test_a_kernel_that_does_not_compile_fails(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "broken.cu").write_text("this is no CUDA\n")
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from pathlib import Path\n"
        "from attnprof.kernels import catalogue\n"
        "fa2 = next(spec for spec in catalogue.builtin() if spec.name == 'fa2')\n"
        "FILE = Path(__file__).parent / 'broken.cu'\n"
        "def plan(workload, device, original=fa2.plan):\n"
        "    found = original(workload, device)\n"
        "    return replace(found, launches=tuple(\n"
        "        replace(each, build=replace(each.build, file=FILE)) for each in found.launches))\n"
        "SPEC = replace(fa2, name='broken', file=FILE, plan=plan)\n"
        "del fa2\n"
    )
    result = cli("tile", "--kernel", str(tmp_path / "mine.py"), "--gpu", "H200", "--json")
    assert result.code == 1
    (row,) = result.json["rows"]
    assert row["status"] == "error"
    assert "broken.cu" in row["reason"]


def test_without_a_compiler_it_says_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnprof.compiler import nvrtc
    from attnprof.model.errors import EnvironmentProblem

    def missing() -> None:
        raise EnvironmentProblem("NVRTC is missing", "pip install 'attnprof[nvrtc]'")

    monkeypatch.setattr(nvrtc, "version", missing)
    result = cli("tile", "--kernel", "fa2")
    assert result.code == 2
    assert result.err == "error: NVRTC is missing\nhint: pip install 'attnprof[nvrtc]'\n"
    assert cli("tile").code == 0


def test_without_headers_it_says_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from attnprof.compiler import compiler
    from attnprof.model.errors import EnvironmentProblem

    def missing(nvrtc_major: int) -> None:
        raise EnvironmentProblem("cuda_fp16.h is missing: no CUDA headers found", "pip install 'attnprof[cuda13]'")

    monkeypatch.setattr(compiler, "cuda_headers", missing)
    result = cli("tile", "--kernel", "fa2", "--gpu", "H200")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: cuda_fp16.h is missing: no CUDA headers found\nhint: pip install 'attnprof[cuda13]'\n"
    )


def test_a_gpu_that_the_compiler_does_not_know_leaves_the_others_theirs(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from attnprof.compiler import nvrtc

    known = tuple(each for each in nvrtc.supported_arches() if each < 100)
    monkeypatch.setattr(nvrtc, "supported_arches", lambda: known)
    result = cli("tile", "--kernel", "fa2", "--gpu", "B200,H200", "--json")
    b200, h200 = result.json["rows"]
    assert (result.code, b200["status"], h200["status"]) == (0, "skipped", "ok")
    assert "does not know sm_100a: it needs the NVRTC of" in b200["reason"]
