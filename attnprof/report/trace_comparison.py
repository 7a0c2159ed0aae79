"""What the emulator counted, set beside what the model predicts, and the difference in words.

A stage of the Demand has a row for its matrix FLOPs, its exponentials, and each tensor that its ledger names. Launches
of the emulator are plain records here (``KernelTrace.as_json``); several may carry out one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnprof.model.demand import Stage
from attnprof.model.workload import Workload
from attnprof.report import units
from attnprof.report.document import Row

FLOPS = "matrix FLOP"
EXPONENTIALS = "exponentials"
RESCALING = "exponentials, rescaling"

_SCORES = ("S", "P", "dS", "dP")
# Tensors that a plan does not name as the ledger does: P overwrites S, dS overwrites dP, and a backward's gradient of O
# is ``dout`` (see KernelSpec).
_OTHERWISE = {"p": "s", "ds": "dp", "do": "dout"}
# Products, and the exponentials with them, by whether there is a causal mask.
_BEYOND = {
    False: "the last tiles, which the length does not fill, are computed whole; the model counts the pairs",
    True: "tiles that the mask's diagonal cuts, and last ones that the length does not fill, are computed whole; the "
    "model counts the pairs that the mask allows",
}

# Exponentials without products.
_PADDING = (
    "lanes beyond the end of a row, or beyond the mask, compute on padding, and sums merged across lanes take "
    "exponentials of their own; the model counts those of the elements"
)


def compare(launches: Sequence[Mapping[str, Any]], stage: Stage | None) -> list[dict[str, Any]]:
    """The quantities of one stage that the model speaks of.

    Each has ``counted``, ``predicted`` and ``difference`` (None where one of the two is unknown); tensors also have
    ``asked_bytes``, which counts a byte as often as a lane asks for it. Bytes are ``counted`` once a launch, however
    often it touches them, and so are ``predicted``: a ledger with several passes over a tensor has a line for each.

    Args:
        launches: the plain records of the launches that carry out the stage, at least one.
        stage: the stage of the Demand; None where the model has none of that name.
    """
    launch = _together(launches)
    flops, exponentials = launch["matrix_flops"], launch["exponentials"]
    predicted_flops = stage.tensor_flops if stage is not None else None
    predicted_exponentials = stage.exponentials if stage is not None else None
    rows = []
    if flops or predicted_flops:
        rows.append(_quantity(launch, FLOPS, flops, predicted_flops))
    rescaling = rescaling_exponentials(launch, stage)
    if exponentials or predicted_exponentials:
        rows.append(_quantity(launch, EXPONENTIALS, exponentials - (rescaling or 0), predicted_exponentials))
    if rescaling:
        rows.append(_quantity(launch, RESCALING, rescaling, None))
    return [*rows, *_tensors(launch, stage)]


def rescaling_exponentials(launch: Mapping[str, Any], stage: Stage | None) -> int | None:
    """Exponentials beyond those of the pairs that were multiplied, in a launch that multiplies and exponentiates.

    Such a launch (a fused attention) evaluates the predicted number of exponentials for every pair in the tiles that
    it multiplies, those beyond mask and length included; how many pairs that are, its matrix FLOPs say. What is left
    rescales the output when a row's maximum grows. None where this cannot be told: no products, or fewer exponentials
    than pairs (a kernel that skips masked ones).
    """
    if stage is None or not stage.tensor_flops or not stage.exponentials:
        return None
    of_pairs, rest = divmod(stage.exponentials * launch["matrix_flops"], stage.tensor_flops)
    left = launch["exponentials"] - of_pairs
    return left if rest == 0 and left >= 0 else None


def _together(launches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several launches of a stage add up to."""
    tensors: dict[str, dict[str, Any]] = {}
    for launch in launches:
        for tensor in launch["tensors"]:
            sums = tensors.setdefault(tensor["name"], {"name": tensor["name"]})
            for key, value in tensor.items():
                if key != "name":
                    sums[key] = sums.get(key, 0) + value
    return {
        "stage": launches[0]["stage"],
        "matrix_flops": sum(launch["matrix_flops"] for launch in launches),
        "exponentials": sum(launch["exponentials"] for launch in launches),
        "tensors": list(tensors.values()),
    }


def explain(rows: Sequence[Row], workload: Workload) -> tuple[str, ...]:
    """Why counted and predicted differ, one line a cause; nothing where they don't."""
    differing = [row for row in rows if row["difference"]]
    work = [row for row in differing if row["direction"] is None]
    scores = [row for row in differing if row["tensor"] in _SCORES]
    others = [row for row in differing if row["direction"] is not None and row not in scores]
    found: list[str] = []
    multiplying = {row["stage"] for row in rows if row["quantity"] == FLOPS}
    for stages_multiply, why in ((True, _BEYOND[workload.causal]), (False, _PADDING)):
        more = [row for row in work if row["difference"] > 0 and (row["stage"] in multiplying) == stages_multiply]
        if more:
            found.append(f"{_listed(more, _times)}: {why}.")
    if wider := _wider_than_heads(work):
        found.append(
            f"{_listed(wider)}: more besides, as products are as wide as the tiles, wider than head dim "
            f"{workload.head_dim}."
        )
    if fewer := [row for row in work if row["difference"] < 0]:
        found.append(f"{_listed(fewer, _times)}: the kernel does less than the model counts.")
    if any(row["quantity"] == RESCALING for row in rows):
        found.append(
            "Exponentials of rescaling correct what was summed before a row's maximum grew. How many depends on the "
            "data, the tiles, and how many lanes share a row, so the model leaves them out."
        )
    if scores:
        found.append(
            f"{_listed(scores, _bytes)}: whole tiles and padded rows are moved where the ledger counts the pairs that "
            "the mask allows."
        )
    if more := [row for row in others if row["difference"] > 0]:
        found.append(f"{_listed(more, _bytes)}: more than the ledger's line.")
    if fewer := [row for row in others if row["difference"] < 0]:
        found.append(f"{_listed(fewer, _bytes)}: never touched, as where the mask leaves a row without a key.")
    if unnamed := [row for row in rows if row["direction"] and row["predicted"] is None]:
        found.append(f"No line of the ledger speaks of {_listed(unnamed)}.")
    if missing := [row for row in rows if row["direction"] and row["counted"] is None]:
        found.append(f"The ledger speaks of {_listed(missing)}, but the launch has no such tensor.")
    return tuple(found)


def _wider_than_heads(work: Sequence[Row]) -> list[Row]:
    """Of the quantities that differ: products that exceed the model by more than the exponentials of their stage."""
    excess = {
        (row["stage"], row["quantity"]): row["counted"] / row["predicted"]
        for row in work
        if row["difference"] > 0 and row["predicted"]
    }
    return [
        row
        for row in work
        if row["quantity"] == FLOPS
        and (row["stage"], EXPONENTIALS) in excess
        and excess.get((row["stage"], FLOPS), 0.0) > excess[row["stage"], EXPONENTIALS]
    ]


def _listed(rows: Sequence[Row], figure: Callable[[Row], str] | None = None) -> str:
    """``matrix FLOP of scores (3.27×), S write of scores (+4,232 B)``."""
    names = (f"{row['quantity'].removesuffix(', B')} of {row['stage']}" for row in rows)
    figures = (f" ({figure(row)})" if figure else "" for row in rows)
    return ", ".join(name + shown for name, shown in zip(names, figures, strict=True))


def _times(row: Row) -> str:
    return units.ratio(row["counted"] / row["predicted"]) if row["predicted"] else "the model counts none"


def _bytes(row: Row) -> str:
    return f"{row['difference']:+,} B"


def _quantity(launch: Mapping[str, Any], quantity: str, counted: int | None, predicted: int | None) -> dict[str, Any]:
    return {
        "stage": launch["stage"],
        "quantity": quantity,
        "tensor": None,
        "direction": None,
        "counted": counted,
        "predicted": predicted,
        "difference": None if counted is None or predicted is None else counted - predicted,
        "asked_bytes": None,
    }


def _tensors(launch: Mapping[str, Any], stage: Stage | None) -> list[dict[str, Any]]:
    tensors = {tensor["name"]: tensor for tensor in launch["tensors"]}
    predicted: dict[tuple[str, str], tuple[str, int]] = {}
    for line in stage.ledger if stage is not None else ():
        key = (_tensor_name(line.tensor, tensors), line.direction)
        predicted[key] = (line.tensor, max(line.bytes, predicted.get(key, ("", 0))[1]))
    rows = [
        _tensor_row(launch, shown, direction, tensors.get(name), size)
        for (name, direction), (shown, size) in predicted.items()
        if size or tensors.get(name, {}).get(f"unique_{direction}_bytes")
    ]
    rows += [
        _tensor_row(launch, name, direction, tensor, None)
        for name, tensor in tensors.items()
        for direction in ("read", "write")
        if tensor[f"unique_{direction}_bytes"] and (name, direction) not in predicted
    ]
    return rows


def _tensor_name(ledger_name: str, tensors: Mapping[str, Any]) -> str:
    """The plan's tensor that a ledger line is about: ``q`` for Q, ``o_fp32`` for O fp32, or as in `_OTHERWISE`."""
    name = ledger_name.lower().replace(" ", "_")
    return name if name in tensors else _OTHERWISE.get(name, name)


def _tensor_row(
    launch: Mapping[str, Any], shown: str, direction: str, tensor: Mapping[str, Any] | None, predicted: int | None
) -> dict[str, Any]:
    counted = None if tensor is None else tensor[f"unique_{direction}_bytes"]
    return {
        **_quantity(launch, f"{shown} {direction}, B", counted, predicted),
        "tensor": shown,
        "direction": direction,
        "asked_bytes": None if tensor is None else tensor[f"{direction}_bytes"],
    }
