"""Which messages of a topic a group wants: "*" for all, "A || B" for tags, or a condition on properties (MISSION F1).

Tags are checked twice: the broker compares hashes, and the client the text. A condition in SQL92 is the broker's alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageExt
from mqproto.codes import ExpressionType
from mqproto.names import IllegalNameError, check_topic
from mqproto.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, PropertiesError

ALL = "*"
OR = "||"


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """What to subscribe to, in one of two languages. A plain string is an expression of tags."""

    expression_type: ExpressionType
    expression: str

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """All messages ("*"), or those with one of the tags in "A || B"."""
        return cls(ExpressionType.TAG, expression)

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """Those whose properties fulfil a condition, such as "amount > 100 AND region IN ('east', 'west')".

        mqfilter says what can be written. The broker evaluates it, if its configuration has enablePropertyFilter=true,
        and refuses what it cannot parse, with the place of the error.
        """
        return cls(ExpressionType.SQL92, expression)


@dataclass(frozen=True, slots=True)
class Subscription:
    """`tags` is empty for everything, and for SQL92."""

    topic: str
    expression: str
    expression_type: ExpressionType = ExpressionType.TAG
    tags: frozenset[str] = frozenset()

    def matches(self, message: MessageExt) -> bool:
        """The exact check of tags; what cannot be read is the listener's business, and SQL92 the broker's."""
        if not self.tags:
            return True
        try:
            return message.tag in self.tags
        except PropertiesError:
            return True


def parse_subscription(topic: str, wanted: str | MessageSelector | None) -> Subscription:
    """The subscription to what is `wanted` of the topic; None is everything.

    Raises IllegalArgumentError with what is allowed.
    """
    try:
        check_topic(topic)
    except IllegalNameError as error:
        raise IllegalArgumentError(str(error)) from error
    selector = MessageSelector.by_tag(wanted or ALL) if isinstance(wanted, str | None) else wanted
    if not isinstance(selector, MessageSelector):
        raise IllegalArgumentError(
            f"a subscription to {topic} has to be a tag expression, a MessageSelector or None, not {wanted!r}"
        )
    if not isinstance(selector.expression, str):
        raise IllegalArgumentError(f"the expression of a MessageSelector has to be text, not {selector.expression!r}")
    if selector.expression_type is ExpressionType.SQL92:
        return _parse_sql(topic, selector.expression)
    return _parse_tags(topic, selector.expression)


def _parse_tags(topic: str, expression: str) -> Subscription:
    text = expression.strip()
    if text in ("", ALL):
        return Subscription(topic, ALL)
    tags = [tag.strip() for tag in text.split(OR) if tag.strip()]
    if not tags:
        raise IllegalArgumentError(f"the tag expression {expression!r} has no tag; write {ALL!r} for every message")
    for tag in tags:
        if tag == ALL or NAME_VALUE_SEPARATOR in tag or PROPERTY_SEPARATOR in tag:
            raise IllegalArgumentError(f"the tag expression {expression!r} is not {ALL!r} and not like 'A {OR} B'")
    return Subscription(topic, f" {OR} ".join(sorted(set(tags))), tags=frozenset(tags))


def _parse_sql(topic: str, expression: str) -> Subscription:
    text = expression.strip()
    if not text:
        raise IllegalArgumentError('the SQL92 expression is empty; write a condition, such as "amount > 100"')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise IllegalArgumentError(f"the SQL92 expression is not text that UTF-8 can hold: {error.reason}") from error
    return Subscription(topic, text, ExpressionType.SQL92)
