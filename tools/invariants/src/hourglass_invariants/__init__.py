"""Standing invariants of the shop, one SQL file each, over the databases of orders, payments and gateway.

    sources = Sources(orders="sqlite+aiosqlite:///orders.db", payments="...", gateway="...")
    for violation in await check(sources, now_ms):
        print(violation)

Checks marked `always` hold at any moment; `quiet` ones hold for what has not changed for `grace_ms`.
"""

from hourglass_invariants.checking import (
    COMPLETION_AFTER_MS,
    GRACE_MS,
    Check,
    CheckResult,
    Kind,
    Sources,
    Violation,
    check,
    run_checks,
)
from hourglass_invariants.sources import read_sources
from hourglass_invariants.wanted import (
    WANTED,
    Columns,
    InvariantsError,
    Rows,
    SchemaMismatchError,
    SourceUnavailableError,
)

__all__ = [
    "COMPLETION_AFTER_MS",
    "GRACE_MS",
    "WANTED",
    "Check",
    "CheckResult",
    "Columns",
    "InvariantsError",
    "Kind",
    "Rows",
    "SchemaMismatchError",
    "SourceUnavailableError",
    "Sources",
    "Violation",
    "check",
    "read_sources",
    "run_checks",
]
