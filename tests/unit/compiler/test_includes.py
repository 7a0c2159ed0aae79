from __future__ import annotations

from pathlib import Path

import pytest

from attnprof.compiler.includes import include_closure
from attnprof.model.errors import UsageError


def test_follows_quotes_from_the_including_file_and_then_the_search_path(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    (own / "sub").mkdir(parents=True)
    (shared / "common").mkdir(parents=True)
    (own / "k.cu").write_text('#include "sub/x.cuh"\n  #  include <common/z.cuh>\n#include <cuda_fp16.h>\n')
    (own / "sub" / "x.cuh").write_text('#include "y.cuh"\n#include "../k.cu"\n')
    (own / "sub" / "y.cuh").write_text("#define Y 1\n")
    (shared / "common" / "z.cuh").write_text('#include "../common/z.cuh"\n')

    closure = dict(include_closure(own / "k.cu", (own, shared)))

    assert closure == {
        str(own / "k.cu"): (own / "k.cu").read_bytes(),
        str(own / "sub/x.cuh"): (own / "sub/x.cuh").read_bytes(),
        str(shared / "common/z.cuh"): (shared / "common/z.cuh").read_bytes(),
        "cuda_fp16.h": None,
        str(own / "sub/y.cuh"): b"#define Y 1\n",
    }


def test_angle_brackets_do_not_see_the_including_folder(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("#include <x.cuh>\n")
    (tmp_path / "x.cuh").write_text("")
    assert dict(include_closure(tmp_path / "k.cu", ()))["x.cuh"] is None


def test_an_unreadable_source_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.cu: No such file"):
        include_closure(tmp_path / "none.cu", ())
