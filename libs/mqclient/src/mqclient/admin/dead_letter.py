"""What a dead letter is, and which ones are wanted (MISSION R2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from mqclient.consumer.pulling import ALL
from mqclient.message import MessageExt
from mqproto.properties import DEAD_LETTER_EDIT, FAILED_MEMBER, FAILURE, ORIGIN_MESSAGE_ID, RETRY_TOPIC


class DeadLetterState(Enum):
    """What an operator has done with a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    SUPERSEDED = "superseded"  # an edited one has taken its place


class ReplayTarget(Enum):
    """Who gets a dead letter again."""

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
    """Which dead letters are wanted: those for which all of this is true; by default those with which nobody has done
    anything.

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
        """Whether what the queue's reader has not looked at is true. Raises UnreadableBodyError."""
        return (
            letter.state in self.states
            and self.topic in (None, letter.topic)
            and (self.key is None or self.key in letter.message.keys)
            and (not self.ids or not self.ids.isdisjoint(letter.ids))
            and (not self.contains or self.contains in letter.message.body)
        )
