"""A dead letter, and the marks that say what was done with it.

A mark is a small message in the dead-letter topic itself, in the queue of its letter and behind it: seen by every
operator, kept by the log. The property DEAD_LETTER_MARK names what was done and the letter's queue offset, the tag of
the same name lets the broker pick the marks out, and the body is a sentence for people. The tag alone makes no mark: an
application may use it too, the property it may not. Nor is a dead letter of a group that consumes a dead-letter topic a
mark: it names the topic that it comes from.

Invariants: a letter's state is that of its newest mark; marks are read once, in order, and of each only the letter's
offset and state are kept, as long as the letter is in the log (about 8 MB for 100,000 of them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from mqclient.admin.messages import MessageAdmin
from mqclient.consumer.pulling import ALL
from mqclient.message import MessageExt, MessageQueue
from mqproto.codes import PullStatus
from mqproto.properties import (
    DEAD_LETTER_EDIT,
    DEAD_LETTER_MARK,
    FAILED_MEMBER,
    FAILURE,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
)

MARK_TAG = DEAD_LETTER_MARK
MARKS_PAGE = 1_024  # what a broker gives at once


class DeadLetterState(Enum):
    """What an operator has done with a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    SUPERSEDED = "superseded"  # an edited one has taken its place


class ReplayTarget(Enum):
    """The groups that get a dead letter again."""

    GROUP = "group"  # its own group alone, through the group's retry topic
    TOPIC = "topic"  # every group that reads the topic it was sent to first


@dataclass(frozen=True)
class DeadLetter:
    """A message in the dead-letter topic of a group, and what was done with it by the time it was read."""

    group: str
    message: MessageExt
    state: DeadLetterState

    @property
    def topic(self) -> str:
        """The topic that it was sent to first; empty when it does not say."""
        return self.message.properties.get(RETRY_TOPIC, "")

    @property
    def origin_message_id(self) -> str:
        """The unique id of the message that was sent first; empty when it does not say."""
        return self.message.properties.get(ORIGIN_MESSAGE_ID, "")

    @property
    def dead_since_ms(self) -> int:
        """When it was stored as a dead letter, by the broker's clock; of an edited one, when it was edited."""
        return self.message.store_timestamp_ms

    @property
    def replaces(self) -> int | None:
        """The queue offset of the dead letter that was edited into this one; None for one that was not edited."""
        value = self.message.properties.get(DEAD_LETTER_EDIT, "")
        return int(value) if value.isdecimal() else None

    @property
    def failure(self) -> str:
        """What its last listener answered or raised; empty when the member or the broker did not say."""
        return self.message.properties.get(FAILURE, "")

    @property
    def failed_member(self) -> str:
        """The client id of the member whose listener had it last; empty like `failure`."""
        return self.message.properties.get(FAILED_MEMBER, "")

    @cached_property
    def user_properties(self) -> Mapping[str, str]:
        """The application's properties, without those of the queue's own."""
        return self.message.user_properties

    @property
    def ids(self) -> frozenset[str]:
        """The ids that name it. The unique id may be that of several; the one by position is not."""
        return frozenset({self.message.message_id, self.message.offset_message_id})


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are wanted: those for which all of this is true; by default those without a mark.

    `topic` is the one that they were sent to first, `expression` is "*" or tags as "A || B", `key` one of their keys.
    `begin_ms` and `end_ms` bound the time since when they are dead: from, and before. `contains` is a part of the body,
    `ids` holds unique ids or ids by position.
    """

    topic: str | None = None
    expression: str = ALL
    key: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    contains: bytes = b""
    ids: frozenset[str] = frozenset()
    states: frozenset[DeadLetterState] = frozenset({DeadLetterState.OPEN})

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the conditions hold that the queue's reader has not checked. Raises UnreadableBodyError."""
        return (
            letter.state in self.states
            and self.topic in (None, letter.topic)
            and (self.key is None or self.key in letter.message.keys)
            and (not self.ids or not self.ids.isdisjoint(letter.ids))
            and (not self.contains or self.contains in letter.message.body)
        )


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
