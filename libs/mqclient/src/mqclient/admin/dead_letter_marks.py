"""What was done with dead letters, as marks in the dead-letter topic itself: seen by every operator, kept by the log.

A mark is a small message in the queue of its letter, behind it: the property DEAD_LETTER_MARK names what was done and
the letter's queue offset, the tag of the same name lets the broker pick the marks out, and the body is a sentence for
people. The tag alone makes no mark: an application may use it too, the property it may not. Nor is it a mark what has
itself died, of a group that consumes somebody's dead-letter topic: that names a topic that it comes from.

Invariants: a letter's state is that of its newest mark; marks are read once, in order, and of each only the letter's
offset and state are kept, as long as the letter is in the log (about 8 MB for 100,000 of them).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from mqclient.admin.dead_letter import DeadLetterState
from mqclient.admin.messages import MessageAdmin
from mqclient.message import MessageExt, MessageQueue
from mqproto.codes import PullStatus
from mqproto.properties import DEAD_LETTER_MARK, RETRY_TOPIC

MARK_TAG = DEAD_LETTER_MARK
MARKS_PAGE = 1_024  # what a broker gives at once

_VALUE = re.compile(rf"({DeadLetterState.REPLAYED.value}|{DeadLetterState.SUPERSEDED.value}):(\d+)")


class DeadLetterMark(NamedTuple):
    """What was done with the letter at `queue_offset`, when, and a sentence about it."""

    queue_offset: int
    state: DeadLetterState
    timestamp_ms: int
    sentence: str


def mark_value(state: DeadLetterState, queue_offset: int) -> str:
    """The value of the property that makes a mark."""
    return f"{state.value}:{queue_offset}"


def is_mark(message: MessageExt) -> bool:
    """Whether it is a mark, and no dead letter."""
    return DEAD_LETTER_MARK in message.properties and RETRY_TOPIC not in message.properties


def mark_of(message: MessageExt) -> DeadLetterMark | None:
    """The mark that the message is; None for a dead letter, and for a mark of a kind that is not known here."""
    match = _VALUE.fullmatch(message.properties.get(DEAD_LETTER_MARK, ""))
    if match is None or not is_mark(message):
        return None
    sentence = message.body.decode(errors="backslashreplace")
    return DeadLetterMark(int(match[2]), DeadLetterState(match[1]), message.store_timestamp_ms, sentence)


@dataclass
class MarkedLetters:
    """The letters of one queue that have a mark."""

    queue: MessageQueue
    _states: dict[int, DeadLetterState] = field(default_factory=dict)
    _begin: int = 0  # the queue's first offset
    _read_to: int = 0  # where the next look goes on

    def state_at(self, queue_offset: int) -> DeadLetterState:
        """The state of the letter at this offset, as of the last `catch_up`."""
        return self._states.get(queue_offset, DeadLetterState.OPEN)

    async def catch_up(self, admin: MessageAdmin) -> None:
        """Read the marks that have come since the last time. Raises as `MessageAdmin.pull`."""
        while True:
            found = await admin.pull(self.queue, self._read_to, max_messages=MARKS_PAGE, expression=MARK_TAG)
            self._forget_below(found.min_offset)
            if found.next_begin_offset < self._read_to:  # the broker has lost the end of its log: read all of it again
                self._states.clear()
                self._read_to = found.min_offset
                continue
            for message in found.messages:
                if (mark := mark_of(message)) is not None:
                    self._states[mark.queue_offset] = mark.state
            if found.status is PullStatus.NO_NEW_MSG or found.next_begin_offset == self._read_to:
                return
            self._read_to = found.next_begin_offset

    def _forget_below(self, min_offset: int) -> None:
        """Retention has taken these letters."""
        if min_offset > self._begin:
            self._begin = min_offset
            self._states = {offset: state for offset, state in self._states.items() if offset >= min_offset}
