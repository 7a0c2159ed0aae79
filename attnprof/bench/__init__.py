"""How to time a kernel, and what to say of it."""

from attnprof.bench.rates import RateProbe, measure_rates
from attnprof.bench.rows import BenchRow, MeasuredRate, RowStatus, RowWarning, WarningKind
from attnprof.bench.runner import BenchOptions, Progress, bench
from attnprof.bench.sampler import FixedSamples, StoppingRule, StopReason, UntilSteady
from attnprof.bench.store import write_atomically

__all__ = [
    "BenchOptions",
    "BenchRow",
    "FixedSamples",
    "MeasuredRate",
    "Progress",
    "RateProbe",
    "RowStatus",
    "RowWarning",
    "StopReason",
    "StoppingRule",
    "UntilSteady",
    "WarningKind",
    "bench",
    "measure_rates",
    "write_atomically",
]
