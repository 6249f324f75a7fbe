"""What a store holds, in one form for both sides: RocketMQ's reading and ours have to be equal, field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mqproto.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY

QueueName = tuple[str, int]  # topic, queue id
KeyName = tuple[str, str]  # topic, key


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Bytes of the files, which a store has to be opened with; small enough for a test to cross them."""

    commit_log_file_bytes: int = 64 * 1024
    consume_queue_file_entries: int = 100
    index_hash_slots: int = 100
    index_entries: int = 600


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One record with its consume-queue entry: (log offset, size, tag hash or due time)."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    body: bytes
    body_crc: int
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_ip: str
    store_timestamp_ms: int
    reconsume_times: int
    prepared_transaction_offset: int
    entry: tuple[int, int, int]

    @property
    def keys(self) -> set[str]:
        """Under which the index has the message."""
        keys = {self.properties.get(UNIQ_KEY, ""), *self.properties.get(KEYS, "").split(KEY_SEPARATOR)}
        return keys - {""}


@dataclass(frozen=True, slots=True)
class StoreContent:
    """A whole store. `messages` stand in the order of the log."""

    log_end: int
    queues: Mapping[QueueName, tuple[int, int]]
    messages: tuple[StoredMessage, ...]

    @classmethod
    def collect(cls, log_end: int, queues: Mapping[QueueName, Any], messages: Iterable[StoredMessage]) -> StoreContent:
        """Put the messages, which were read queue by queue, into order."""
        return cls(log_end, dict(queues), tuple(sorted(messages, key=lambda message: message.log_offset)))

    @property
    def places_by_key(self) -> dict[KeyName, list[int]]:
        """Log offsets of the messages that have a key, for every key of every topic: what an index has to find."""
        places: dict[KeyName, list[int]] = {}
        for message in self.messages:
            for key in message.keys:
                places.setdefault((message.topic, key), []).append(message.log_offset)
        return places
