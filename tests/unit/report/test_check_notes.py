"""What ``check`` says below its table."""

from __future__ import annotations

from typing import Any

from attnprof.report.check import notes


def row(kernel: str, check: str, arch: str | None, status: str, detail: str) -> dict[str, Any]:
    return {"kernel": kernel, "check": check, "arch": arch, "status": status, "detail": detail}


def test_a_reason_is_said_once_and_failures_first() -> None:
    rows = [
        row("naive", "compile", "sm_80", "skipped", "no compiler"),
        row("naive", "compile", "sm_90a", "skipped", "no compiler"),
        row("naive", "numerics", None, "skipped", "no compiler"),
        row("naive", "spills", "sm_80", "pass", ""),
        row("fa2", "spills", "sm_80", "fail", "8 bytes"),
    ]
    assert notes(rows) == (
        "fail: fa2 spills sm_80: 8 bytes",
        "skipped: naive compile sm_80/sm_90a, naive numerics: no compiler",
    )
