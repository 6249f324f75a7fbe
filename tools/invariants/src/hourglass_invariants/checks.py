"""A check: one SQL file whose query selects the rows that violate an invariant.

    -- quiet
    -- No order waits for its payment after its time to pay.
    -- Row: RELIABILITY.md (d), always
    SELECT ...

The first line is the kind, then comes what has to hold, then where that is promised.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_COMMENT = "--"
_ROW = "Row:"


class Kind(enum.StrEnum):
    """When an invariant holds."""

    ALWAYS = "always"  # at any moment, whatever is under way
    QUIET = "quiet"  # for what has come to rest: nothing but time has touched it since `:quiet_since_ms`


@dataclass(frozen=True, slots=True)
class Check:
    """One invariant. `name` is the file's, without its number; `row` says where the promise is made."""

    name: str
    kind: Kind
    holds: str
    row: str
    sql: str


def parse_check(file_name: str, text: str) -> Check:
    """The check of a file such as `12_stuck_orders.sql`. Raises ValueError with the part that is missing."""
    _, _, name = file_name.removesuffix(".sql").partition("_")
    comments: list[str] = []
    query: list[str] = []
    for line in text.splitlines():
        is_comment = line.startswith(_COMMENT) and not query
        (comments if is_comment else query).append(line.removeprefix(_COMMENT).strip() if is_comment else line)
    rows = [line.removeprefix(_ROW).strip() for line in comments if line.startswith(_ROW)]
    holds = " ".join(line for line in comments[1:] if not line.startswith(_ROW))
    if not name or not holds or len(rows) != 1 or comments[0] not in {*Kind}:
        raise ValueError(f"{file_name} does not begin with its kind, what has to hold, and its row")
    return Check(name, Kind(comments[0]), holds, rows[0], "\n".join(query).strip())
