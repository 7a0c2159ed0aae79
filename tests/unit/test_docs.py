"""The documentation says what is so: links resolve, commands parse, outputs are what the commands print."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from attnprof.cli import main
from attnprof.gpu import discovery
from attnprof.kernels import catalogue
from tests.cli.conftest import SNAPSHOTS, Cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KERNELS = ROOT / "kernels_cu"
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")))
# Pages whose outputs the tests of the command line compare.
COMPARED_ELSEWHERE = {"choose-a-tile.md", "online-softmax-by-hand.md"}
# What needs a compiler is compared apart from its figures; what needs a GPU is not run here.
INSTANT = ("roofline", "softmax", "device", "kernels", "tile")
GAP = "…"


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> Iterator[tuple[str, str]]:
    """Every fenced block as (language, text)."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M):
        yield match[1], match[2]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def command_lines(page: Path) -> Iterator[str]:
    """Every attnprof command line of a page's shell and console blocks."""
    for language, text in fences(page):
        if language not in ("sh", "console"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:\S*/)?(attnprof .*)" if language == "sh" else r"\$ (attnprof .*)", line)
            if found:
                yield re.split(r" [|>&]", found[1])[0]


def outputs(page: Path) -> Iterator[tuple[str, str]]:
    """Every instant command of a page's console blocks with the output that the page shows."""
    for language, text in fences(page):
        command, _, shown = text.partition("\n")
        if language != "console" or not command.startswith("$ attnprof ") or ".py" in command:
            continue
        words = shlex.split(command)[2:]
        if "--help" in words or (words[0] in INSTANT and not (words[0] == "tile" and "--kernel" in words)):
            yield " ".join(map(shlex.quote, words)), shown


def emulated(page: Path) -> Iterator[tuple[str, str]]:
    """Every command of a page's console blocks that runs a kernel of the catalogue on the emulator, with its output."""
    for language, text in fences(page):
        command, _, shown = text.partition("\n")
        words = command.split()
        if language != "console" or "--help" in words or ".py" in command or "error:" in shown:
            continue
        if words[2] == "trace" or "emulator" in words:
            yield " ".join(words[2:]), shown


def without_figures(text: str) -> str:
    """Which lines are the hottest, and all figures, are the compiler's and NumPy's own; words and columns are not."""
    kept = (line for line in text.splitlines() if not re.match(r"\w+\.cu:\d|Line +Warp|─", line))
    return "\n".join(re.sub(r"[\d.,]*\d", "N", " ".join(line.split())) for line in kept)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on the machine that the pages were written on: one without a driver."""
    reason = "there is no NVIDIA driver (libnvidia-ml.so.1 not found)"
    monkeypatch.setattr(discovery, "discover", lambda: discovery.Discovery(reason=reason))
    return Cli()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} <= named


@pytest.mark.parametrize("page", [DOCS / "ladder" / "index.md", ROOT / "README.md"], ids=page_id)
def test_every_kernel_has_a_row_in_the_ladder(page: Path) -> None:
    rows = "\n".join(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
    missing = [spec.name for spec in catalogue.builtin() if not re.search(rf"^\| \[?`{spec.name}`", rows, re.M)]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if any(command_lines(page))], ids=page_id)
def test_every_command_line_parses(page: Path) -> None:
    for line in command_lines(page):
        words = shlex.split(line)[1:]
        group = typer.main.get_command(main._app(words))
        if words[0].startswith("-"):
            continue
        with group.make_context("attnprof", list(words), resilient_parsing=True) as context:
            assert words[0] in group.list_commands(context), line  # type: ignore[attr-defined]
            command = group.get_command(context, words[0])  # type: ignore[attr-defined]
        options = [word.partition("=")[0] for word in words[1:] if re.match(r"--[a-z]|-h$", word)]
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        assert set(options) <= known, line


@pytest.mark.parametrize(
    ("page", "command", "shown"),
    [
        pytest.param(page, command, shown, id=f"{page_id(page)}: {command}")
        for page in PAGES
        if page.name not in COMPARED_ELSEWHERE
        for command, shown in outputs(page)
    ],
)
def test_the_page_shows_what_the_command_prints(cli: Cli, page: Path, command: str, shown: str) -> None:
    """A line of three dots stands for lines left out."""
    result = cli(*shlex.split(command))
    printed = result.out or result.err
    if "--help" in command:
        # How help is laid out depends on Typer's version and the terminal; what it names does not.
        option = r"--[a-z][a-z0-9-]*"
        assert re.findall(option, shown) == re.findall(option, printed)
        return
    parts = re.split(rf"^{GAP}\n", shown, flags=re.M)
    assert re.fullmatch(".*".join(map(re.escape, parts)), printed, re.S), printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        pytest.param(command, shown, id=f"{page_id(page)}: {command}")
        for page in PAGES
        for command, shown in emulated(page)
    ],
)
def test_the_page_shows_what_the_emulator_prints(cli: Cli, command: str, shown: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    printed = without_figures(cli(*shlex.split(command)).out)
    parts = (without_figures(part).strip("\n") for part in re.split(rf"^{GAP}\n", shown, flags=re.M))
    assert re.fullmatch(".*".join(map(re.escape, parts)), printed, re.S), printed


def test_the_readme_shows_what_its_command_prints(cli: Cli) -> None:
    (shown,) = (text for language, text in fences(ROOT / "README.md") if language == "text")
    assert cli("roofline", "--seq", "32768").out == shown


def test_the_gpu_page_has_the_built_in_table(cli: Cli) -> None:
    text = (DOCS / "reference" / "gpus.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- attnprof device --list --md -->\n(.*?)<!-- end -->", text, re.S)
    assert block is not None
    assert block[1] == cli("device", "--list", "--md").out


@pytest.mark.parametrize(
    "command",
    [
        "roofline --seq 1k --gpu H200",
        "device --gpu H200",
        "device --list",
        "kernels",
        "tile --gpu H200",
        "tile --sweep --top 1 --gpu H200",
        "softmax 1,2,3 --block 2",
    ],
)
def test_every_json_field_is_explained(cli: Cli, command: str) -> None:
    _assert_explained(cli(*command.split(), "--json").json)


@pytest.mark.parametrize("name", ["bench", "check", "check-traps", "trace", "tune"])
def test_every_json_field_of_the_snapshots_is_explained(name: str) -> None:
    text = (SNAPSHOTS / f"{name}.json").read_text(encoding="utf-8")
    # The version is left out of some, and its comma stays.
    _assert_explained(json.loads(re.sub(r"^\s*,\n", "", text, flags=re.M)))


def write_example(folder: Path, *names: str) -> None:
    """Files of the page on own kernels: each block follows the name of its file."""
    page = (DOCS / "how-to" / "your-own-kernel.md").read_text(encoding="utf-8")
    for name in names:
        found = re.search(rf"^`{re.escape(name)}`:\n\n```\w+\n(.*?)^```$", page, re.S | re.M)
        assert found is not None, name
        (folder / name).write_text(found[1], encoding="utf-8")


@pytest.mark.slow
def test_the_example_of_a_changed_kernel_works(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    write_example(tmp_path, "fa2_mine.py")
    source = (ROOT / "kernels_cu" / "fa2.cu").read_text(encoding="utf-8")
    (tmp_path / "fa2_mine.cu").write_text(source, encoding="utf-8")
    own = str(tmp_path / "fa2_mine.py")

    def traced() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = cli(
            "trace", "--kernel", f"{own},fa2", "--seq", "40", "--heads", "1", "--json"
        ).json["rows"]
        assert [row["kernel"] for row in rows] == ["fa2-mine", "fa2"]
        return rows

    mine, fa2 = traced()
    assert (mine["status"], fa2["status"]) == ("ok", "ok")
    assert mine["comparison"] == fa2["comparison"]

    # The copy is what runs: a change of it shows in its row, and in that alone.
    (tmp_path / "fa2_mine.cu").write_text(f'#error "changed"\n{source}', encoding="utf-8")
    mine, fa2 = traced()
    assert (mine["status"], fa2["status"]) == ("error", "ok")
    assert "changed" in mine["reason"]

    tiles = cli("roofline", "--kernel", f"{own},fa2", "--seq", "1k", "--json").json["rows"]
    assert tiles[0]["roof_time_s"] == tiles[1]["roof_time_s"]


@pytest.mark.slow
def test_the_example_of_an_own_kernel_works(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    write_example(tmp_path, "mine.cu", "mine.py")
    own = str(tmp_path / "mine.py")

    checked = cli(
        "check", "--kernel", own, "--check", "compile,spills,numerics", "--backend", "emulator", "--json"
    ).json
    assert checked["summary"] == {"passed": 6, "failed": 0, "skipped": 0}

    (row,) = cli("trace", "--kernel", own, "--seq", "40", "--heads", "1", "--json").json["rows"]
    assert row["status"] == "ok"
    assert row["comparison"]
    assert not any(entry["difference"] for entry in row["comparison"])


SHOWN = [
    (page.name, file, int(line), text)
    for page in sorted(DOCS.rglob("*.md"))
    for _, block in fences(page)
    for file, line, text in re.findall(r"^(\w+\.cuh?):(\d+) (.*)$", block, re.M)
    if (KERNELS / file).is_file()
]


def test_source_lines_that_pages_show_are_where_they_say() -> None:
    assert SHOWN
    for page, file, line, text in SHOWN:
        source = (KERNELS / file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
        shown = re.split(r" {2,}", text)[-1]
        assert source.startswith(shown.removesuffix("…")), f"{page}: {file}:{line} is {source!r}, not {shown!r}"


@pytest.mark.parametrize(("changes", "says"), [({}, ""), ({"status": "skipped", "reason": "no"}, "'skipped', 'no'")])
def test_the_gate_on_a_trace(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """A row that is skipped has no launches, and so nothing that could differ: the script must look at its status."""
    launch = {"kernel": "fa2_forward", "bank_conflicts": 0}
    row = {"kernel": "fa2", "status": "ok", "reason": None, "launches": [] if changes else [launch], **changes}
    (tmp_path / "trace.json").write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    (source,) = (
        match[1]
        for _, text in fences(DOCS / "how-to" / "gate-a-change-in-ci.md")
        if (match := re.fullmatch(r"python - <<'EOF'\n(.*)EOF\n", text, re.S))
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if says else 0)
    assert says in done.stderr


GATED: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int, str]] = {
    "as fast": ([{}], [{"ms": 1.04}], 0, ""),
    "slower": ([{}], [{"ms": 1.06}], 1, "1.06 times as long: H200 fa2 bhsd"),
    "a new workload": ([{}], [{}, {"seq_q": 8192}], 0, ""),
    "other tiles": ([{}], [{"tiles": "64 x 64"}], 0, ""),
    "skipped": ([{}, {"seq_q": 8192}], [{}, {"seq_q": 8192, "status": "skipped"}], 1, "no time in NEW: H200 fa2"),
    "missing": ([{}, {"causal": True}], [{}], 1, "no time in NEW: H200 fa2"),
    "nothing in common": ([{"kernel": "naive"}], [{}], 1, "no workload was judged"),
    "nothing at all": ([], [{}], 1, "no workload was judged"),
    "another layout": (
        [{}, {"layout": "bshd"}],
        [{"ms": 2.0}, {"layout": "bshd"}],
        1,
        "2.00 times as long: H200 fa2 bhsd",
    ),
    "another scale": ([{}, {"scale": 0.5}], [{"ms": 2.0}, {"scale": 0.5}], 1, "2.00 times as long"),
    "throttled": ([{}, {"seq_q": 8192}], [{}, {"seq_q": 8192, "ms": 9.0, "throttled": True}], 0, "not judged"),
    "all throttled": ([{"throttled": True}], [{}], 1, "no workload was judged"),
}


@pytest.mark.parametrize(("old", "new", "code", "says"), GATED.values(), ids=GATED)
def test_the_gate_on_time(
    tmp_path: Path, old: list[dict[str, Any]], new: list[dict[str, Any]], code: int, says: str
) -> None:
    """On rows of the snapshot, which is what ``bench`` saves, changed as each case says."""
    sample = re.sub(r"^\s*,\n", "", (SNAPSHOTS / "bench.json").read_text(encoding="utf-8"), flags=re.M)
    like = next(row for row in json.loads(sample)["rows"] if row["status"] == "ok")
    fixed = {"gpu": "H200", "kernel": "fa2", "layout": "bhsd", "throttled": False}
    assert fixed.keys() <= like.keys()
    like |= fixed
    for name, rows in (("old", old), ("new", new)):
        changed = [{**like, "time_s": {"median": row.get("ms", 1.0) / 1e3}, **row} for row in rows]
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": changed}), encoding="utf-8")
    (source,) = (
        text for _, text in fences(DOCS / "how-to" / "gate-a-change-in-ci.md") if text.startswith('"""gate.py')
    )
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "old.json"), str(tmp_path / "new.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout
    assert bool(says) == bool(done.stdout)


# Objects whose keys are values: names of units, types, peers, accesses, limits and parts.
KEYED_BY_VALUE = {
    "tensor_flops_per_s",
    "tensor_flops_per_s_at_max_clock",
    "unit_time_s",
    "peers",
    "smem_parts",
    "register_parts",
    "blocks_by",
    "bank_conflict_degree",
    "layouts",
    "kinds",
    "defines",
}


def _assert_explained(document: Any) -> None:
    words = set(re.findall(r"`([a-z0-9_]+)`", (DOCS / "reference" / "json.md").read_text(encoding="utf-8")))
    assert set(_fields(document)) <= words


def _fields(value: Any, *, by_value: bool = False) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _fields(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not by_value:
                yield key
            yield from _fields(item, by_value=key in KEYED_BY_VALUE)
