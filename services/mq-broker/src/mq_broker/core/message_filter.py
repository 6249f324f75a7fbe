"""What a subscription wants, in either of its languages (MISSION F1, F2).

A message passes in two steps, as in RocketMQ: by the hash of its tag, which its consume-queue entry has, and by its
properties, which its record has. An expression of tags leaves the second step out, and SQL92 the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.core.limits import EXPRESSION_CHARACTERS_MAX, KEPT_EXPRESSION_CHARACTERS_MAX, KEPT_FILTERS_MAX
from mq_broker.core.tag_filter import EVERYTHING, TagFilter, parse_tag_expression
from mqfilter import Condition, FilterSyntaxError, parse
from mqproto.codes import ExpressionType
from mqproto.properties import EncodedProperties, PropertiesError

_TAG_TYPES = ("", ExpressionType.TAG.value)
NOT_ENABLED = "this broker does not filter by SQL92; set enablePropertyFilter=true in its configuration and restart it"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Both steps; `condition` is None when the tags decide alone."""

    tags: TagFilter
    condition: Condition | None = None


class MessageFilters:
    """The filters of this broker. Parsed ones are kept, the least recently used ones go.

    Invariant: the expressions that are kept have at most `KEPT_EXPRESSION_CHARACTERS_MAX` characters together.
    """

    def __init__(self, property_filter_enabled: bool) -> None:
        self._property_filter_enabled = property_filter_enabled
        self._kept: dict[tuple[str, str], MessageFilter] = {}  # the least recently used one first
        self._kept_characters = 0

    @property
    def kept_characters(self) -> int:
        """How long the expressions that are kept are together."""
        return self._kept_characters

    def parse(self, expression_type: str, expression: str) -> MessageFilter:
        """The filter of an expression; an empty type means TAG.

        Raises ValueError with what is wrong, and where, and PermissionError for SQL92 when it is not enabled.
        """
        key = expression_type, expression
        if (known := self._kept.pop(key, None)) is None:
            known = self._parse(expression_type, expression)
            self._kept_characters += len(expression)
        self._kept[key] = known
        while self._kept_characters > KEPT_EXPRESSION_CHARACTERS_MAX or len(self._kept) > KEPT_FILTERS_MAX:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._kept_characters -= len(oldest[1])
        return known

    def _parse(self, expression_type: str, expression: str) -> MessageFilter:
        if len(expression) > EXPRESSION_CHARACTERS_MAX:
            raise ValueError(
                f"the expression has {len(expression):,} characters; at most {EXPRESSION_CHARACTERS_MAX:,} are allowed"
            )
        if expression_type in _TAG_TYPES:
            return MessageFilter(parse_tag_expression(expression))
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


def _by_condition(expression: str) -> MessageFilter:
    try:
        return MessageFilter(EVERYTHING, parse(expression))
    except FilterSyntaxError as error:
        raise ValueError(f"the SQL92 expression is wrong {error}") from error
