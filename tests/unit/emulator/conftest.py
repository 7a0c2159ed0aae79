from __future__ import annotations

import pytest

from attnprof.compiler import Compiler
from tests.unit.emulator.emulator_harness import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Compiles and runs snippets."""
    return Bench(tmp_path_factory.mktemp("sources"), Compiler(tmp_path_factory.mktemp("cache")))
