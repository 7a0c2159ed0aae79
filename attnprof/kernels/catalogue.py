"""The catalogue: every kernel the tool knows, built in, installed by other packages, or given as a file.

Built-in kernels are found, not listed: a module in `attnprof.kernels.ladder` with a ``SPECS`` tuple is all it takes.
Other packages register an ``attnprof.kernels`` entry point that names a KernelSpec or a tuple of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path

from attnprof.kernels import ladder
from attnprof.kernels.guard import Origin, guarded
from attnprof.kernels.spec import KernelSpec
from attnprof.model.errors import AttnprofError, UsageError
from attnprof.model.suggest import did_you_mean

ENTRY_POINT_GROUP = "attnprof.kernels"
_OF_A_PACKAGE = "update or remove that package"


@cache
def builtin() -> tuple[KernelSpec, ...]:
    """The ladder, lowest rung first."""
    specs: list[KernelSpec] = []
    for module in pkgutil.iter_modules(ladder.__path__):
        specs.extend(importlib.import_module(f"{ladder.__name__}.{module.name}").SPECS)
    return tuple(sorted(specs, key=lambda spec: (spec.rung, spec.name)))


@cache
def catalogue() -> tuple[KernelSpec, ...]:
    """The built-in kernels, then those that installed packages register."""
    from importlib.metadata import entry_points

    specs = {spec.name: spec for spec in builtin()}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        where = f"entry point {point.name} ({point.value})"
        with _imported(where):
            value = point.load()
        for spec in _guarded(_specs_in(value, where), Origin(where)):
            held = specs.setdefault(spec.name, spec)
            if held is not spec:
                raise UsageError(f"{where} has a kernel called {spec.name}, and so has another", _OF_A_PACKAGE)
    return tuple(specs.values())


def select(names: Iterable[str]) -> tuple[KernelSpec, ...]:
    """The kernels of these names, in the given order and without repeats.

    ``all`` stands for the whole catalogue; a name that ends in ``.py`` is a file that holds KernelSpecs.

    Raises:
        UsageError: an unknown name; a file (or an installed package) that holds no KernelSpec or can't be imported; two
            kernels of one name, which rows, saved runs and kept tiles could not tell apart.
    """
    chosen = {spec.name: (spec, "the built-in one") for spec in builtin()}
    selected: dict[str, KernelSpec] = {}
    files: dict[Path, tuple[KernelSpec, ...]] = {}
    for name in names:
        for spec in _resolve(name, files):
            whose = f"one of {name}" if name.endswith(".py") else "one of an installed package"
            held, other = chosen.setdefault(spec.name, (spec, whose))
            if held is not spec:
                hint = f'give yours a name of its own, as in KernelSpec(name="my-{spec.name}", ...)'
                raise UsageError(f"two kernels are called {spec.name}: {other} and {whose}", hint)
            selected[spec.name] = spec
    return tuple(selected.values())


def _resolve(name: str, files: dict[Path, tuple[KernelSpec, ...]]) -> tuple[KernelSpec, ...]:
    """The kernels that a name stands for. ``files`` keeps those of files: one that is named twice is run once."""
    if name.endswith(".py"):
        file = Path(name).resolve()
        if file not in files:
            files[file] = _from_file(Path(name))
        return files[file]
    if name == "all":
        return catalogue()
    # The ladder first: entry points cost a scan of the installed packages.
    found = _called(name, builtin()) or _called(name, catalogue())
    if found is None:
        raise _unknown(name)
    return (found,)


def _called(name: str, specs: Iterable[KernelSpec]) -> KernelSpec | None:
    return next((spec for spec in specs if spec.name == name), None)


def _unknown(name: str) -> UsageError:
    """What to say of a name that no kernel has."""
    if name.endswith(".cu"):
        return UsageError(
            f"{name} is CUDA source: --kernel takes the .py file that describes it",
            "docs/how-to/your-own-kernel.md shows one; then --kernel ./mine.py",
        )
    base, bracket, variant = name.removesuffix("]").partition("[")
    spec = _called(base, catalogue()) if bracket else None
    if spec is not None:
        spec.variant(variant)
        return UsageError(
            f"{name} is a variant, and no kernel of its own",
            f"bench, check and trace take it as --kernel {base} --variant {variant}",
        )
    known = [spec.name for spec in catalogue()]
    return UsageError(
        f"unknown kernel {name!r}",
        f"{did_you_mean(name, known)}choose from {', '.join(known)}, or all; or give a file: --kernel ./mine.py",
    )


def _from_file(path: Path) -> tuple[KernelSpec, ...]:
    if not path.is_file():
        raise UsageError(f"no such file: {path}", "--kernel takes a name from `attnprof kernels` or a .py file")
    module_spec = importlib.util.spec_from_file_location(f"attnprof_user_kernel_{path.stem}", path.resolve())
    if module_spec is None or module_spec.loader is None:
        raise UsageError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(module_spec)
    # Dataclasses look their module up by name.
    sys.modules[module_spec.name] = module
    with _imported(str(path), file=path.resolve()):
        module_spec.loader.exec_module(module)
    found = tuple(spec for value in vars(module).values() for spec in _as_specs(value)) or _specs_in(None, str(path))
    return _guarded(found, Origin(str(path), path.resolve()))


def _guarded(specs: Iterable[KernelSpec], origin: Origin) -> tuple[KernelSpec, ...]:
    """The kernels, each once: built-in ones that were imported as they are, the others guarded."""
    ours = {id(spec) for spec in builtin()}
    once = {id(spec): spec for spec in specs}
    return tuple(spec if at in ours else guarded(spec, origin) for at, spec in once.items())


@contextmanager
def _imported(where: str, file: Path | None = None) -> Iterator[None]:
    """Turn whatever importing a user's module raises into one line, with the line of ``file`` that was executing.

    What the module prints goes to stderr: stdout is for results.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (AttnprofError, KeyboardInterrupt):
        raise
    except BaseException as error:  # not our code: it may raise anything, and not all of it is an Exception
        line = _line_of(error, file) if file is not None else None
        parts = [f"cannot import {where}", *([f"line {line}"] if line else []), type(error).__name__]
        what = _text(error, line)
        hint = f"python {where} shows the whole traceback" if file is not None else _OF_A_PACKAGE
        raise UsageError(": ".join([*parts, *([what] if what else [])]), hint) from error


def _text(error: BaseException, line: int | None) -> str:
    """What an error says; a SyntaxError without the place that is named already."""
    if isinstance(error, SyntaxError):
        return error.msg if error.lineno == line else str(error)
    # As a traceback ends, which takes care of a __str__ that raises.
    return traceback.format_exception_only(error)[0].partition(": ")[2].strip()


def _line_of(error: BaseException, file: Path) -> int | None:
    """The line of a file where an error was raised or passed through, or that is no Python."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return lines[-1] if lines else None


def _as_specs(value: object) -> tuple[KernelSpec, ...]:
    if isinstance(value, KernelSpec):
        return (value,)
    if isinstance(value, tuple) and value and all(isinstance(item, KernelSpec) for item in value):
        return value
    return ()


def _specs_in(value: object, where: str) -> tuple[KernelSpec, ...]:
    specs = _as_specs(value)
    if not specs:
        raise UsageError(f"{where} holds no KernelSpec", "see docs/how-to/your-own-kernel.md")
    return specs
