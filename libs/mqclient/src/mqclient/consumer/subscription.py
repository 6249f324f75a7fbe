"""Which messages of a topic a group wants: "*" for all, or "A || B" for tags (MISSION M3)."""

from __future__ import annotations

from dataclasses import dataclass

from mqclient.errors import IllegalArgumentError
from mqclient.message_ext import MessageExt
from mqproto.names import IllegalNameError, check_topic
from mqproto.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertiesError

ALL = "*"
OR = "||"


@dataclass(frozen=True, slots=True)
class Subscription:
    """`tags` is empty for everything."""

    topic: str
    expression: str
    tags: frozenset[str]

    def matches(self, message: MessageExt) -> bool:
        """The exact check; the broker's own compares hashes only. What cannot be read is the listener's business."""
        if not self.tags:
            return True
        try:
            return message.tag in self.tags
        except PropertiesError:
            return True


def parse_subscription(topic: str, expression: str) -> Subscription:
    """Raises IllegalArgumentError with what is allowed."""
    try:
        check_topic(topic)
    except IllegalNameError as error:
        raise IllegalArgumentError(str(error)) from error
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL, frozenset())
    tags = [tag.strip() for tag in text.split(OR)]
    for tag in tags:
        if not tag or tag == ALL or NAME_VALUE_SEPARATOR in tag or PROPERTY_SEPARATOR in tag:
            raise IllegalArgumentError(f"the tag expression {expression!r} is not {ALL!r} and not like 'A {OR} B'")
    return Subscription(topic, f" {OR} ".join(sorted(set(tags))), frozenset(tags))
