"""What somebody who mistyped a name may have meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_MOST = 3


def did_you_mean(typed: str, names: Iterable[str]) -> str:
    """``did you mean fa2 or fa1? ``, to put before a list of all names; empty where none is like it, in any case."""
    return closest(typed.casefold(), {name.casefold(): name for name in names})


def closest(typed: str, names: Mapping[str, str]) -> str:
    """The same for names that are compared by keys of their own; several keys may have one name."""
    import difflib  # a command without a mistake does without it

    found = [typed] if typed in names else difflib.get_close_matches(typed, names, n=_MOST)
    return f"did you mean {' or '.join(dict.fromkeys(names[key] for key in found))}? " if found else ""
