"""What a consumer says of itself when it joins a group, and how two of them differ (MISSION C4).

Members of a group share its queues: a member that wants other messages than the rest would pass over, in its queues,
what only the others want, and the group's offset with it. So members have to be alike in subscriptions, message model
and order.

Invariant: two consumers that would get the same messages in the same way do not differ, however they wrote it down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mqproto.codes import ExpressionType
from mqproto.names import retry_topic

EVERYTHING = frozenset({"", "*"})
OR = "||"
_QUOTED = re.compile(r"('(?:[^']|'')*')")  # a string of SQL92: white space counts in it, and nowhere else


@dataclass(frozen=True, slots=True)
class Subscription:
    """The messages of one topic that a consumer wants. `expression_type` is TAG (or empty) or SQL92."""

    topic: str
    expression: str = "*"
    expression_type: str = ExpressionType.TAG.value


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of a client, as its heartbeat describes it."""

    group: str
    subscriptions: tuple[Subscription, ...] = ()
    broadcasting: bool = False
    orderly: bool = False
    consume_from_where: int = 0  # the wire's number: the broker only passes it on

    def topics(self) -> frozenset[str]:
        """The topics that it subscribes to."""
        return frozenset(one.topic for one in self.subscriptions)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A subscription, normalised: `tags` is empty for everything, and for SQL92, which has its text in `condition`."""

    tags: frozenset[str] = frozenset()
    condition: str = ""

    def __str__(self) -> str:
        if self.condition:
            return f"messages with {self.condition}"
        if not self.tags:
            return "everything"
        word = "tag" if len(self.tags) == 1 else "tags"
        return f"{word} {f' {OR} '.join(sorted(self.tags))!r}"


def difference(member_id: str, member: Consumer, newcomer: Consumer) -> str | None:
    """How the newcomer differs from a member of its group, in words; None when it does not."""
    if member == newcomer:
        return None
    if member.broadcasting != newcomer.broadcasting:
        return f"member {member_id} consumes by {_model(member)}, this client by {_model(newcomer)}"
    if member.orderly != newcomer.orderly:
        return f"member {member_id} consumes {_order(member)}, this client {_order(newcomer)}"
    theirs, ours = _wanted(member.group, member.subscriptions), _wanted(newcomer.group, newcomer.subscriptions)
    for topic in sorted(theirs.keys() | ours.keys()):
        if topic not in ours:
            return f"member {member_id} subscribes to topic {topic!r}, this client does not"
        if topic not in theirs:
            return f"this client subscribes to topic {topic!r}, member {member_id} does not"
        if theirs[topic] != ours[topic]:
            return f"member {member_id} wants {theirs[topic]} of topic {topic!r}, this client wants {ours[topic]}"
    return None


@lru_cache(maxsize=4_096)
def _wanted(group: str, subscriptions: tuple[Subscription, ...]) -> dict[str, _Wanted]:
    """By topic, without the group's retry topic: that is the client's doing, not the application's."""
    return {one.topic: _normalised(one) for one in subscriptions if one.topic != retry_topic(group)}


def _normalised(subscription: Subscription) -> _Wanted:
    text = subscription.expression.strip()
    if subscription.expression_type not in ("", ExpressionType.TAG):
        parts = _QUOTED.split(text)
        words = "".join(part if index % 2 else re.sub(r"\s+", " ", part) for index, part in enumerate(parts))
        return _Wanted(condition=f"{subscription.expression_type} {words!r}")
    if text in EVERYTHING:
        return _Wanted()
    return _Wanted(frozenset(tag.strip() for tag in text.split(OR)))


def _model(consumer: Consumer) -> str:
    return "broadcasting" if consumer.broadcasting else "clustering"


def _order(consumer: Consumer) -> str:
    return "in order" if consumer.orderly else "concurrently"
