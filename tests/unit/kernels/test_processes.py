"""Worker processes: deaf to Ctrl-C from the start, and gone when they are stopped or their parent is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attnprof.kernels.processes import ProcessPool

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals")

LONG_S = 600
SOON_S = 60
arrived, go_on = threading.Event(), threading.Event()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def blocked() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def at_work(sign: Path) -> None:
    sign.touch()
    time.sleep(LONG_S)


class Held:
    """A result that this process takes its time to receive."""

    def __reduce__(self) -> Any:
        return receive, ()


def receive() -> None:
    arrived.set()
    go_on.wait(SOON_S)


def large() -> bytes:
    """More than a pipe holds."""
    return bytes(1 << 20)


def test_ctrl_c_is_blocked_in_workers_alone_and_nothing_else_is() -> None:
    pool = ProcessPool(1)
    try:
        assert pool.submit(blocked).result() == blocked() | {signal.SIGINT}
    finally:
        pool.stop()
    assert not {signal.SIGINT, signal.SIGTERM} & blocked()


@pytest.mark.parametrize("what", ["submit", "stop"])
def test_an_interrupt_strikes_when_the_pool_is_whole_again(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    done = []

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(what)

    pool = ProcessPool(1)
    monkeypatch.setattr(ProcessPoolExecutor, "submit" if what == "submit" else "shutdown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.submit(int) if what == "submit" else pool.stop()
    assert done == [what]
    assert not {signal.SIGINT, signal.SIGTERM} & blocked()


def test_stopping_waits_for_nothing(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    pool = ProcessPool(2)
    for number in range(9):
        pool.submit(at_work, tmp_path / f"{number}")
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    pool.stop()
    pool.stop()  # once more does no harm
    until(lambda: set(threading.enumerate()) <= threads)  # what the exit of this process would wait for


def test_a_pool_that_lost_a_worker_ends_the_others(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    pool = ProcessPool(2)
    pool.submit(at_work, tmp_path / "sign")
    until((tmp_path / "sign").exists)
    pool.submit(int).result()  # both have started, and the pool looks after both
    with pytest.raises(BrokenProcessPool):
        pool.submit(os._exit, 3).result(SOON_S)
    until(lambda: set(threading.enumerate()) <= threads)


def test_a_result_that_was_half_sent_is_not_waited_for() -> None:
    threads = set(threading.enumerate())
    pool = ProcessPool(1)
    results = pool._result_queue._reader
    pool.submit(Held)
    pool.submit(large)
    assert arrived.wait(SOON_S)
    assert results.poll(SOON_S)
    threading.Timer(0.3, go_on.set).start()  # when the worker has been ended
    pool.stop()
    until(lambda: set(threading.enumerate()) <= threads)


KILLED = """\
import sys, time
from attnprof.kernels.processes import process_pool

if __name__ == "__main__":
    pool = process_pool(2)
    pool.submit(int).result()
    pool.submit(time.sleep, 600)
    print("ready", flush=True)
    time.sleep(600)
"""


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        try:
            process.communicate(timeout=SOON_S)  # ends when nobody is left who could print
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
