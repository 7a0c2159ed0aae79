"""How to verify a kernel."""

from attnprof.check.rows import Case, Check, CheckRow, CheckStatus
from attnprof.check.runner import CheckOptions, run_checks

__all__ = ["Case", "Check", "CheckOptions", "CheckRow", "CheckStatus", "run_checks"]
