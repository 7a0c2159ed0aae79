"""Other processes of this program, to share work with."""

from __future__ import annotations

import logging
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

_log = logging.getLogger(__name__)


def process_pool(processes: int) -> ProcessPoolExecutor | None:
    """A pool whose workers leave Ctrl-C, and warnings, to this process; None where there can be none."""
    # Spawned, not forked: a fork would copy the threads' locks and a GPU's context, which do not survive it.
    context = get_context("spawn")
    try:
        return ProcessPoolExecutor(processes, mp_context=context, initializer=_leave_it_to_the_parent)
    except OSError as error:  # no semaphores, as in some containers
        _log.info("working in one process: %s", error)
        return None


def _leave_it_to_the_parent() -> None:
    """Interrupts, and warnings: what concerns the user (a full disk), the parent meets as well, and says once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
