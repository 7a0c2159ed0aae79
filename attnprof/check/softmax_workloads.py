"""The matrices that a softmax kernel is checked on: small, awkward, and always the same.

Column counts sit at, just under or just over a 16-byte chunk, a warp's, a block's and a cluster's share; odd ones make
every row start at another offset from a 16-byte boundary.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product

from attnprof.check.workloads import NumericsCase
from attnprof.kernels.inputs import Distribution
from attnprof.model.dtypes import Dtype
from attnprof.model.workload import Workload

_UNUSUAL = (Distribution.LARGE_LOGITS, Distribution.DOMINANT_KEY, Distribution.MASKED)

_SHORT = (1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 64, 65, 127, 129, 255, 257, 511, 513, 1000, 1023, 1024, 1025, 2047, 2049)
_LONG = (4096, 4097, 8191, 16384, 16385, 32767, 32768, 32769, 65537, 100_003, 131_072, 131_073, 262_147)
_LONGEST = (524_289, 1_048_575, 1_048_576, 1_500_001)

# Enough rows for every row of the MASKED pattern, in the last block of each launch too.
_ROWS = 11

# For the emulator: every place where a row can stay, aligned and not. 40,001 fp16 columns are beyond a block's
# registers, 160,001 beyond registers and shared memory of an SM of compute capability 8.0.
_SMALL = (1, 3, 8, 33, 100, 257, 513, 1024, 1025, 2049, 5001)
_SMALL_LONG = (20_001, 40_001, 160_001)

# Bytes of a row in each place where one can stay on an SM of compute capability 8.0, and of one beyond.
_PLACES_BYTES = (66, 258, 602, 2002, 10_002, 80_002, 160_002, 400_002)


def matrix(rows: int, columns: int, dtype: Dtype) -> Workload:
    """The workload whose score matrix has that many rows and columns."""
    return Workload.of(rows, seq_kv=columns, heads=1, dtype=dtype)


def full_set() -> Iterator[NumericsCase]:
    """Every length with every type, and every distribution at some: for a GPU, some seconds a kernel."""
    for columns, dtype in product((*_SHORT, *_LONG), Dtype):
        yield _case(_ROWS, columns, dtype)
    for columns, dtype in product(_LONGEST, Dtype):
        yield _case(3, columns, dtype)
    for columns, dtype, distribution in product((1, 9, 1000, 4097, 32_769, 131_073, 300_001), Dtype, _UNUSUAL):
        yield _case(_ROWS, columns, dtype, distribution)
    # More rows than blocks fit on a GPU at once, and more than one grid dimension of 2^16 would hold.
    for columns, dtype in product((5, 129, 1024), Dtype):
        yield _case(70_001, columns, dtype)


def small_set() -> Iterator[NumericsCase]:
    """The lengths that tell the variants apart, types and distributions taking turns: for the emulator."""
    turns = cycle(Dtype)
    for columns, distribution in product(_SMALL, (Distribution.NORMAL, *_UNUSUAL)):
        yield _case(7, columns, next(turns), distribution)
    for columns, distribution in product(_SMALL_LONG, (Distribution.NORMAL, Distribution.LARGE_LOGITS)):
        yield _case(2, columns, Dtype.FP16, distribution)


def place_set() -> Iterator[NumericsCase]:
    """A ragged row length for each place where a row can stay, in each type: to be watched on the emulator."""
    for dtype, nbytes in product(Dtype, _PLACES_BYTES):
        yield _case(3, nbytes // dtype.itemsize | 1, dtype)


def resource_set() -> Iterator[Workload]:
    """Workloads that between them launch every variant of every softmax kernel, on any architecture."""
    lengths = (1, 64, 128, 256, 512, 1024, 2048, 4096, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
    for columns, dtype in product(lengths, Dtype):
        yield matrix(1024, columns, dtype)


def determinism_set() -> tuple[Workload, ...]:
    """More blocks than an SM each, with a warp, a block and a cluster a row, rows ragged."""
    return (
        matrix(20_000, 1001, Dtype.FP16),
        matrix(1000, 16_001, Dtype.BF16),
        matrix(300, 131_071, Dtype.FP16),
        matrix(40, 300_001, Dtype.FP32),
    )


def overflow_case() -> NumericsCase:
    """Logits far beyond what e^x can hold in fp32."""
    return _case(7, 1000, Dtype.FP32, Distribution.LARGE_LOGITS)


def _case(rows: int, columns: int, dtype: Dtype, distribution: Distribution = Distribution.NORMAL) -> NumericsCase:
    return NumericsCase(matrix(rows, columns, dtype), distribution, "softmax")
