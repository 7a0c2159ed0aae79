"""Random structured programs: what diverging lanes compute together equals what each thread computes alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnprof.emulator import Mode
from tests.unit.emulator.emulator_harness import Bench, op_kernel

VARIABLES = 4
MASK = 0xFFFFFFFF
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b,
    "sub.u32": lambda a, b: a - b,
    "mul.lo.u32": lambda a, b: a * b,
    "xor.b32": lambda a, b: a ^ b,
    "min.u32": min,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
}


class Exited(Exception):
    """The thread left the program."""


def statements(rng: random.Random, depth: int) -> list[tuple[Any, ...]]:
    """A block: assignments, branches, loops of a few data-dependent rounds, early exits, predicated assignments."""
    block: list[tuple[Any, ...]] = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if depth and kind < 0.3:
            block.append(("if", rng.randrange(VARIABLES), rng.choice([1, 2, 4, 8]), statements(rng, depth - 1),
                          statements(rng, depth - 1) if rng.random() < 0.6 else [], rng.random() < 0.5))  # fmt: skip
        elif depth and kind < 0.5:
            block.append(("loop", rng.randrange(VARIABLES), statements(rng, depth - 1)))
        elif kind < 0.55:
            block.append(("exit", rng.randrange(VARIABLES), rng.choice([16, 32])))
        elif kind < 0.65:
            block.append(("guarded", rng.randrange(VARIABLES), rng.randrange(VARIABLES), rng.randrange(1, 99)))
        elif kind < 0.7:
            block.append(("call", rng.randrange(VARIABLES), rng.randrange(VARIABLES)))
        else:
            block.append(("set", rng.choice(list(OPERATIONS)), rng.randrange(VARIABLES), rng.randrange(VARIABLES),
                          rng.randrange(VARIABLES)))  # fmt: skip
    return block


def interpret(block: list[tuple[Any, ...]], x: list[int]) -> None:
    """What one thread does."""
    for statement in block:
        match statement:
            case ("set", op, to, a, b):
                x[to] = OPERATIONS[op](x[a], x[b]) & MASK
            case ("if", condition, bit, then, otherwise, _):
                interpret(then if x[condition] & bit else otherwise, x)
            case ("loop", bound, body):
                for _ in range(x[bound] & 3):
                    interpret(body, x)
            case ("exit", condition, bit):
                if x[condition] & (bit | 1) == bit | 1:
                    raise Exited
            case ("guarded", condition, to, constant):
                if x[condition] < x[to]:
                    x[to] = constant
            case ("call", to, source):
                x[to] = x[source] * 3 & MASK if x[source] & 4 else x[source] + 7 & MASK


class Emitter:
    """The same program as PTX. The far side of a branch may stand at the end, as compilers place unlikely blocks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.later: list[list[str]] = []
        self.labels = 0

    def label(self) -> str:
        self.labels += 1
        return f"$L{self.labels}"

    def emit(self, block: list[tuple[Any, ...]]) -> None:
        out = self.lines.append
        for statement in block:
            match statement:
                case ("set", op, to, a, b):
                    out(f"{op} %x{to}, %x{a}, %x{b};")
                case ("if", condition, bit, then, otherwise, far):
                    self.branch(condition, bit, then, otherwise, far)
                case ("loop", bound, body):
                    counter, top, end = f"%n{self.labels}", self.label(), self.label()
                    out(f".reg .u32 {counter}; .reg .pred {counter}p; and.b32 {counter}, %x{bound}, 3;")
                    out(f"{top}: setp.eq.u32 {counter}p, {counter}, 0; @{counter}p bra {end};")
                    self.emit(body)
                    self.lines.append(f"sub.u32 {counter}, {counter}, 1; bra.uni {top}; {end}:")
                case ("exit", condition, bit):
                    out(f"and.b32 %y, %x{condition}, {bit | 1}; setp.eq.u32 %p, %y, {bit | 1}; @%p exit;")
                case ("guarded", condition, to, constant):
                    out(f"setp.lt.u32 %p, %x{condition}, %x{to}; @%p mov.u32 %x{to}, {constant};")
                case ("call", to, source):
                    out(f"{{ .param .b32 a; .param .b32 r; st.param.b32 [a], %x{source};")
                    out(f"call (r), helper, (a); ld.param.b32 %x{to}, [r]; }}")

    def branch(self, condition: int, bit: int, then: Any, otherwise: Any, far: bool) -> None:
        end, other = self.label(), self.label()
        test = f"and.b32 %y, %x{condition}, {bit}; setp.ne.u32 %p, %y, 0;"
        if far:
            self.lines.append(f"{test} @%p bra {other};")
            self.emit(otherwise)
            self.lines.append(f"{end}:")
            inner = Emitter()
            inner.labels = self.labels + 1000 * (len(self.later) + 1)
            inner.lines.append(f"{other}:")
            inner.emit(then)
            self.labels = inner.labels
            self.later += [[*inner.lines, f"bra {end};"], *inner.later]
        else:
            self.lines.append(f"{test} @!%p bra {other};")
            self.emit(then)
            self.lines.append(f"bra.uni {end}; {other}:")
            self.emit(otherwise)
            self.lines.append(f"{end}:")


HELPER = """
.func (.param .b32 result) helper(.param .b32 value)
{
.reg .u32 %v, %w; .reg .pred %q;
ld.param.u32 %v, [value];
and.b32 %w, %v, 4; setp.eq.u32 %q, %w, 0;
@%q bra PLUS;
mul.lo.u32 %v, %v, 3;
st.param.b32 [result], %v;
ret;
PLUS: add.u32 %v, %v, 7;
st.param.b32 [result], %v;
ret;
}
"""


def as_ptx(program: list[tuple[Any, ...]]) -> str:
    emitter = Emitter()
    emitter.emit(program)
    start = "".join(f"mul.lo.u32 %x{n}, %a, {2 * n + 1}; " for n in range(VARIABLES))
    total = "mov.u32 %d, %x0; " + "".join(f"mad.lo.u32 %d, %d, 31, %x{n}; " for n in range(1, VARIABLES))
    body = f".reg .u32 %x<{VARIABLES}>, %y; {start}\n" + "\n".join(emitter.lines) + f"\n{total}"
    text = op_kernel(body, [np.dtype("u4")], np.dtype("u4"))
    far = "\n".join(line for block in emitter.later for line in block)
    at = text.rindex("}")
    return (text[:at] + far + "\n}\n").replace(".visible .entry", HELPER + ".visible .entry")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_lanes_together_equal_threads_alone(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    program = statements(rng, 3)
    values = [rng.randrange(200) for _ in range(96)]
    expected = []
    for value in values:
        x = [value * (2 * n + 1) for n in range(VARIABLES)]
        try:
            interpret(program, x)
        except Exited:
            expected.append(MASK)  # nothing was stored over the poison
            continue
        total = x[0]
        for v in x[1:]:
            total = (total * 31 + v) & MASK
        expected.append(total)
    bench = Bench(tmp_path, None)  # type: ignore[arg-type]
    outcome = bench.run(
        as_ptx(program),
        "k",
        {"a": np.array(values, "u4"), "out": np.zeros(96, "u4")},
        outputs=("out",),
        block=(48, 1, 1),
        grid=(2, 1, 1),
        ptx=True,
        mode=Mode.ALL,
    )
    assert outcome.outputs["out"].tolist() == expected
    counters = outcome.trace.counters
    assert counters.thread_instructions <= 32 * counters.warp_instructions
