"""A refused compilation's log, turned into one line and the right kind of error."""

from __future__ import annotations

import re
from pathlib import Path

from attnprof.compiler.headers import install_hint, is_cuda_header
from attnprof.model.errors import AttnprofError, CompileError, EnvironmentProblem

_SOURCE_ERROR = re.compile(
    r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?(?:fatal )?error(?: #[\w-]+)?: (?P<text>.+)$"
)
_MISSING_FILE = re.compile(r'c(?:annot|ould not) open source file "([^"]+)"')
# "ptxas error   : …", "ptxas fatal   : …" and "ptxas application ptx input, line 27; error   : …".
_PTXAS_ERROR = re.compile(r"ptxas (?:application ptx input, line \d+; )?(?:error|fatal)\s*: (.+)$")
_OPTION_ERROR = re.compile(r"^nvrtc: error: (.+)$")


def refusal(log: str, file: Path, roots: tuple[Path, ...], nvrtc_major: int) -> AttnprofError:
    """The error to raise for a refused source.

    Args:
        log: NVRTC's program log.
        file: the ``.cu`` file, for messages that name no file (ptxas).
        roots: folders against which file names are shortened.
        nvrtc_major: for the hint that names the wheel of a missing CUDA header.

    Returns:
        EnvironmentProblem when a CUDA header is missing, CompileError otherwise.
    """
    for line in log.splitlines():
        if match := _SOURCE_ERROR.match(line.strip()):
            where = Path(match["file"])
            missing = _MISSING_FILE.search(match["text"])
            if missing and (is_cuda_header(missing[1]) or is_cuda_header(where.name)):
                return EnvironmentProblem(
                    f"the CUDA header {missing[1]} is missing ({where.name} includes it)",
                    install_hint(missing[1], nvrtc_major),
                )
            return CompileError(f"{_shortened(where, roots)}:{match['line']}: {match['text']}", log=log)
        if match := _PTXAS_ERROR.search(line):
            return CompileError(f"{_shortened(file, roots)}: ptxas: {match[1]}", log=log)
        if match := _OPTION_ERROR.match(line.strip()):
            return CompileError(f"{_shortened(file, roots)}: NVRTC: {match[1]}", log=log)
    return CompileError(f"{_shortened(file, roots)}: NVRTC refused it and did not say why", log=log)


def _shortened(path: Path, roots: tuple[Path, ...]) -> str:
    for root in roots:
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)
