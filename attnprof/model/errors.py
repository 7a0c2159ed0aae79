"""The errors a user can meet, each one line long, with what to do next.

Every error the tool raises on purpose derives from :class:`AttnprofError`; the CLI prints it on stderr without a
traceback and turns it into an exit code. Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations


class AttnprofError(Exception):
    """Something the user can act on.

    Args:
        message: what failed and why, in one line.
        hint: what to type or change next, in one line.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AttnprofError):
    """A value that is not allowed: exit 2."""


class DescriptionError(UsageError):
    """A kernel's own description raised, or gave what no kernel can have: it ends the command, whatever the row."""


class EnvironmentProblem(AttnprofError):
    """Something the machine lacks (a GPU, a driver, NVRTC, a header): exit 2."""


class UnknownArchitecture(EnvironmentProblem):
    """NVRTC is older than a GPU: nothing compiles for that one, but for others it does."""


class UnsupportedWorkload(AttnprofError):
    """A kernel cannot run this workload on this architecture: the row is skipped with the reason."""


class CompileError(AttnprofError):
    """NVRTC or ptxas refused the source. ``log`` is the compiler's whole output."""

    def __init__(self, message: str, hint: str | None = None, *, log: str = "") -> None:
        super().__init__(message, hint)
        self.log = log


class LaunchLimitError(AttnprofError):
    """A launch asks for more than the device has (shared memory, registers, threads, grid): found before launching."""


class OutOfMemory(AttnprofError):
    """The device, or the host, cannot hold the tensors of a plan.

    Args:
        needed_bytes: what the plan asks for in total.
        free_bytes: what there was.
        where: ``on the host``, where it is not the device.
    """

    def __init__(self, needed_bytes: int, free_bytes: int, where: str = "") -> None:
        free = f"{free_bytes / 2**30:.2f} GiB free {where}".rstrip()
        super().__init__(f"out of memory: needs {needed_bytes / 2**30:.2f} GiB, {free}")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class KernelFault(AttnprofError):
    """A kernel crashed while running (bad address, trap, deadlock)."""


class ContextLost(KernelFault):
    """A kernel crashed and took the device context with it: nothing more can run in this process."""
