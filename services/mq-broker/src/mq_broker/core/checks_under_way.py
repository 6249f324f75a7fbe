"""Checks that were asked and not answered: whom, and how many at most.

Invariants: of a transaction only the newest check is under way, and it is answered once; after a restart none is; a
member that owes CHECKS_UNANSWERED_MAX answers in a round of checks is asked for nothing more in it, so that no more
halves are written again than can be answered for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S")  # a session: whatever leads to the member

CHECKS_UNANSWERED_MAX = 2_000  # what a producer lets wait (MISSION T13)


@dataclass
class ChecksUnderWay(Generic[S]):
    """By transaction id."""

    _asked: dict[str, S] = field(default_factory=dict)
    _owing: dict[S, int] = field(default_factory=dict)  # answers, of this round

    def begin_round(self) -> None:
        """Who has not answered in the last round may be asked again; an answer that comes late is still one."""
        self._owing.clear()

    def ready(self, members: Iterable[S]) -> list[S]:
        """The members that can be asked for one more transaction."""
        return [member for member in members if self._owing.get(member, 0) < CHECKS_UNANSWERED_MAX]

    def asked(self, transaction_id: str, member: S) -> None:
        """The member was asked for the transaction."""
        self._asked[transaction_id] = member
        self._owing[member] = self._owing.get(member, 0) + 1

    def whom(self, transaction_id: str) -> S | None:
        """The member that was asked for the transaction and has not answered."""
        return self._asked.get(transaction_id)

    def ended(self, transaction_id: str) -> None:
        """The check was answered, or nobody needs the answer any more; harmless when none is under way."""
        member = self._asked.pop(transaction_id, None)
        if member is not None and (owing := self._owing.get(member)) is not None:
            self._owing[member] = max(0, owing - 1)
