"""What a storm's checker excuses, each with the sentence of docs/guides/guarantees.md that says so.

A loss and a clock's jump are single moments; a disturbance lasts from its beginning until `grace_s` after its end.
Order is excused by nothing; what stands in the lost tail of a replaced master has none with what came to the new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Loss(Enum):
    """Why what was acknowledged may be gone. Of each only what stood behind the end of the log that goes on."""

    WEAK_ANSWER = "SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT, and the master's disk dies: the same for SEND_OK only"
    ASYNC_MASTER = "ASYNC_MASTER, and the master is lost: what the replica did not have yet"
    NOT_FLUSHED = "ASYNC_FLUSH, and the master's machine loses power and is the master again: the last 200 ms"
    RESTORED = "the disk dies and a backup is restored: what was acknowledged after the backup was begun"


class Again(Enum):
    """Why a group may get again what it has finished."""

    MEMBER_ENDED = "a consumer that dies between its work and its report", 5.0
    REBALANCE = "a rebalance that hands a queue over while a listener is at it", 5.0
    HANDED_OVER = "the same: members that come back to a broker one after the other are a rebalance each", 30.0
    SWITCHED = "a queue that goes from one member to another while an operator changes the masters", 5.0
    GIVEN_UP = "a switch that is given up: the old master begins a new term, with versions renewed", 5.0
    CUT_OFF = "consumer cut off from its broker: its session ends, and others take its queues", 30.0
    NOT_SENT_BACK = "a message that is sent back to a broker that dies before its answer", 5.0
    POWER_CUT = "a broker under ASYNC_FLUSH whose machine has died, when it is back", 10.0
    PROMOTED_ALONE = (
        "a replica that was promoted without its master, for what is finished before the first poll",
        60.0,
    )
    RESTORED = "numbers that came after the copy are given again", 15.0
    OPERATOR = "offset reset, or topic deleted: what was finished before does not count", 5.0

    def __init__(self, sentence: str, grace_s: float) -> None:
        self.sentence, self.grace_s = sentence, grace_s


NOT_FLUSHED_S = 0.5  # 200 ms between two flushes, and the flush itself
REPORT_S = 0.3  # between the end of a listener and the broker's disk
HANDED_OVER_S = 2.0  # between a listener at one member and the next one's, when a queue is handed over
EARLY_S = 1.0  # deliver_at on a clock that is stepped, and delays of a promoted replica


@dataclass(frozen=True, slots=True)
class LossEvent:
    """The history of `generation` goes on from `log_end`, without what others of an earlier one have behind it.

    `spares_strong`: what was answered SEND_OK by a synchronous master is on every replica that may be promoted.
    """

    why: Loss
    at: float
    generation: int
    log_end: int
    spares_strong: bool = False
    since: float = 0.0  # what was acknowledged before is not lost


@dataclass
class Disturbance:
    """Of the groups named, or of all; `end` is None as long as it lasts."""

    why: Again
    begin: float
    end: float | None
    groups: frozenset[str] = frozenset()

    def covers(self, group: str, begin: float, end: float) -> bool:
        """Whether some of it lies between the two moments, for this group."""
        if self.groups and group not in self.groups:
            return False
        return self.begin <= end and (self.end is None or self.end + self.why.grace_s >= begin)
