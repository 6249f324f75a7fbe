"""The topics of this broker, and the rules for making one.

Invariants: a topic never loses queues that may hold messages; `data_version` grows with every change; system topics are
there from the start and cannot be changed from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mq_broker.core import documents as tables
from mqproto.codes import Permission
from mqproto.names import (
    CARRIED_TOPIC,
    CHECK_MAX_TIMES_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    check_topic,
)

QUEUE_COUNT_MAX = 1_024
PERM_BITS = Permission.READ | Permission.WRITE | Permission.INHERIT


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on this broker (MISSION N10, N11)."""

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
    """All topics by name."""

    def __init__(self, *, auto_create: bool, default_queue_count: int, delay_level_count: int) -> None:
        self._topics: dict[str, TopicConfig] = {}
        self._auto_create = auto_create
        self._default_queue_count = default_queue_count
        self.data_version = 0
        self._listeners: list[Callable[[], None]] = []
        self._put(TopicConfig(SCHEDULE_TOPIC, delay_level_count, delay_level_count))
        for topic in (CARRIED_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIMES_TOPIC):
            self._put(TopicConfig(topic, 1, 1))
        if auto_create:
            perm = Permission.READ_WRITE | Permission.INHERIT
            self._put(TopicConfig(DEFAULT_TOPIC, default_queue_count, default_queue_count, perm))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after every change."""
        self._listeners.append(listener)

    def get(self, topic: str) -> TopicConfig | None:
        """The topic, when it is there."""
        return self._topics.get(topic)

    def all(self) -> list[TopicConfig]:
        """Every topic, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def get_or_create(self, topic: str) -> TopicConfig | None:
        """The topic, made from the default topic when that is allowed (MISSION N8). Raises IllegalNameError."""
        config = self._topics.get(topic)
        if config is not None or not self._auto_create:
            return config
        check_topic(topic)
        return self._put(TopicConfig(topic, self._default_queue_count, self._default_queue_count))

    def ensure_group_topic(self, topic: str) -> TopicConfig:
        """The retry or dead-letter topic of a group, made with one queue where it is missing (MISSION R1, R2)."""
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise ValueError(f"{topic!r} is no retry or dead-letter topic")
        return self._topics.get(topic) or self._put(TopicConfig(topic, 1, 1))

    def update(self, config: TopicConfig) -> None:
        """Create or change a topic for an operator. Raises ValueError with what is allowed; then nothing changed."""
        check_topic(config.topic)
        if config.topic in SYSTEM_TOPICS:
            raise ValueError(f"the topic {config.topic!r} belongs to the queue itself and cannot be changed")
        for name, count in (("read", config.read_queue_count), ("write", config.write_queue_count)):
            if not 1 <= count <= QUEUE_COUNT_MAX:
                raise ValueError(f"{count} {name} queues; allowed are 1 to {QUEUE_COUNT_MAX}")
        if config.perm & ~PERM_BITS or not config.perm & Permission.READ_WRITE:
            raise ValueError(f"perm {config.perm} is not made of 2 (write), 4 (read) and 1 (inherit), such as 6")
        self._put(config)

    def recovered(self, topic: str, queue_id: int) -> None:
        """The log holds a message of this queue: the topic has it, whatever the configuration file lost."""
        config = self._topics.get(topic)
        if config is None:
            self._put(TopicConfig(topic, queue_id + 1, queue_id + 1))
        elif queue_id >= config.queue_count:
            self._put(replace(config, read_queue_count=queue_id + 1, write_queue_count=queue_id + 1))

    def _put(self, config: TopicConfig) -> TopicConfig:
        if self._topics.get(config.topic) != config:
            self._topics[config.topic] = config
            self.data_version += 1
            for listener in self._listeners:
                listener()
        return config

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's topics.json."""
        table = {
            config.topic: {
                "order": False,
                "perm": int(config.perm),
                "readQueueNums": config.read_queue_count,
                "topicFilterType": "SINGLE_TAG",
                "topicName": config.topic,
                "topicSysFlag": 0,
                "writeQueueNums": config.write_queue_count,
            }
            for config in self.all()
        }
        return {"dataVersion": {"counter": self.data_version}, "topicConfigTable": table}

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over what topics.json says. Raises KeyError or TypeError when it is not of that form."""
        found = tables.table(document, "topicConfigTable")
        for name in found:
            entry = tables.table(found, name)
            if name not in SYSTEM_TOPICS:
                config = TopicConfig(name, entry["readQueueNums"], entry["writeQueueNums"], entry["perm"])
                self._put(config)
        self.data_version = max(self.data_version, document["dataVersion"]["counter"])
