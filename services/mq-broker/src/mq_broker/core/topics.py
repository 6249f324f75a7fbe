"""The topics of this broker, the rules for making and deleting one, and their registration at name servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core.limits import (
    AUTO_CREATED_TOPICS_MAX,
    REGISTRATION_TOPICS_MAX,
    TOPIC_COUNT_MAX,
    CountLimits,
    Creations,
)
from mqproto.codes import Permission
from mqproto.names import (
    CARRIED_TOPIC,
    DEFAULT_TOPIC,
    GROUP_PREFIXES,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    check_topic,
)

QUEUE_COUNT_MAX = 1_024
PERM_BITS = Permission.READ | Permission.WRITE | Permission.INHERIT


TOPIC_LIMITS = CountLimits(
    "topic", TOPIC_COUNT_MAX, "topicCountMax", AUTO_CREATED_TOPICS_MAX, "autoCreatedTopicsPerClient"
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on this broker (mechanisms N10, N11)."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int = Permission.READ_WRITE

    @property
    def readable(self) -> bool:
        return bool(self.perm & Permission.READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & Permission.WRITE)

    @property
    def queue_count(self) -> int:
        """Queues that may hold messages."""
        return max(self.read_queue_count, self.write_queue_count)


class TopicTable:
    """All topics by name.

    Invariants: a topic never loses readable queues that hold messages, and only an operator changes how many queues of
    a configured topic are offered to producers; `data_version` grows with every change; system topics are there from
    the start and cannot be changed or deleted from outside. Of a deleted topic each queue's next number is kept for
    good: what lies below it is deleted, and a topic of the same name goes on counting there.
    """

    def __init__(self, *, auto_create: bool, default_queue_count: int, delay_level_count: int) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self.creations = Creations(TOPIC_LIMITS)
        self._deleted_below: dict[str, dict[int, int]] = {}
        self._inferred: set[str] = set()  # topics without a configuration: the log shows their queues
        self.data_version = 0
        self._changed_topics: set[str] = set()
        self._listeners: list[Callable[[], None]] = []
        self.follows: Callable[[], bool] = lambda: (
            False
        )  # whether another broker alone makes topics, and this one hears
        self._put(TopicConfig(SCHEDULE_TOPIC, delay_level_count, delay_level_count))
        for topic in sorted(SYSTEM_TOPICS - {SCHEDULE_TOPIC, DEFAULT_TOPIC}):
            self._put(TopicConfig(topic, 1, 1))
        self.reconfigure(auto_create=auto_create, default_queue_count=default_queue_count)

    def reconfigure(self, *, auto_create: bool, default_queue_count: int) -> None:
        """Make topics by these rules from now on; those that are there stay, but for the default topic."""
        self._auto_create, self._default_queue_count = auto_create, default_queue_count
        if auto_create:
            perm = Permission.READ_WRITE | Permission.INHERIT
            self._put(TopicConfig(DEFAULT_TOPIC, default_queue_count, default_queue_count, perm))
        elif self._topics.pop(DEFAULT_TOPIC, None) is not None:
            self._changed(DEFAULT_TOPIC)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after every change, until what is returned is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def take_changed(self) -> set[str]:
        """The topics that have changed since the last call, created and deleted ones among them."""
        changed, self._changed_topics = self._changed_topics, set()
        return changed

    def get(self, topic: str) -> TopicConfig | None:
        """The topic, when it is there."""
        return self._topics.get(topic)

    def all(self, *, after: str = "") -> list[TopicConfig]:
        """Every topic whose name is behind `after`, by name."""
        return [self._topics[name] for name in sorted(name for name in self._topics if name > after)]

    def by_name(self) -> dict[str, TopicConfig]:
        """Every topic as of now, for the caller to keep."""
        return dict(self._topics)

    def get_or_offer(self, topic: str) -> TopicConfig | None:
        """The topic, or what `create` would make of it from the default topic, when that is allowed (mechanism N8) and
        this broker may make any. Raises IllegalNameError.
        """
        config = self._topics.get(topic)
        if config is not None:
            return config
        check_topic(topic)
        if not self._auto_create or self.follows():
            return None
        return TopicConfig(topic, self._default_queue_count, self._default_queue_count)

    def create(self, offered: TopicConfig, client: str) -> None:
        """Make what was offered, unless it is there, because `client` needs it. Raises TooManyError."""
        if offered.topic not in self._topics:
            self.creations.check(len(self._topics), client)
            self._put(offered)
            self.creations.made(client)

    def ensure_group_topic(self, topic: str, queue_count: int = 1) -> TopicConfig:
        """The retry or dead-letter topic of a group, with at least `queue_count` queues (mechanisms R1, R2)."""
        if not is_group_topic(topic):
            raise ValueError(f"{topic!r} is no retry or dead-letter topic")
        return self._with_queues(topic, queue_count, missing=queue_count)

    def ensure_for_arrival(self, topic: str, queue_id: int) -> int:
        """A message that was accepted earlier is about to come into this queue, from a delay or out of a transaction.

        Returns the queue that takes it: another one of the topic when that queue cannot be read, or was removed. A
        topic that was deleted meanwhile is made anew, as one that is created by itself: nothing accepted is lost.
        """
        config = self._topics.get(topic)
        if config is None or is_group_topic(topic):
            usual = 1 if is_group_topic(topic) else self._default_queue_count
            self._with_queues(topic, queue_id + 1, missing=usual)
            return queue_id
        if queue_id < config.read_queue_count:
            return queue_id
        return queue_id % min(config.read_queue_count, config.write_queue_count)  # one that can be read

    def update(self, config: TopicConfig) -> None:
        """Create or change a topic for an operator. Raises ValueError with what is allowed; then nothing changed."""
        self.check_update(config)
        self.put(config)

    def check_update(self, config: TopicConfig) -> None:
        """Raise ValueError, with what is allowed, unless an operator may create or change the topic like this."""
        check_topic(config.topic)
        _reject_system_topic(config.topic, "changed")
        for name, count in (("read", config.read_queue_count), ("write", config.write_queue_count)):
            if not 1 <= count <= QUEUE_COUNT_MAX:
                raise ValueError(f"{count} {name} queues; allowed are 1 to {QUEUE_COUNT_MAX}")
        if config.perm & ~PERM_BITS or not config.perm & Permission.READ_WRITE:
            raise ValueError(f"perm {config.perm} is not made of 2 (write), 4 (read) and 1 (inherit), such as 6")
        if config.topic not in self._topics:
            self.creations.check_total(len(self._topics))

    def put(self, config: TopicConfig) -> None:
        """The topic is like this, as an operator has decided."""
        self._inferred.discard(config.topic)
        self._put(config)

    def check_delete(self, topic: str) -> None:
        """Raise ValueError for a system topic, KeyError when there is no such topic."""
        _reject_system_topic(topic, "deleted")
        if topic not in self._topics:
            raise KeyError(topic)

    def delete(self, topic: str, next_offsets: Mapping[int, int]) -> None:
        """Forget the topic, if it is there; `next_offsets` are those of its queues that ever had a message."""
        self._topics.pop(topic, None)
        self._inferred.discard(topic)
        below = self._deleted_below.setdefault(topic, {})
        for queue_id, offset in next_offsets.items():
            below[queue_id] = max(offset, below.get(queue_id, 0))
        self._changed(topic)

    def deleted_below(self, topic: str, queue_id: int) -> int:
        """The messages of the queue below this number were deleted with the topic."""
        return self._deleted_below.get(topic, {}).get(queue_id, 0)

    def deleted(self) -> list[str]:
        """Every topic that was ever deleted; it may be there again."""
        return list(self._deleted_below)

    def deletions(self) -> Iterator[tuple[str, int, int]]:
        """Every queue that was deleted with its topic: (topic, queue id, next number then)."""
        for topic, queues in self._deleted_below.items():
            for queue_id, offset in queues.items():
                yield topic, queue_id, offset

    def clamp_deletions(self, max_offset: Callable[[str, int], int]) -> None:
        """Bring back what lies beyond its queue's end, as after a lost tail: what comes next must not be hidden."""
        for topic, queue_id, offset in list(self.deletions()):
            end = max_offset(topic, queue_id)
            if offset > end:
                self._deleted_below[topic][queue_id] = end
                self._changed(topic)

    def recovered(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """The log holds message number `queue_offset` of this queue, so that the topic has it and it can be read,
        unless the message was deleted with the topic. A configured number of write queues stays as it is.
        """
        config = self._topics.get(topic)
        if config is not None and (queue_id < config.read_queue_count or queue_id < config.write_queue_count):
            return  # as for nearly every record
        if queue_offset < self.deleted_below(topic, queue_id):
            return
        if config is None or topic in self._inferred or is_group_topic(topic):
            self._infer(topic, queue_id)
        elif queue_id >= config.queue_count:
            self._put(replace(config, read_queue_count=queue_id + 1))

    def promised(self, topic: str, queue_id: int) -> None:
        """The log holds a message that will come into this queue. A deleted topic stays deleted until it does, and a
        configured one keeps its queues: `ensure_for_arrival` finds one of them.
        """
        if topic in self._inferred or (topic not in self._topics and topic not in self._deleted_below):
            self._infer(topic, queue_id)

    def _infer(self, topic: str, queue_id: int) -> None:
        """The topic has at least this queue. An operator would have said how many: it was created by its first message,
        as this broker creates topics. What is wrong about that shows with further messages.
        """
        if topic not in self._topics:
            self._inferred.add(topic)
        usual = self._default_queue_count if self._auto_create and not is_group_topic(topic) else 1
        self._with_queues(topic, queue_id + 1, missing=usual)

    def _with_queues(self, topic: str, count: int, *, missing: int) -> TopicConfig:
        """The topic with at least `count` queues; one that is missing gets `missing` of them, if that is more."""
        config = self._topics.get(topic)
        if config is None:
            count = max(count, missing)
            return self._put(TopicConfig(topic, count, count))
        if count > config.queue_count:
            return self._put(replace(config, read_queue_count=count, write_queue_count=count))
        return config

    def _put(self, config: TopicConfig) -> TopicConfig:
        if self._topics.get(config.topic) != config:
            self._topics[config.topic] = config
            self._changed(config.topic)
        return config

    def _changed(self, *topics: str) -> None:
        self.data_version += 1
        self._changed_topics.update(topics)
        for listener in self._listeners:
            listener()

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's topics.json, and the deletions."""
        return self.frozen()()

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """What makes the document of this moment, also in another thread."""
        topics, counter = dict(self._topics), self.data_version
        deleted_below = {topic: dict(queues) for topic, queues in self._deleted_below.items()}
        return lambda: _document(topics, deleted_below, counter)

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what topics.json says. Raises KeyError, TypeError or ValueError when it is not of that form."""
        version, topics = int(document["dataVersion"]["counter"]), topics_of(document)
        self._deleted_below = deletions_of(document)
        for config in topics:
            self._put(config)
        self.data_version = max(self.data_version, version)

    def take_over(self, document: dict[str, Any]) -> bool:
        """From now on the topics are those of another broker's document; whether that has changed anything.

        Each broker has its own system topics.
        Raises KeyError, TypeError or ValueError when it is not of that form; then nothing has changed.
        """
        topics, deleted_below = {config.topic: config for config in topics_of(document)}, deletions_of(document)
        topics |= {name: config for name, config in self._topics.items() if name in SYSTEM_TOPICS}
        if (topics, deleted_below) == (self._topics, self._deleted_below):
            return False
        self._topics, self._deleted_below = topics, deleted_below
        self._changed(*topics)
        return True


def _document(
    topics: Mapping[str, TopicConfig], deleted_below: Mapping[str, Mapping[int, int]], counter: int
) -> dict[str, Any]:
    table = {name: entry_of(config) for name, config in sorted(topics.items())}
    deleted = {
        topic: {str(queue_id): offset for queue_id, offset in sorted(queues.items())}
        for topic, queues in sorted(deleted_below.items())
    }
    return {"dataVersion": {"counter": counter}, "deletedBelow": deleted, "topicConfigTable": table}


def entry_of(config: TopicConfig) -> dict[str, Any]:
    """The topic as topics.json has it."""
    return {
        "order": False,
        "perm": int(config.perm),
        "readQueueNums": config.read_queue_count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": config.topic,
        "topicSysFlag": 0,
        "writeQueueNums": config.write_queue_count,
    }


def topic_of(name: str, entry: dict[str, Any]) -> TopicConfig:
    """The inverse. Raises KeyError when it is not of that form."""
    return TopicConfig(name, entry["readQueueNums"], entry["writeQueueNums"], entry["perm"])


def topics_of(document: dict[str, Any]) -> list[TopicConfig]:
    """The topics of topics.json, but for system topics. Raises KeyError or TypeError when it is not of that form."""
    found = tables.table(document, "topicConfigTable")
    entries = {name: tables.table(found, name) for name in found if name not in SYSTEM_TOPICS}
    return [topic_of(name, entry) for name, entry in entries.items()]


def deletions_of(document: dict[str, Any]) -> dict[str, dict[int, int]]:
    """What topics.json says about deleted topics: topic -> queue id -> next number when it was deleted.

    Raises KeyError, TypeError or ValueError when it is not of that form.
    """
    if "deletedBelow" not in document:
        return {}  # RocketMQ's, or from before topics could be deleted
    found = tables.table(document, "deletedBelow")
    return {
        topic: {int(queue_id): int(offset) for queue_id, offset in tables.table(found, topic).items()}
        for topic in found
    }


def is_group_topic(topic: str) -> bool:
    """Whether it is the retry or dead-letter topic of a group."""
    return topic.startswith(GROUP_PREFIXES)


def _reject_system_topic(topic: str, what: str) -> None:
    if topic in SYSTEM_TOPICS:
        raise ValueError(f"the topic {topic!r} belongs to the queue itself and cannot be {what}")


# The number of each queue of waiting records: delay levels from 1 up, TIMER for records with a due time of their own,
# and CARRIED for the queue in which earlier versions kept what the timer has now.
TIMER, CARRIED = -1, 0
_OTHER_QUEUES = {TIMER: (TIMER_TOPIC, 0), CARRIED: (CARRIED_TOPIC, 0)}
_OTHER_LEVELS = {topic: level for level, (topic, _) in _OTHER_QUEUES.items()}


def waiting_queue(level: int) -> tuple[str, int]:
    """Topic and queue id of the queue with this number."""
    return _OTHER_QUEUES.get(level) or (SCHEDULE_TOPIC, level - 1)


def level_of(topic: str, queue_id: int) -> int | None:
    """The inverse; None for a queue that holds no waiting records."""
    if topic == SCHEDULE_TOPIC:
        return queue_id + 1
    return _OTHER_LEVELS.get(topic)


Topics = Mapping[str, TopicConfig]


@dataclass(frozen=True, slots=True)
class TopicsPart:
    """One request's part: with `adds` it changes what was told before; the last one of a registration is complete."""

    changed: list[TopicConfig]
    deleted: list[str]
    adds: bool
    more_follows: bool


def parts(told: Topics | None, topics: Topics) -> Iterator[TopicsPart]:
    """How `told` becomes `topics`; None: nothing was told yet. At least one part, which may be empty."""
    if told is None:
        changed, deleted = sorted(topics), []
    else:
        changed = [name for name, config in topics.items() if _differs(told.get(name), config)]
        deleted = [name for name in told if name not in topics]
    size = REGISTRATION_TOPICS_MAX
    count = max(1, -(-len(changed) // size), -(-len(deleted) // size))
    for number in range(count):
        here = slice(number * size, (number + 1) * size)
        yield TopicsPart(
            [topics[name] for name in changed[here]], deleted[here], told is not None or number > 0, number < count - 1
        )


def _differs(before: TopicConfig | None, now: TopicConfig) -> bool:
    return before is not now and before != now  # most are the same object
