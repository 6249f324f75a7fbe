"""What a subscription wants, in either of its languages (MISSION F1, F2).

A message passes in two steps, as in RocketMQ: by the hash of its tag, which its consume-queue entry has, and by its
properties, which its record has. An expression of tags leaves the second step out, and SQL92 the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mq_broker.core.tag_filter import EVERYTHING, TagFilter, parse_tag_expression
from mqfilter import Condition, FilterSyntaxError, parse
from mqproto.codes import ExpressionType
from mqproto.properties import EncodedProperties, PropertiesError

_TAG_TYPES = ("", ExpressionType.TAG.value)
CONDITIONS_MAX = 512  # parsed ones that are kept
NOT_ENABLED = "this broker does not filter by SQL92; set enablePropertyFilter=true in its configuration and restart it"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Both steps; `condition` is None when the tags decide alone."""

    tags: TagFilter
    condition: Condition | None = None


class MessageFilters:
    """The filters of this broker."""

    def __init__(self, property_filter_enabled: bool) -> None:
        self._property_filter_enabled = property_filter_enabled

    def parse(self, expression_type: str, expression: str) -> MessageFilter:
        """The filter of an expression; an empty type means TAG.

        Raises ValueError with what is wrong, and where, and PermissionError for SQL92 when it is not enabled.
        """
        if expression_type in _TAG_TYPES:
            return _by_tags(expression)
        if expression_type != ExpressionType.SQL92:
            raise ValueError(f"expression type {expression_type!r}; allowed are {' and '.join(ExpressionType)}")
        if not self._property_filter_enabled:
            raise PermissionError(NOT_ENABLED)
        return _by_condition(expression)


def fulfils(condition: Condition, properties: bytes) -> bool:
    """Whether a message with these properties, in their text form, is wanted.

    One whose properties cannot be read is: what is to become of it is the consumer's to say.
    """
    try:
        return condition.evaluate(EncodedProperties(properties)) is True
    except PropertiesError:
        return True


@lru_cache(maxsize=4_096)
def _by_tags(expression: str) -> MessageFilter:
    return MessageFilter(parse_tag_expression(expression))


@lru_cache(maxsize=CONDITIONS_MAX)
def _by_condition(expression: str) -> MessageFilter:
    try:
        return MessageFilter(EVERYTHING, parse(expression))
    except FilterSyntaxError as error:
        raise ValueError(f"the SQL92 expression is wrong {error}") from error
