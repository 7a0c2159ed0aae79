"""Work in other processes and threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures.process import BrokenProcessPool

import pytest

from attnprof.check import workers as module
from attnprof.check.workers import Kind, Workers


def where() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def here_alone(parent: int) -> int:
    if os.getpid() != parent:
        os._exit(3)
    return os.getpid()


def wrong() -> None:
    raise ValueError("wrong")


def test_processes_are_others_and_threads_are_this_one() -> None:
    with Workers(2) as workers:
        process, _ = workers.start("processes", where).result()
        same, thread = workers.start("threads", where).result()
    assert process != os.getpid()
    assert same == os.getpid()
    assert thread != threading.get_ident()


@pytest.mark.parametrize("kind", ["processes", "threads"])
@pytest.mark.parametrize("count", [0, 1])
def test_too_few_are_nobody(kind: Kind, count: int) -> None:
    with Workers(count) as workers:
        assert workers.start(kind, where).result() == where()


def test_what_a_dead_process_had_is_done_here() -> None:
    with Workers(2) as workers:
        first = workers.start("processes", here_alone, os.getpid())
        assert first.result() == os.getpid()
        # The pool is broken from then on.
        assert workers.start("processes", where).result() == where()


def test_without_process_pools_everything_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "process_pool", lambda _: None)
    with Workers(2) as workers:
        assert workers.start("processes", where).result() == where()


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_an_error_is_the_callers(kind: Kind) -> None:
    with Workers(2) as workers, pytest.raises(ValueError, match="wrong"):
        workers.start(kind, wrong).result()


def test_a_pool_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    class Refusing:
        def submit(self, *_: object) -> None:
            nonlocal asked
            asked += 1
            raise BrokenProcessPool

        def shutdown(self, **_: object) -> None:
            raise AssertionError("given up")

    monkeypatch.setattr(module, "process_pool", lambda _: Refusing())
    with Workers(2) as workers:
        assert [workers.start("processes", where).result() for _ in range(2)] == [where(), where()]
    assert asked == 1
