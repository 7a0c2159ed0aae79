"""PTX on NumPy lanes: the executor that needs no GPU.

`EmulatorExecutor` serves the protocol of `attnprof.kernels.executor`; a run's ``trace`` holds what it counted and the
faults that it found.
"""

from attnprof.emulator.errors import PtxError, UnsupportedPtx
from attnprof.emulator.executor import EmulatedRun, EmulatorExecutor, Mode
from attnprof.emulator.faults import EmulatedFault, Fault, FaultKind
from attnprof.emulator.trace import Counters, KernelTrace, LineTrace, TensorTrace, Trace

__all__ = [
    "Counters",
    "EmulatedFault",
    "EmulatedRun",
    "EmulatorExecutor",
    "Fault",
    "FaultKind",
    "KernelTrace",
    "LineTrace",
    "Mode",
    "PtxError",
    "TensorTrace",
    "Trace",
    "UnsupportedPtx",
]
