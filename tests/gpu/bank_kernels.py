"""The micro-kernels of kernels/banks.cu as plans, each with the conflicts that the model gives it.

Run as a program on a GPU, it launches them all in order: what a profiler is attached to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnprof.kernels.plan import Build, Launch, LaunchPlan, Pointer, TensorSpec
from attnprof.model.banks import Conflicts
from attnprof.model.dtypes import Dtype
from attnprof.model.layouts import Layout, Tile
from attnprof.model.patterns import PATTERNS, pattern

FILE = Path(__file__).parent / "kernels" / "banks.cu"
REPEAT = 16  # as in the file
SMEM_BYTES = 32 * 272  # 32 rows of 128 elements and 8 of padding
# P's patterns are those of Q and O in a tile with other rows. The copy has a store beside it; see the file.
SAME_AS = {"p_store": "o_store", "p_load": "q_load", "chunk_store": "tile_store"}
ROW_ELEMENTS = (32, 64, 128)
LAYOUTS = ((Layout.PLAIN, 8), (Layout.PAD, 8), (Layout.PAD, 2), (Layout.SWIZZLE, 8))


@dataclass(frozen=True)
class Case:
    """One micro-kernel and what the model says of one of its requests."""

    pattern: str
    row_elements: int
    layout: Layout
    pad: int
    expected: Conflicts

    @property
    def entry(self) -> str:
        padding = str(self.pad) if self.layout is Layout.PAD else ""
        return f"{self.pattern}_{self.layout}{padding}_{self.row_elements}"

    @property
    def plan(self) -> LaunchPlan:
        build = Build(FILE, (("ELEMENT", "ELEMENT_FP16"),))
        launch = Launch("banks", build, self.entry, (1, 1, 1), (32, 1, 1), SMEM_BYTES, (Pointer("sink"),))
        return LaunchPlan((TensorSpec("sink", (128,), Dtype.FP32, "out"),), (launch,))


def cases() -> Iterator[Case]:
    """Every pattern in every layout where it is possible."""
    names = {each.name: each for each in PATTERNS if each.name not in SAME_AS}
    names["chunk_store"] = pattern(SAME_AS["chunk_store"])
    for row_elements in ROW_ELEMENTS:
        for layout, pad in LAYOUTS:
            for name, each in names.items():
                expected = each.conflicts(Tile(row_elements * 2, layout, pad * 2))
                if expected is not None:
                    yield Case(name, row_elements, layout, pad, expected)


def main() -> None:
    from attnprof.gpu.opening import open_executor

    executor = open_executor()
    for case in cases():
        with executor.prepare(case.plan) as run:
            run.launch()


if __name__ == "__main__":
    main()
