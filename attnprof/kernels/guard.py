"""Kernels that are not our own: what goes wrong in their callbacks becomes one line that says where.

The callbacks of a built-in kernel are called as they are: what they raise is a bug, and keeps its traceback.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attnprof.kernels import described
from attnprof.kernels.candidates import Candidate, no_candidates
from attnprof.kernels.described import Misfit
from attnprof.kernels.spec import KernelSpec, workload_label
from attnprof.model.errors import AttnprofError, DescriptionError
from attnprof.model.workload import Workload

_PACKAGE = Path(__file__).resolve().parent.parent
_HELP = "docs/how-to/your-own-kernel.md says what each callback takes and returns"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a description comes from.

    Attributes:
        name: as the user knows it: the file as it was typed, or an entry point.
        file: its file, resolved, where it is a single one.
    """

    name: str
    file: Path | None = None

    def shown(self, file: str) -> str:
        """A file by the name that the user knows it by."""
        return self.name if self.file is not None and file == str(self.file) else file


def guarded(spec: KernelSpec, origin: Origin) -> KernelSpec:
    """The same kernel; where a callback raises, or returns what no kernel can have, it raises a DescriptionError."""

    def guard(name: str, check: Callable[..., None], finish: Callable[[Any], Any] = lambda value: value) -> Any:
        return _Guarded(spec, name, getattr(spec, name), origin, check, finish)

    def candidate(workload: Workload, each: Candidate) -> Candidate:
        def plan_fits(plan: object) -> None:
            described.check_plan(plan, spec, workload)

        return replace(
            each,
            plan=_Guarded(spec, f"plan of {each.label}", each.plan, origin, plan_fits),
            demand=_Guarded(spec, f"demand of {each.label}", each.demand, origin, described.check_demand),
        )

    def plan_fits(plan: object, workload: Workload, _device: object) -> None:
        described.check_plan(plan, spec, workload)

    changes: dict[str, Any] = {
        "demand": guard("demand", lambda demand, *_: described.check_demand(demand)),
        "unsupported": guard("unsupported", lambda reason, _: described.check_refusal(reason)),
        "plan": guard("plan", plan_fits),
        "builds": guard("builds", lambda builds, _: described.check_builds(builds)),
        "variants": guard(
            "variants", described.check_specs, lambda specs: tuple(guarded(each, origin) for each in specs)
        ),
    }
    if spec.plan_lse is not None:
        changes["plan_lse"] = guard("plan_lse", plan_fits)
    if spec.bshd is not None:
        changes["bshd"] = guard("bshd", described.check_spec, lambda each: guarded(each, origin))
    if spec.candidates is not no_candidates:  # which others compare it with
        candidates = guard("candidates", lambda found, *_: described.check_candidates(found))
        changes["candidates"] = lambda workload, device: tuple(
            candidate(workload, each) for each in candidates(workload, device)
        )
    return replace(spec, **changes)


@dataclass(frozen=True, slots=True, eq=False)
class _Guarded:
    """A callback of a description, called with care: what it returns is checked, then finished."""

    spec: KernelSpec
    name: str
    callback: Callable[..., Any]
    origin: Origin
    check: Callable[..., None]
    finish: Callable[[Any], Any] = lambda value: value

    def __call__(self, *arguments: Any) -> Any:
        """What the callback returns.

        Raises:
            DescriptionError: it raised, or returned what does not fit.
        """
        try:
            value = self.callback(*arguments)
        except (AttnprofError, KeyboardInterrupt):  # what it refuses in our words stays in them
            raise
        except BaseException as error:  # not our code: it may raise anything, and not all of it is an Exception
            place = self._place_of(error)
            if place is None:
                raise
            what = "".join(traceback.format_exception_only(error)).strip()
            raise DescriptionError(f"{self._who(arguments)} failed in {place}: {what}", _HELP) from error
        try:
            self.check(value, *arguments)
        except Misfit as misfit:
            raise DescriptionError(
                f"{self._who(arguments)}, in {self._definition()}: {misfit.what}", misfit.hint or _HELP
            ) from None
        return self.finish(value)

    def _who(self, arguments: tuple[Any, ...]) -> str:
        on = "".join(
            f" on {workload_label(each, self.spec.operation)}" for each in arguments if isinstance(each, Workload)
        )
        return f"{self.spec.name}: {self.name}{on}"

    def _place_of(self, error: BaseException) -> str | None:
        """Where in the description an error was raised or passed through; None where it never was: a bug of ours."""
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is our call
        if not frames:  # the call itself failed: it takes other arguments
            return self._definition()
        theirs = {str(self.origin.file)}
        if not Path(frames[0].filename).is_relative_to(_PACKAGE):
            theirs.add(frames[0].filename)
        lines = [frame for frame in frames if frame.filename in theirs]
        return f"{self.origin.shown(lines[-1].filename)}, line {lines[-1].lineno}" if lines else None

    def _definition(self) -> str:
        """Where the callback is defined, as far as it says."""
        function: Any = self.callback
        while isinstance(function, partial):
            function = function.func
        code = getattr(function, "__code__", None)
        if code is None or Path(code.co_filename).is_relative_to(_PACKAGE):
            return self.origin.name
        return f"{self.origin.shown(code.co_filename)}, line {code.co_firstlineno}"
