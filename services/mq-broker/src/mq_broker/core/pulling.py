"""Pulls (mechanisms F1, F2): from consume-queue entries and a subscription to ranges of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import EXPRESSION_CHARACTERS_MAX, KEPT_EXPRESSION_CHARACTERS_MAX, KEPT_FILTERS_MAX
from mq_broker.core.replica_state import ReplicationOptions
from mq_broker.core.subscription_groups import SubscriptionGroup
from mqfilter import Condition, FilterSyntaxError, parse
from mqproto.codes import ExpressionType, PullStatus, ResponseCode
from mqproto.properties import (
    TAGS,
    EncodedProperties,
    PropertiesError,
    java_string_hash,
    property_start,
    property_value,
)
from mqproto.record import OFFSETS, OFFSETS_AT, SEGMENT_HEAD, encoded_properties

PULL_MESSAGES_MAX = 1_024  # never allocate by a number that a client names (docs/reference/faults.md#store-rules)
PULL_BYTES_MAX = 1024 * 1024
SCAN_ENTRIES_MAX = 8_192  # how far one pull may look for a tag before it answers NO_MATCHED_MSG


@dataclass(slots=True)
class PullQuery:
    """A consumer's pull from one queue; `client` is its connection, to whose limit a new group counts.

    `version` is of the progress from which it goes on; None for a consumer that keeps its offsets itself.

    It and the answer never change. They are not frozen: each poll needs both, and frozen ones take three times as long
    to make.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    max_bytes: int
    expression: str
    expression_type: str = ExpressionType.TAG
    client: str = ""
    version: int | None = None


@dataclass(slots=True)
class PullResult:
    """The answer. `records` lie end to end; `next_begin_offset` is where to go on, whatever the status.

    `progress`, with OFFSET_ILLEGAL, is what the group has finished, when that has another version than the consumer's.
    """

    code: ResponseCode = ResponseCode.SUCCESS
    remark: str = ""
    status: PullStatus = PullStatus.UNSPECIFIED
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    count: int = 0
    records: bytes = b""
    suggest_broker_id: int = 0  # the broker to ask next time
    progress: Progress | None = None


@dataclass(slots=True)
class Selection:
    """Ranges of the log, (offset, size), neighbours joined, that hold `count` wanted records.

    `log_offset` is where the last of the `scanned` records begins.
    """

    ranges: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    scanned: int = 0
    log_offset: int = 0


def select(entries: bytes, tags: TagFilter, *, max_messages: int, max_bytes: int, readable_end: int) -> Selection:
    """Walk consume-queue entries in order; stop at what is not readable yet, or when enough is found.

    At least one record is selected when one matches, however large it is.
    """
    codes, ranges = tags.codes, list[tuple[int, int]]()
    count = scanned = taken = newest = 0
    begin = end = -1  # of the range that the last wanted record is in
    for log_offset, size, tags_code in CQ_ENTRY.iter_unpack(entries):
        if log_offset + size > readable_end:
            break
        if codes is None or tags_code in codes:  # `tags.passes`, without a call for each record
            if count and (count >= max_messages or taken + size > max_bytes):
                break
            if log_offset != end:
                if count:
                    ranges.append((begin, end - begin))
                begin = log_offset
            end = log_offset + size
            count += 1
            taken += size
        scanned += 1
        newest = log_offset
    if count:
        ranges.append((begin, end - begin))
    return Selection(ranges, count, scanned, newest)


ALL = "*"
_TAGS = property_start(TAGS)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tag filter of a subscription: `*`, or tags joined by `||` (mechanism F1).

    `codes` is None when every message passes.

    The broker compares hashes only, so it may pass a message with another tag of the same hash; the client compares
    text.
    """

    codes: frozenset[int] | None

    def passes(self, tags_code: int) -> bool:
        """Whether a consume-queue entry with this tag hash may interest the subscriber."""
        return self.codes is None or tags_code in self.codes


def tag_hash(data: bytes | bytearray, start: int, end: int) -> int:
    """What a consume queue keeps of the properties that stand from `start` to `end` of `data`: the hash of the tag."""
    return java_string_hash(property_value(data, _TAGS, start, end).decode())


def parse_tag_expression(expression: str) -> TagFilter:
    """The filter of `expression`; empty means all. Raises ValueError with what is allowed."""
    text = expression.strip()
    if text in {"", ALL}:
        return TagFilter(None)
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags):
        raise ValueError(f"the tag expression {expression!r} has an empty part; write * or A || B")
    if ALL in tags:
        raise ValueError(f"the tag expression {expression!r} mixes * with tags; write * or A || B")
    return TagFilter(frozenset(java_string_hash(tag) for tag in tags))


EVERYTHING = parse_tag_expression(ALL)


_TAG_TYPES = ("", ExpressionType.TAG.value)
NOT_ENABLED = "this broker does not filter by SQL92; set enablePropertyFilter=true in its configuration and restart it"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The filter of a subscription, in either of its languages (mechanisms F1, F2).

    Both steps; `condition` is None when the tags decide alone.

    A message passes in two steps, as in RocketMQ: by the hash of its tag, which its consume-queue entry has, and by its
    properties, which its record has. An expression of tags leaves the second step out, and SQL92 the first.
    """

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


SCAN_RECORDS_MAX = 512
STEP_GROWTH = 3  # a step is this much more than all before it together


@dataclass(slots=True)
class Search:
    """Looking through the records of a queue for those whose properties fulfil a condition (mechanism F2).

    One pull's search, which begins at queue offset `begin` and brings so many messages and bytes at the most.

    Invariant: everything before `at` has been looked at, and what is wanted of it is in the outcome.

    A pull looks in steps: at as many records as it may bring first, and at more from step to step, since what has not
    been found so far is rare. It ends when it has looked at SCAN_RECORDS_MAX records, or with the record that completes
    PULL_BYTES_MAX bytes, so that a search holds up nothing else; then it says how far it has come.
    """

    condition: Condition
    begin: int
    max_messages: int
    max_bytes: int
    ended: bool = field(default=False, init=False)
    _chosen: Selection = field(default_factory=Selection, init=False)
    _parts: list[bytes] = field(default_factory=list, init=False)
    _bytes_chosen: int = field(default=0, init=False)
    _bytes_read: int = field(default=0, init=False)

    @property
    def at(self) -> int:
        """The queue offset at which the next step begins."""
        return self.begin + self._chosen.scanned

    @property
    def step(self) -> dict[str, int]:
        """How many messages and bytes to read next."""
        scanned, read = self._chosen.scanned, self._bytes_read
        return {
            "max_messages": min(max(self.max_messages, STEP_GROWTH * scanned), SCAN_RECORDS_MAX - scanned),
            "max_bytes": min(max(self.max_bytes, STEP_GROWTH * read), PULL_BYTES_MAX - read),
        }

    def look_at(self, found: Selection, records: bytes) -> None:
        """The step has found these records, which lie end to end; nothing, when no more can be read.

        At least one is chosen when one is wanted, however large it is.
        """
        at = 0
        while at < len(records):
            size = SEGMENT_HEAD.unpack_from(records, at)[0]
            if fulfils(self.condition, encoded_properties(records, at, size)):
                if self._parts and (self._is_full or self._bytes_chosen + size > self.max_bytes):
                    queue_offset, _ = OFFSETS.unpack_from(records, at + OFFSETS_AT)
                    self._chosen.scanned, self.ended = queue_offset - self.begin, True
                    return
                self._parts.append(records[at : at + size])
                self._bytes_chosen += size
            at += size
        self._chosen.scanned += found.scanned
        self._chosen.log_offset = found.log_offset
        self._bytes_read += len(records)
        has_looked_enough = self._chosen.scanned >= SCAN_RECORDS_MAX or self._bytes_read >= PULL_BYTES_MAX
        self.ended = not found.scanned or self._is_full or has_looked_enough

    def outcome(self) -> tuple[Selection, bytes]:
        """What was found, as the reader says it; `ranges` is left empty."""
        self._chosen.count = len(self._parts)
        return self._chosen, b"".join(self._parts)

    @property
    def _is_full(self) -> bool:
        return len(self._parts) >= self.max_messages


MASTER_ID = 0
ALL_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReplicaReads:
    """Sends readers to a replica that are so far behind that the master would have to read from its disk.

    Mechanism H3.

    `near_bytes` of the log, from its end, are taken to be in memory. `is_replica_there`: whether a replica serves
    beside this broker; True on a replica.

    A reader of new messages gets them from the master's memory. A reader that is farther behind than the share of the
    machine's memory that accessMessageInMemoryMaxRatio says makes the master read old files, and push the new ones out
    of its memory with them; so a replica does that instead, until the reader has caught up.
    """

    enabled: bool
    near_bytes: int
    is_replica_there: Callable[[], bool]

    @classmethod
    def of(cls, options: ReplicationOptions, memory_bytes: int, is_replica_there: Callable[[], bool]) -> ReplicaReads:
        """As the configuration says, on a machine with so much memory; 0: unknown, and every reader stays here."""
        near_bytes = memory_bytes * options.access_message_in_memory_max_ratio // 100 if memory_bytes else ALL_BYTES
        return cls(options.slave_read_enable, near_bytes, is_replica_there)

    def suggestion(self, group: SubscriptionGroup, behind_bytes: int) -> int:
        """The id of the broker where a member that is so far behind the log's end should read next."""
        wanted = group.which_broker_when_consume_slowly if behind_bytes > self.near_bytes else group.broker_id
        return wanted if wanted != MASTER_ID and self.enabled and self.is_replica_there() else MASTER_ID


NO_REPLICA = ReplicaReads(enabled=True, near_bytes=0, is_replica_there=lambda: False)
