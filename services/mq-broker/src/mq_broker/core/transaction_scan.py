"""From where the half and op queues are read at the next start, kept as transactionOffset.json.

Invariant: every open half stands at or behind `half`, and every op message that could close one at or behind `op`. A
slave has no table of what is open: there the document stays what it was, until a master reads on from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.transactions import TransactionTable


@dataclass
class TransactionScan:
    """Where to begin. `ends` tells the present ends of the half queue and of the op queue."""

    table: TransactionTable
    half: int = 0
    op: int = 0
    ends: Callable[[], tuple[int, int]] = lambda: (0, 0)
    follows: bool = False  # a slave

    @property
    def data_version(self) -> int:
        return self.table.data_version

    def to_json(self) -> dict[str, Any]:
        """The document."""
        half, op = (self.half, self.op) if self.follows else self.table.scan_from(*self.ends())
        return {"offsetTable": {"half": half, "op": op}}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over a document. Raises KeyError, TypeError or ValueError when it is not of this form."""
        found = tables.table(document, "offsetTable")
        self.half, self.op = int(found["half"]), int(found["op"])
