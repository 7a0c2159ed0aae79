"""Small launches of one kernel, judged against float64: what compute-sanitizer watches.

Run as ``python -m tests.gpu.small_launches KERNEL``; exits 1 if an output is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path

from attnprof.check.cases import cases_for
from attnprof.check.numerics import check_numerics
from attnprof.check.rows import CheckStatus
from attnprof.check.softmax_workloads import matrix
from attnprof.check.workloads import NumericsCase
from attnprof.gpu.opening import open_executor
from attnprof.kernels.catalogue import select
from attnprof.kernels.spec import KernelSpec
from attnprof.model.dtypes import Dtype

# Beyond a block's registers, its shared memory, a cluster's: the emulator's set stays within sm_80.
_LONG_ROWS = tuple(
    NumericsCase(matrix(3, columns, dtype), operation="softmax")
    for columns, dtype in ((70_001, Dtype.BF16), (262_147, Dtype.FP16), (1_048_577, Dtype.FP32))
)


def cases(spec: KernelSpec) -> tuple[NumericsCase, ...]:
    """The workloads of the emulator's checks, and for softmax rows that only a GPU can hold on chip."""
    return cases_for(spec, full=False) + (_LONG_ROWS if spec.operation == "softmax" else ())


def main(name: str, cache_dir: str | None = None) -> int:
    """Launch the kernel on each of its cases."""
    executor = open_executor(cache_dir=Path(cache_dir) if cache_dir else None)
    (spec,) = select([name])
    rows = list(check_numerics(spec, cases(spec), executor))
    for row in rows:
        print(row.kernel, row.status, row.detail)
    return 0 if rows and {row.status for row in rows} == {CheckStatus.PASS} else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
