"""Reading the values that options take: each refusal says what was wrong, what is allowed, and what to type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from attnprof.model.errors import UsageError
from attnprof.model.suggest import did_you_mean

_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_THOUSANDS = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_COUNT = re.compile(r"([0-9]+)([kmg]?)", re.IGNORECASE)

# So many digits are above every limit, whatever follows; Python would refuse to read some thousands of them.
_MOST_DIGITS = 18

# Beyond these no GPU and no paper: a slip of the hand. Every count below them comes out exact.
MAX_LENGTH = 2**30
MAX_COUNT = 2**20
MAX_SWEEP = 10_000


def count(text: str, option: str, *, largest: int = MAX_COUNT, example: str = "8") -> int:
    """A positive whole number; ``k``, ``m`` and ``g`` multiply by 1024, 1024² and 1024³.

    Raises:
        UsageError: not such a number, 0, or above ``largest``.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{option} {text!r} is not a positive whole number", f"for example: {option} {example} (32k means 32768)"
        )
    if len(match[1]) > 1 and match[1].startswith("0"):
        raise UsageError(
            f"{option} {text!r} has a leading zero",
            f"a comma separates values: write 1024, not 1,024; for example: {option} {example}",
        )
    value = int(match[1][: _MOST_DIGITS + 1]) * _SUFFIXES[match[2].lower()]
    if value == 0:
        raise UsageError(f"{option} must be at least 1, not 0", f"for example: {option} {example}")
    if value > largest:
        raise UsageError(
            f"{option} {_shown(text)} is above the largest allowed, {largest:,}", f"for example: {option} {example}"
        )
    return value


def _shown(text: str) -> str:
    return text if len(text) <= 2 * _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."


def counts(texts: Sequence[str], option: str, *, largest: int = MAX_COUNT, example: str = "8") -> tuple[int, ...]:
    """Comma lists and ranges of counts, given any number of times; order kept, repeats dropped.

    A range is ``first:last:xFACTOR`` (1k:32k:x2) or ``first:last:+STEP`` (1k:8k:+1k), both ends included.
    """
    values: dict[int, None] = {}
    for item in items(texts, option, example):
        for value in (
            _range(item, option, largest, example)
            if ":" in item
            else (count(item, option, largest=largest, example=example),)
        ):
            values[value] = None
            if len(values) > MAX_SWEEP:
                raise UsageError(f"{option} {item} has more than {MAX_SWEEP:,} values", "use a larger step, or xFACTOR")
    return tuple(values)


def perhaps_one_number(text: str) -> bool:
    """Whether a comma list reads like one number with thousands separators, as 32,768 does.

    Lists of powers of two, such as 128,256,512, are what people sweep over, and no power of two looks like them.
    """
    if not _THOUSANDS.fullmatch(text.strip()):
        return False
    return not all(int(group).bit_count() == 1 for group in text.split(","))


def items(texts: Iterable[str], option: str, example: str) -> tuple[str, ...]:
    """Comma lists, taken apart; an empty item is refused."""
    found: list[str] = []
    for text in texts:
        for part in text.split(","):
            if not part.strip():
                raise UsageError(f"{option} {text!r} has an empty value", f"for example: {option} {example}")
            found.append(part.strip())
    return tuple(found)


def choices(texts: Iterable[str], option: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Comma lists of words out of ``allowed``, whatever their case; order kept, repeats dropped."""
    return tuple(dict.fromkeys(choice(item, option, allowed) for item in items(texts, option, allowed[0])))


def choice(text: str, option: str, allowed: Sequence[str]) -> str:
    """One word out of ``allowed``, whatever its case."""
    found = {word.lower(): word for word in allowed}.get(text.strip().lower())
    if found is None:
        raise UsageError(
            f"{option} {text!r} is not known",
            f"{did_you_mean(text.strip(), allowed)}choose from {', '.join(allowed)}: {option} {allowed[0]}",
        )
    return found


def seconds(text: str, option: str, *, example: str = "0.5") -> float:
    """A time in seconds: a positive decimal number with a dot; ``ms`` and ``s`` may follow.

    Raises:
        UsageError: anything else; a decimal comma is named as such.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(ms|s)?", text.strip())
    if match is None:
        comma = "; decimals take a dot, not a comma" if re.fullmatch(r"[0-9]+,[0-9]+", text.strip()) else ""
        raise UsageError(f"{option} {text!r} is not a time in seconds{comma}", f"for example: {option} {example}")
    value = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)
    if not 0 < value <= 86_400:
        raise UsageError(f"{option} {text!r} must be above 0 and at most a day", f"for example: {option} {example}")
    return value


def number(text: str, option: str, *, smallest: float, largest: float, example: str) -> float:
    """A decimal number with a dot, such as 0.125 or 1e-3.

    Raises:
        UsageError: anything else, a decimal comma named as such; outside ``smallest`` to ``largest``.
    """
    if not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", text.strip(), re.IGNORECASE):
        comma = "; decimals take a dot, not a comma" if re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text.strip()) else ""
        raise UsageError(f"{option} {text!r} is not a number{comma}", f"for example: {option} {example}")
    value = float(text)
    if not smallest <= value <= largest:
        raise UsageError(
            f"{option} {text} must lie between {smallest:g} and {largest:g}", f"for example: {option} {example}"
        )
    return value


def whole(text: str, option: str, *, example: str = "0") -> int:
    """A whole number from 0 to 2^63 − 1."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or int(text) >= 2**63:
        raise UsageError(
            f"{option} {text!r} is not a whole number from 0 to 2^63 - 1", f"for example: {option} {example}"
        )
    return int(text)


def kernel_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Kernel names and files. A comma separates them, unless the whole text is a file's name."""
    names: list[str] = []
    for text in texts:
        names += [text] if text.endswith(".py") and Path(text).is_file() else items([text], "--kernel", "naive,fa2")
    return tuple(dict.fromkeys(names))


def _range(item: str, option: str, largest: int, example: str) -> tuple[int, ...]:
    form = f"a range is FIRST:LAST:xFACTOR or FIRST:LAST:+STEP: {option} 1k:32k:x2"
    parts = item.split(":")
    if len(parts) != 3:
        raise UsageError(f"{option} {item!r} is not a range: it needs a first, a last and a step", form)
    first, last = (count(part, option, largest=largest, example=example) for part in parts[:2])
    step = parts[2]
    if step[:1] not in ("x", "X", "+"):
        raise UsageError(f"{option} {item!r}: the step {step!r} starts with neither x nor +", form)
    try:
        by = count(step[1:], f"{option} {item}: step", largest=largest)
    except UsageError as error:
        raise UsageError(error.message, form) from None
    if first > last:
        raise UsageError(
            f"{option} {item!r} runs backwards", f"put the smaller end first: {option} {parts[1]}:{parts[0]}:{step}"
        )
    if step[0] == "+":
        if (last - first) // by >= MAX_SWEEP:
            raise UsageError(f"{option} {item} has more than {MAX_SWEEP:,} values", "use a larger step, or xFACTOR")
        return tuple(range(first, last + 1, by))
    if by == 1:
        raise UsageError(f"{option} {item!r}: multiplying by 1 never reaches the end", form)
    values: list[int] = []
    while first <= last:
        values.append(first)
        first *= by
    return tuple(values)
