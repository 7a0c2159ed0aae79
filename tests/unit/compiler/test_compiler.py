"""NVRTC itself, without a driver or a GPU."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from attnprof.compiler import Compiler, nvrtc, processes
from attnprof.compiler import compiler as compiler_module
from attnprof.compiler.headers import Headers
from attnprof.kernels.plan import Build
from attnprof.model.errors import CompileError, EnvironmentProblem

SOURCE = """\
#include <cuda_fp16.h>
#include "value.cuh"
extern "C" __global__ void __launch_bounds__(64) k(__half* out) {
    __shared__ float s[64];
    s[threadIdx.x] = VALUE + EXTRA;
    __syncthreads();
    out[threadIdx.x] = __float2half(s[63 - threadIdx.x]);
}
"""


@pytest.fixture
def build(tmp_path: Path) -> Build:
    folder = tmp_path / "a b" / "é"
    folder.mkdir(parents=True)
    (folder / "k.cu").write_text(SOURCE)
    (folder / "value.cuh").write_text("#define VALUE 1.5f\n")
    return Build(folder / "k.cu", (("EXTRA", "1"),))


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path / "cache")


def test_a_cubin_with_its_resources(build: Build, compiler: Compiler) -> None:
    compiled = compiler.compile(build, "sm_90a")
    assert compiled.image.startswith(b"\x7fELF")
    assert compiled.compile_time_s > 0
    assert not compiled.cached
    k = compiled.resources["k"]
    assert 0 < k.registers <= 32
    assert (k.static_smem_bytes, k.spill_store_bytes, k.stack_bytes) == (256, 0, 0)


def test_the_second_time_it_comes_from_the_cache(build: Build, compiler: Compiler) -> None:
    first, second = compiler.compile(build, "sm_80"), compiler.compile(build, "sm_80")
    assert second.cached
    assert second.compile_time_s == 0.0
    assert (second.image, second.resources, second.log) == (first.image, first.resources, first.log)


def test_ptx_has_line_information(build: Build, compiler: Compiler) -> None:
    compiled = compiler.compile(build, "sm_80", target="ptx")
    text = compiled.image.decode()
    assert ".target sm_80" in text
    assert ".visible .entry k(" in text
    assert ".loc\t1 5" in text.replace(".loc 1 5", ".loc\t1 5")
    assert not text.endswith("\0")
    assert compiled.resources == {}


@pytest.mark.parametrize(("version", "bypassed"), [((12, 8), False), ((12, 9), True), ((13, 0), True)])
def test_nvrtcs_own_cache_is_bypassed(
    version: tuple[int, int], bypassed: bool, build: Build, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image from that cache comes without registers and spills; NVRTC 12.8 has none and refuses the option."""
    given: list[tuple[str, ...]] = []

    def compile_source(source: bytes, name: str, options: tuple[str, ...], *, cubin: bool) -> nvrtc.Outcome:
        given.append(options)
        return nvrtc.Outcome(b"image", "")

    monkeypatch.setattr(nvrtc, "version", lambda: version)
    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    compiler.compile(build, "sm_80")
    assert ("--no-cache" in given[0]) is bypassed


def test_only_an_included_header_edited(build: Build, compiler: Compiler) -> None:
    first = compiler.compile(build, "sm_80")
    (build.file.parent / "value.cuh").write_text("#define VALUE 2.5f\n")
    second = compiler.compile(build, "sm_80")
    assert not second.cached
    assert second.image != first.image


def test_whatever_changes_the_image_changes_the_key(build: Build, compiler: Compiler) -> None:
    compiler.compile(build, "sm_80")
    assert not compiler.compile(build, "sm_89").cached
    assert not compiler.compile(build, "sm_80", target="ptx").cached
    assert not compiler.compile(Build(build.file, (("EXTRA", "2"),)), "sm_80").cached


def test_a_damaged_entry_is_compiled_again(build: Build, compiler: Compiler) -> None:
    first = compiler.compile(build, "sm_80")
    for image in compiler.cache_dir.rglob("*.image"):
        image.write_bytes(image.read_bytes()[:-1])
    again = compiler.compile(build, "sm_80")
    assert not again.cached
    assert again.image == first.image


def test_two_cold_runs_at_once(build: Build, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from attnprof.compiler import Compiler; from attnprof.kernels.plan import Build\n"
        "c = Compiler(Path(sys.argv[1])).compile(Build(Path(sys.argv[2]), (('EXTRA', '1'),)), 'sm_80')\n"
        "import hashlib; print(hashlib.sha256(c.image).hexdigest(), c.resources['k'].static_smem_bytes)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "shared"), str(build.file)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert outputs[0] == outputs[1]
    assert outputs[0].endswith(" 256\n")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            '\nextern "C" __global__ void k(float* p) { p[0] = nosuch; }\n',
            r'^k\.cu:2: identifier "nosuch" is undefined$',
        ),
        ('#include "none.cuh"\n', r'^k\.cu:1: cannot open source file "none\.cuh"'),
        ('static_assert(1 == 2, "Br must be 64");\n', r"^k\.cu:1: static assertion failed with \"Br must be 64\"$"),
        (
            'extern "C" __global__ void k(float* p) { __shared__ float s[30000]; s[threadIdx.x] = 1;'
            " __syncthreads(); p[0] = s[5]; }\n",
            r"^k\.cu: ptxas: Entry function 'k' uses too much shared data \(0x1d4c0 bytes, 0xc000 max\)$",
        ),
        (
            'extern "C" __global__ void k(float* p) { asm volatile("bogus.f32 %0;" ::"f"(p[0])); }\n',
            r"^k\.cu: ptxas: Not a name of any known instruction: 'bogus'$",
        ),
    ],
)
def test_a_refused_source_says_where_in_one_line(tmp_path: Path, compiler: Compiler, source: str, message: str) -> None:
    file = tmp_path / "k.cu"
    file.write_text(source)
    with pytest.raises(CompileError, match=message) as caught:
        compiler.compile(Build(file), "sm_80")
    assert caught.value.log
    assert not compiler.cache_dir.exists() or not list(compiler.cache_dir.rglob("*.image"))


def test_an_error_in_an_included_header_names_the_header(build: Build, compiler: Compiler) -> None:
    (build.file.parent / "value.cuh").write_text("\n\n#error no value\n")
    with pytest.raises(CompileError, match=r"^value\.cuh:3: "):
        compiler.compile(build, "sm_80")


@pytest.mark.parametrize("arch", ["sm_150a", "sm_20"])
def test_an_architecture_nvrtc_does_not_know(build: Build, compiler: Compiler, arch: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"does not know {arch}: it needs the NVRTC of"):
        compiler.compile(build, arch)


def test_a_toolkit_that_lacks_what_cuda_fp16_includes(
    build: Build, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "cuda_fp16.h").write_text("#include <nv/target>\n")
    monkeypatch.setattr(compiler_module, "cuda_headers", lambda major: Headers((partial,), "partial"))
    with pytest.raises(EnvironmentProblem, match=r"header nv/target is missing \(cuda_fp16\.h includes it\)") as caught:
        compiler.compile(build, "sm_80")
    assert "cccl" in (caught.value.hint or "")


@pytest.mark.parametrize("missing", ["bindings", "library"])
def test_no_nvrtc_is_one_line_with_the_command(
    missing: str, monkeypatch: pytest.MonkeyPatch, compiler: Compiler
) -> None:
    if missing == "bindings":
        monkeypatch.setitem(sys.modules, "cuda.bindings", None)
        monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    else:

        def fail() -> None:
            raise RuntimeError('Failure finding "libnvrtc.so": No such file\nmore lines')

        monkeypatch.setattr(nvrtc.bindings(), "nvrtcVersion", fail)
    nvrtc.bindings.cache_clear()
    try:
        with pytest.raises(EnvironmentProblem, match="missing") as caught:
            compiler.compile(Build(Path("/none.cu")), "sm_80")
    finally:
        nvrtc.bindings.cache_clear()
    assert "\n" not in caught.value.message
    assert "pip install 'attnprof[nvrtc]'" in (caught.value.hint or "")


def test_the_projects_common_headers_are_found_from_anywhere(tmp_path: Path, compiler: Compiler) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(
        '#include "common/element.cuh"\nextern "C" __global__ void k(unsigned* p) { p[0] = pack2(1.f, 2.f); }\n'
    )
    for element in ("ELEMENT_FP16", "ELEMENT_BF16"):
        compiled = compiler.compile(Build(file, (("ELEMENT", element),)), "sm_80")
        assert compiled.resources["k"].spill_store_bytes == 0


def test_ahead_many_are_compiled_at_once_into_the_same_cache(build: Build, compiler: Compiler) -> None:
    builds = [Build(build.file, (("EXTRA", str(extra)),)) for extra in (1, 2, 3)]
    compiler.compile(builds[0], "sm_80")
    compiler.compile_ahead([*builds, builds[0]], "sm_80")
    alone = Compiler(compiler.cache_dir.parent / "other")
    for each in builds:
        ahead = compiler.compile(each, "sm_80")
        assert ahead.cached
        assert ahead.image == alone.compile(each, "sm_80").image


def test_ahead_what_is_refused_is_left_to_the_one_who_asks(build: Build, compiler: Compiler) -> None:
    good, bad = build, Build(build.file, (("EXTRA", "no_such_name"),))
    other = Build(build.file, (("EXTRA", "2"),))
    compiler.compile_ahead([good, bad, other], "sm_80")
    assert compiler.compile(good, "sm_80").cached
    with pytest.raises(CompileError, match="no_such_name"):
        compiler.compile(bad, "sm_80")


@pytest.mark.parametrize("error", [OSError("no semaphores here"), BrokenProcessPool("a worker was killed")], ids=str)
def test_a_machine_without_processes_compiles_all_the_same(
    build: Build, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(processes, "ProcessPoolExecutor", refuse)
    compiler.compile_ahead([build, Build(build.file, (("EXTRA", "2"),))], "sm_80")
    assert not compiler.compile(build, "sm_80").cached
