"""The options of the data source: values, topics, positions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mqclient import MessageQueue
from mqproto.names import SYSTEM_TOPICS, IllegalNameError, check_group, check_topic, parse_address_list
from pyspark_mq.errors import OptionError
from pyspark_mq.offsets import EXAMPLE, from_json, parse_json

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
SCHEMES = ("mq", "mq+http", "mq+dns")


class OptionValues:
    """Case-insensitive by name. Every method raises OptionError, with what is allowed."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], purpose: str = "reading") -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in names:
                allowed = ", ".join(sorted(names.values(), key=str.lower))
                raise OptionError(f"the data source mq has no option {name!r} for {purpose}; allowed are {allowed}")
            self._values[names[name.lower()]] = str(value).strip()

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """As it is; empty is an error when it was set."""
        if name in self._values and not self._values[name]:
            raise OptionError(f"{name} is empty; set it, or leave it out")
        return self._values.get(name, default)

    def required(self, name: str) -> str:
        if name not in self._values:
            raise OptionError(f"{name} is not set; it is required")
        return self.text(name)

    def reject(self, names: Iterable[str], why: str) -> None:
        """Raise for the first of these that is set."""
        for name in names:
            if name in self._values:
                raise OptionError(f"{name} is set, but {why}")

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name} is {self._values[name]!r}; allowed are true and false")
        return value == "true"

    def count(self, name: str, default: int = 0, *, least: int = 1, most: int | None = None) -> int:
        """A whole number within the bounds; `default` when it is not set."""
        if name not in self._values:
            return default
        value = self.text(name)
        if not re.fullmatch("[0-9]{1,18}", value) or not least <= int(value) <= (int(value) if most is None else most):
            allowed = f"a whole number from {least} {'up' if most is None else f'to {most}'}"
            raise OptionError(f"{name} is {value!r}; it has to be {allowed}")
        return int(value)

    def duration_ms(self, name: str, default: int) -> int:
        """Such as 500ms, 30s, 15m, 2h; a number alone counts milliseconds."""
        if name not in self._values:
            return default
        match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", self.text(name).lower())
        if match is None or (match[2] or "ms") not in _UNITS_MS or not int(match[1]):
            units = ", ".join(_UNITS_MS)
            raise OptionError(f"{name} is {self._values[name]!r}; write a number and a unit ({units}), such as 15m")
        return int(match[1]) * _UNITS_MS[match[2] or "ms"]

    def url(self, name: str) -> str:
        """For mqclient: of a list of name servers, or a URL as it is."""
        value = self.required(name)
        scheme, separator, _ = value.partition("://")
        if separator:
            if scheme not in SCHEMES:
                allowed = ", ".join(f"{one}://" for one in SCHEMES)
                raise OptionError(f"{name} is {value!r}; a URL begins with one of {allowed}")
            return value
        try:
            return "mq://" + ";".join(str(address) for address in parse_address_list(value))
        except ValueError as error:
            raise OptionError(f"{name}: {error}") from None

    def group(self, name: str) -> str:
        """A consumer group's name; empty when it is not set."""
        value = self.text(name)
        try:
            if value:
                check_group(value)
        except IllegalNameError as error:
            raise OptionError(f"{name}: {error}") from None
        return value


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Exactly one of the first three is there. A pattern takes the queue's own topics only with `with_system_topics`:
    they hold what waits, and what was rolled back.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: frozenset[MessageQueue] = frozenset()
    with_system_topics: bool = False

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Those that have to exist; none of a pattern, which matches what there is."""
        return self.topics or tuple(sorted({queue.topic for queue in self.queues}))

    def topics_of(self, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics to read, sorted, of those that exist; a pattern has to match the whole name."""
        if not self.pattern:
            return tuple(sorted(set(self.named_topics) & set(existing)))
        allowed = existing if self.with_system_topics else set(existing) - SYSTEM_TOPICS
        return tuple(sorted(topic for topic in allowed if re.fullmatch(self.pattern, topic)))

    def takes(self, queue: MessageQueue) -> bool:
        """Whether this queue of a chosen topic is read."""
        return not self.queues or queue in self.queues


# Where a read begins or ends: a place of every queue, named in one of five ways (mechanism Y1).

LATEST_OFFSET = -1  # in JSON, as in Spark's Kafka source
EARLIEST_OFFSET = -2


class PositionKind(StrEnum):
    """How the places are named."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"  # one for each queue, -2 for its first, -1 for its end
    TIMESTAMP = "timestamp"  # the first message stored at or after one time, milliseconds since 1970
    TIMESTAMPS = "timestamps"  # the same with a time for each queue


class NoMatchStrategy(StrEnum):
    """What a beginning by time means in a queue that has no message of that time or later."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Position:
    """`option` is what the user has set, for errors. `numbers` are offsets or times, by `kind`."""

    kind: PositionKind
    option: str
    timestamp_ms: int = 0
    numbers: Mapping[MessageQueue, int] = field(default_factory=dict)
    strategy: NoMatchStrategy = NoMatchStrategy.LATEST

    @property
    def is_by_time(self) -> bool:
        return self.kind in (PositionKind.TIMESTAMP, PositionKind.TIMESTAMPS)

    @property
    def names_queues(self) -> bool:
        """Whether it says something for single queues, and so has to for all."""
        return self.kind in (PositionKind.OFFSETS, PositionKind.TIMESTAMPS)

    def time_of(self, queue: MessageQueue) -> int:
        """Milliseconds since 1970; of a position by time."""
        return self.numbers[queue] if self.kind is PositionKind.TIMESTAMPS else self.timestamp_ms


# subscribe, subscribePattern and assign: exactly one of them says what is read.

CHOICES = ("subscribe", "subscribePattern", "assign")
ASSIGN_EXAMPLE = '{"orders": {"broker-a": [0, 1]}}'


def topic_choice(values: OptionValues) -> TopicChoice:
    """What is set. Raises OptionError."""
    found = [name for name in CHOICES if values.has(name)]
    if len(found) != 1:
        raise OptionError(
            f"{' and '.join(found) or 'nothing'} is set; exactly one of {', '.join(CHOICES)} says what is read"
        )
    if found == ["subscribe"]:
        return TopicChoice(topics=_topics(values.text("subscribe")))
    if found == ["assign"]:
        return TopicChoice(queues=_queues(values.text("assign")))
    pattern = values.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"subscribePattern is {pattern!r}, which is no regular expression: {error}") from None
    return TopicChoice(pattern=pattern, with_system_topics=values.boolean("includeSystemTopics", default=False))


def _topics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        _check_topic("subscribe", name)
    return tuple(sorted(set(names)))


def _queues(text: str) -> frozenset[MessageQueue]:
    tree = parse_json(text, "assign")
    found = set()
    try:
        for topic, brokers in tree.items():
            _check_topic("assign", topic)
            for broker, queue_ids in brokers.items():
                if not queue_ids or any(type(one) is not int or one < 0 for one in queue_ids):
                    raise TypeError  # noqa: TRY301 - one sentence for every way to be wrong
                found |= {MessageQueue(topic, broker, queue_id) for queue_id in queue_ids}
    except (AttributeError, TypeError):
        raise OptionError(f"assign is {json.dumps(tree)}; write it like {ASSIGN_EXAMPLE}") from None
    if not found:
        raise OptionError(f"assign names no queue; write it like {ASSIGN_EXAMPLE}")
    return frozenset(found)


def _check_topic(option: str, topic: str) -> None:
    try:
        check_topic(topic)
    except IllegalNameError as error:
        raise OptionError(f"{option}: {error}") from None


# The options that say where a read begins and ends.
#
# A time for all queues wins over times by queue, and those over offsets, as in Spark's Kafka source.

STARTING = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "startingOffsetsByTimestampStrategy")
ENDING = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def starting_position(values: OptionValues, *, streaming: bool) -> Position:
    """Batch reads begin with the earliest message by default, streams with the next one. Raises OptionError."""
    strategy = values.text("startingOffsetsByTimestampStrategy", NoMatchStrategy.ERROR).lower()
    if strategy not in list(NoMatchStrategy):
        raise OptionError(
            f"startingOffsetsByTimestampStrategy is {strategy!r}; allowed are {' and '.join(NoMatchStrategy)}"
        )
    default = PositionKind.LATEST if streaming else PositionKind.EARLIEST
    position = _position(values, "starting", default, NoMatchStrategy(strategy))
    if not streaming:
        _reject(position, PositionKind.LATEST, LATEST_OFFSET, "a batch that begins at the end reads nothing")
    return position


def ending_position(values: OptionValues) -> Position:
    """The latest message by default. Raises OptionError."""
    position = _position(values, "ending", PositionKind.LATEST, NoMatchStrategy.LATEST)
    _reject(position, PositionKind.EARLIEST, EARLIEST_OFFSET, "a batch that ends at the beginning reads nothing")
    return position


def _position(values: OptionValues, which: str, default: PositionKind, strategy: NoMatchStrategy) -> Position:
    by_time, by_times, by_offsets = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    if values.has(by_time):
        at_ms = values.count(by_time, least=0)
        return Position(PositionKind.TIMESTAMP, by_time, timestamp_ms=at_ms, strategy=strategy)
    if values.has(by_times):
        times = from_json(parse_json(values.text(by_times), by_times), by_times)
        if not times or min(times.values()) < 0:
            raise OptionError(f"{by_times} needs a time for each queue, in milliseconds since 1970")
        return Position(PositionKind.TIMESTAMPS, by_times, numbers=times, strategy=strategy)
    text = values.text(by_offsets, default)
    if text.lower() in (PositionKind.EARLIEST, PositionKind.LATEST):
        return Position(PositionKind(text.lower()), by_offsets)
    if not text.startswith("{"):
        raise OptionError(f"{by_offsets} is {text!r}; allowed are earliest, latest, and JSON like {EXAMPLE}")
    offsets = from_json(parse_json(text, by_offsets), by_offsets)
    if not offsets or min(offsets.values()) < EARLIEST_OFFSET:
        raise OptionError(f"{by_offsets} needs an offset for each queue: 0 or more, -1 for latest, -2 for earliest")
    return Position(PositionKind.OFFSETS, by_offsets, numbers=offsets)


def _reject(position: Position, kind: PositionKind, number: int, why: str) -> None:
    if position.kind is kind or number in position.numbers.values():
        raise OptionError(f"{position.option} says {kind}; {why}")


# The options of reading, parsed once (mechanisms Y1, Y2, Y4); docs/guides/spark.md explains each with an example.
#
# Names and meaning are those of Spark's Kafka source where they mean the same. Names are case-insensitive. An unknown
# one is rejected by name, and so is one that the kind of read cannot have.

PULL_MESSAGES_MAX = 1_024  # more a broker does not give at once

WHERE = ("namesrvAddr", *CHOICES, "includeSystemTopics")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group")
BOTH = (
    "tags", "sql", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "readFromSlave", "includeProperties",
    "pullBatchSize", "pullTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "filterPushdown",
)  # fmt: skip
READ_OPTIONS = (*WHERE, *STARTING, *ENDING, *BOTH, *STREAM_ONLY)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Durations in seconds; 0 for a limit means that there is none."""

    url: str
    choice: TopicChoice
    starting: Position
    ending: Position
    tags: str
    sql: str
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    max_trigger_delay_s: float
    group: str
    read_from_replica: bool
    include_properties: bool
    pull_batch_size: int
    pull_timeout_s: float
    retries: int
    retry_interval_s: float
    filter_pushdown: bool


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Everything that is set, and the default of what is not. Raises OptionError."""
    values = OptionValues(options, READ_OPTIONS)
    if streaming:
        values.reject(ENDING, "a stream has no end; this is an option of batch reads")
    tags, sql = values.text("tags"), values.text("sql")
    if tags and sql:
        raise OptionError("tags and sql are set both; write the tags into the condition: TAGS IN ('A', 'B')")
    most, least = values.count("maxOffsetsPerTrigger"), values.count("minOffsetsPerTrigger")
    if most and least > most:
        raise OptionError(f"minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger {most}; it can be that at most")
    return ReadOptions(
        url=values.url("namesrvAddr"),
        choice=topic_choice(values),
        starting=starting_position(values, streaming=streaming),
        ending=ending_position(values),
        tags=tags,
        sql=sql,
        fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
        min_partitions=values.count("minPartitions"),
        max_records_per_partition=values.count("maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=values.duration_ms("maxTriggerDelay", 15 * 60 * 1_000) / 1_000,
        group=values.group("group"),
        read_from_replica=values.boolean("readFromSlave", default=False),
        include_properties=values.boolean("includeProperties", default=True),
        pull_batch_size=values.count("pullBatchSize", PULL_MESSAGES_MAX, most=PULL_MESSAGES_MAX),
        pull_timeout_s=values.count("pullTimeoutMs", 60_000) / 1_000,
        retries=values.count("fetchOffset.numRetries", 10, least=0),
        retry_interval_s=values.count("fetchOffset.retryIntervalMs", 1_000, least=0) / 1_000,
        filter_pushdown=values.boolean("filterPushdown", default=False),
    )
