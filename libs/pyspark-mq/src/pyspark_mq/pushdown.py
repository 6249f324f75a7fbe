"""Which messages a read wants: what the options name, and which filters of a query the source takes over.

Mechanism Y4.

A broker compares the hashes of tags and evaluates conditions in SQL92 on properties, if its configuration has
enablePropertyFilter=true. The text of a tag or key decides here, when rows are made.

Of a filter that is taken over Spark does not look at a row again, so it is fulfilled exactly: queues and offsets are
left out when partitions are planned, and tags and keys, which a broker compares by hash or not at all, are compared by
their text when rows are made. A filter that is only used to read less stays with Spark as well.

Invariant: what `push` says and what `Pushed` does is the same for every row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from mqclient import IllegalArgumentError, MessageQueue, MessageSelector
from mqclient.consumer.pulling import parse_subscription
from mqproto.properties import KEYS, TAGS
from pyspark_mq.errors import OptionError
from pyspark_mq.options import ReadOptions

VALUES_MAX = 256  # of one IN; more would make expressions that a broker has to parse for each pull
QUEUE_COLUMNS = {"topic": 0, "broker": 1, "queueId": 2}  # where MessageQueue has it
NEVER_NULL = frozenset({*QUEUE_COLUMNS, "queueOffset", "storeTimestamp"})
COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is read of a table. `tags` and `keys`: one of these texts; None: any, or none at all.

    Offsets and times (milliseconds since 1970) are bounds of both kinds: from, and to before.
    """

    queues: tuple[Filter, ...] = ()
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    taken: tuple[Filter, ...] = field(default=(), compare=False)

    def takes(self, queue: MessageQueue) -> bool:
        """Whether rows of this queue can be wanted."""
        return all(_fulfils(queue, one) for one in self.queues)

    def within(self, start: int, end: int) -> tuple[int, int]:
        """What of a range of offsets can be wanted; empty ranges begin and end with the same offset."""
        first = start if self.from_offset is None else max(start, self.from_offset)
        last = end if self.to_offset is None else min(end, self.to_offset)
        return first, max(first, last)


EVERYTHING = Pushed()


def push(filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """What is taken over of filters that all have to be true, and those that Spark has to look at."""
    pushed, left = EVERYTHING, list[Filter]()
    not_null = []
    for one in filters:
        if isinstance(one, IsNotNull):
            not_null.append(one)
            continue
        narrowed, is_exact = _narrowed(pushed, one)
        if narrowed is not None:
            pushed = narrowed
        if narrowed is None or not is_exact:
            left.append(one)
        else:
            pushed = replace(pushed, taken=(*pushed.taken, one))
    required = NEVER_NULL | ({"tag"} if pushed.tags is not None else set())
    required |= {"key"} if pushed.keys is not None else set()
    for one in not_null:
        if one.attribute[0] in required:
            pushed = replace(pushed, taken=(*pushed.taken, one))
        else:
            left.append(one)
    return pushed, left


def _narrowed(pushed: Pushed, one: Filter) -> tuple[Pushed | None, bool]:
    """With this filter as well, and whether it is fulfilled exactly; None when it narrows nothing."""
    if _is_about_queues(one):
        return replace(pushed, queues=(*pushed.queues, one)), True
    if not isinstance(one, (*COMPARISONS, In)) or len(one.attribute) != 1:
        return None, False
    column = one.attribute[0]
    if column in ("tag", "key"):
        return _narrowed_texts(pushed, one, column), True
    if column == "queueOffset":
        return _narrowed_offsets(pushed, one), not isinstance(one, In)
    if column == "storeTimestamp":
        return _narrowed_times(pushed, one), False
    return None, False


def _narrowed_texts(pushed: Pushed, one: Filter, column: str) -> Pushed | None:
    if isinstance(one, (EqualTo, EqualNullSafe)):
        values = frozenset([one.value])
    elif isinstance(one, In) and len(one.value) <= VALUES_MAX:
        values = frozenset(one.value)
    else:
        return None
    if not all(isinstance(value, str) and (column == "key" or is_plain_tag(value)) for value in values):
        return None
    if column == "tag":
        return replace(pushed, tags=values if pushed.tags is None else pushed.tags & values)
    return replace(pushed, keys=values if pushed.keys is None else pushed.keys & values)


def _narrowed_offsets(pushed: Pushed, one: Filter) -> Pushed | None:
    bounds = _integer_bounds(one)
    if bounds is None:
        return None
    low, high = bounds
    return replace(pushed, from_offset=_larger(pushed.from_offset, low), to_offset=_smaller(pushed.to_offset, high))


def _narrowed_times(pushed: Pushed, one: Filter) -> Pushed | None:
    """A message's time has no fraction of a millisecond, and the filter's may have one: it is rounded away from it."""
    value = one.value if isinstance(one, COMPARISONS) else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    floor_ms = max(0, (value - EPOCH) // timedelta(milliseconds=1))
    low = None if isinstance(one, (LessThan, LessThanOrEqual)) else floor_ms
    high = None if isinstance(one, (GreaterThan, GreaterThanOrEqual)) else floor_ms + 1
    return replace(pushed, from_ms=_larger(pushed.from_ms, low), to_ms=_smaller(pushed.to_ms, high))


def _integer_bounds(one: Filter) -> tuple[int | None, int | None] | None:
    """From, and to before; None for what is no whole number."""
    if isinstance(one, In):
        if not one.value or any(type(value) is not int for value in one.value):
            return None
        return min(one.value), max(one.value) + 1
    value: Any = one.value if isinstance(one, COMPARISONS) else None
    if type(value) is not int:
        return None
    return {
        GreaterThan: (value + 1, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (None, value),
        LessThanOrEqual: (None, value + 1),
    }.get(type(one), (value, value + 1))


def _is_about_queues(one: Filter) -> bool:
    """Whether topic, broker and queue id alone decide it, by comparisons that mean here what they mean to Spark."""
    inner = one.child if isinstance(one, Not) else one
    if not isinstance(inner, (*COMPARISONS, In)) or len(inner.attribute) != 1:
        return False
    column = inner.attribute[0]
    if column not in QUEUE_COLUMNS:
        return False
    values = inner.value if isinstance(inner, In) else (inner.value,)
    if column == "queueId":
        return all(type(value) is int for value in values)
    return isinstance(inner, (EqualTo, EqualNullSafe, In)) and all(isinstance(value, str) for value in values)


def _fulfils(queue: MessageQueue, one: Filter) -> bool:
    if isinstance(one, Not):
        return not _fulfils(queue, one.child)
    value = queue[QUEUE_COLUMNS[one.attribute[0]]]  # type: ignore[attr-defined]  # _is_about_queues has seen to it
    if isinstance(one, In):
        return value in one.value
    wanted: Any = one.value  # type: ignore[attr-defined]
    compare: Callable[[Any, Any], bool] = {
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt,
        LessThanOrEqual: operator.le,
    }.get(type(one), operator.eq)
    return compare(value, wanted)


def is_plain_tag(tag: str) -> bool:
    """Whether an expression of tags can name it."""
    return bool(tag) and tag == tag.strip() and tag != "*" and not set(tag) & {"|", "\x01", "\x02"}


def _larger(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _smaller(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Messages with one of the tags and one of the keys (the property as a whole) that fulfil the condition.

    None for tags or keys: any message, also one without. `asks_for_keys`: every broker can evaluate conditions, so
    that they look for the keys.
    """

    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    sql: str = ""
    asks_for_keys: bool = False

    @property
    def selector(self) -> str | MessageSelector:
        """For the broker, which may give more than is wanted, but never less."""
        if not self.sql and not self.asks_for_keys:
            return " || ".join(sorted(self.tags or ())) or "*"
        conditions = [f"({self.sql})"] if self.sql else []
        if self.tags is not None:
            conditions.append(_is_one_of(TAGS, self.tags))
        if self.keys is not None:
            conditions.append(_is_one_of(KEYS, self.keys))
        return MessageSelector.by_sql(" AND ".join(conditions))

    @property
    def is_nothing(self) -> bool:
        """Whether no message can be wanted."""
        return self.tags == frozenset() or self.keys == frozenset()

    @property
    def gets_everything(self) -> bool:
        """Whether the broker gives every message, so that one that is missing is lost."""
        return self.selector == "*"

    @property
    def may_ask_for_keys(self) -> bool:
        return bool(self.keys)

    def pushed(self, pushed: Pushed) -> Wanted:
        """What is wanted when the filters that were pushed down have to be fulfilled, too."""
        tags = pushed.tags if self.tags is None or pushed.tags is None else self.tags & pushed.tags
        return replace(self, tags=self.tags if tags is None else tags, keys=pushed.keys)


def wanted_by_options(options: ReadOptions) -> Wanted:
    """`tags` or `sql`, or everything. Raises OptionError."""
    try:
        tags = parse_subscription("any", options.tags or "*").tags
    except IllegalArgumentError as error:
        raise OptionError(f"tags: {error}") from None
    return Wanted(tags or None, sql=options.sql)


def _is_one_of(name: str, texts: Iterable[str]) -> str:
    """In SQL92, where a quote in a text is written twice."""
    quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in sorted(texts))
    return f"{name} IN ({quoted})"
