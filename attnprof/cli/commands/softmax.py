"""``attnprof softmax``: the online softmax of a few numbers, step by step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from attnprof.cli import numbers as reading
from attnprof.cli import options, values
from attnprof.cli.command import Command
from attnprof.cli.exits import ExitCode
from attnprof.cli.output import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnprof.model.softmax import NaiveHalfSoftmax

EXAMPLE = "attnprof softmax 1,3,2,4 --block 2"


def softmax(
    context: typer.Context,
    numbers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NUMBERS", help="Numbers, separated by commas or spaces; -inf is masked; - reads stdin."
        ),
    ] = None,
    block: Annotated[str, typer.Option("--block", metavar="N", help="Numbers that come in at a time.")] = "2",
    as_json: options.Json = False,
    as_csv: options.Csv = False,
    as_md: options.Md = False,
    output_files: options.OutputFiles = None,
) -> int:
    """Show the online softmax of numbers, step by step.

    After each block the running maximum, the factor that corrects the old sum, and the new sum; then the
    probabilities, beside the three-pass softmax and what comes of leaving out the maximum in fp16.
    """
    from attnprof.model.softmax import naive_half_softmax, normalise, online_softmax, safe_softmax
    from attnprof.report import softmax as view

    env = context.obj
    out = output(env, as_json=as_json, as_csv=as_csv, as_md=as_md, files=output_files)
    size = values.count(block, "--block", example="2")
    x = reading.read(env, numbers or [], EXAMPLE)
    steps = online_softmax(x, size)
    online, safe = normalise(x, steps[-1]), safe_softmax(x)
    naive = naive_half_softmax(x)
    difference = max(abs(a - b) for a, b in zip(online, safe, strict=True))
    fields = {
        "count": len(x),
        "block": size,
        "max": steps[-1].max,
        "sum": steps[-1].sum,
        "probabilities": online,
        "three_pass_probabilities": safe,
        "max_difference": difference,
        "naive_fp16": {
            "sum": naive.sum,
            "probabilities": naive.probabilities,
            "max_difference": _largest_difference(naive, safe),
            "overflows": math.isinf(naive.sum),
        },
    }
    out.show(view.report(x, size, steps, online, safe, naive, fields))
    return ExitCode.OK


def _largest_difference(naive: NaiveHalfSoftmax, safe: Sequence[float]) -> float | None:
    """None where the naive one gives no numbers."""
    if any(math.isnan(p) for p in naive.probabilities):
        return None
    return max(abs(a - b) for a, b in zip(naive.probabilities, safe, strict=True))


COMMAND = Command(softmax, order=90, example=EXAMPLE, negative_numbers=True)
