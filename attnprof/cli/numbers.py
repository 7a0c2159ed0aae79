"""Reading lists of numbers, from the command line or from standard input."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from attnprof.cli.environment import Environment
from attnprof.model.errors import UsageError

MOST_NUMBERS = 2**20
# What a number takes in text, generously: with it, input without an end is refused before it fills the memory.
_MOST_CHARACTERS = 32 * MOST_NUMBERS
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]+")
_PERHAPS_A_DECIMAL = re.compile(r"[+-]?0,[0-9]+")
_MOST_QUOTED = 40
# What stands for bytes that are not UTF-8 where Python lets them pass (PEP 383).
_UNDECODED = re.compile("[\udc80-\udcff]")


def read(environment: Environment, texts: Sequence[str], example: str) -> tuple[float, ...]:
    """The numbers of the command line; of standard input where that is a single ``-``.

    Raises:
        UsageError: none, too many, or something that is no finite number and not -inf.
    """
    for text in texts:
        if text.startswith("-") and not re.match(r"-(?:$|[0-9.,\s]|inf|nan)", text, re.IGNORECASE):
            raise UsageError(f"No such option: {text}", f"attnprof softmax --help lists what is allowed; or: {example}")
    if list(texts) == ["-"]:
        return parse(_standard_input(environment), "standard input", example)
    if "-" in texts:
        raise UsageError("- reads all numbers from standard input", f"give either numbers or -; for example: {example}")
    joined = " ".join(texts)
    found = parse(joined, "the command line", example)
    if _PERHAPS_A_DECIMAL.fullmatch(joined):
        whole, decimals = joined.split(",")
        environment.err(
            f"warning: a comma separates numbers: {joined} is {whole} and {decimals}; one number is {whole}.{decimals}"
        )
    return found


def parse(text: str, where: str, example: str) -> tuple[float, ...]:
    """Numbers separated by commas or white space, whatever the locale.

    Raises:
        UsageError: as for `read`.
    """
    # A minus sign as typesetting has it, pasted from a paper.
    stripped = text.replace("\u2212", "-").strip()
    if not stripped:
        raise UsageError(f"there are no numbers on {where}", f"for example: {example}")
    if ";" in stripped:
        raise UsageError(
            "a semicolon separates nothing here", f"numbers are separated by commas, decimals take a dot: {example}"
        )
    items = re.split(r"\s*,\s*|\s+", stripped)
    if len(items) > MOST_NUMBERS:
        raise UsageError(f"{len(items):,} numbers are more than the {MOST_NUMBERS:,} allowed", "give fewer")
    return tuple(_number(item, example) for item in items)


def _number(item: str, example: str) -> float:
    if not item:
        raise UsageError("there is an empty value between two commas, or at an end", f"for example: {example}")
    shown = item if len(item) <= _MOST_QUOTED else f"{item[:_MOST_QUOTED]}..."
    if not _NUMBER.fullmatch(item):
        raise UsageError(f"{shown!r} is not a number", f"numbers are separated by commas or spaces: {example}")
    if _LEADING_ZERO.fullmatch(item):
        raise UsageError(
            f"{shown!r} has a leading zero: a comma separates numbers",
            f"decimals take a dot, as in 0.5; for example: {example}",
        )
    value = float(item)
    if math.isinf(value) and "inf" not in item.lower():
        raise UsageError(
            f"{shown} is beyond the largest double, 1.8e308", "write -inf for a masked value, or a smaller number"
        )
    return value


def _standard_input(environment: Environment) -> str:
    if environment.stdin is None:
        raise UsageError("there is no standard input to read", "give the numbers on the command line")
    try:
        text = environment.stdin.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError as problem:
        raise UsageError(f"standard input is not text: {problem.reason}", "give numbers separated by commas") from None
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"standard input is longer than {MOST_NUMBERS:,} numbers can be", "give fewer")
    if _UNDECODED.search(text):  # under the C locale Python lets any byte pass
        raise UsageError("standard input is not text: it is not UTF-8", "give numbers separated by commas")
    return text.removeprefix("\ufeff")  # the byte order mark that Windows tools write
