"""What a listener gets: a message together with where it stands and what happened to it."""

from __future__ import annotations

from functools import cached_property

from mqclient.compression import decompress
from mqclient.message_id import offset_message_id
from mqclient.message_queue import MessageQueue
from mqproto.names import RETRY_PREFIX
from mqproto.properties import (
    KEY_SEPARATOR,
    KEYS,
    PGROUP,
    RESERVED,
    RETRY_TOPIC,
    TAGS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
)
from mqproto.record import FLAG_COMPRESSED, Record
from mqproto.sealed_record import SealedRecord


class MessageExt:
    """A view of one record; what a consumer need not look at is decoded when it is asked for."""

    def __init__(self, record: Record | SealedRecord, broker_name: str) -> None:
        self._source = record
        self.broker_name = broker_name
        self.queue_offset = record.queue_offset
        self.reconsume_times = record.reconsume_times
        self.size = record.size  # bytes in the commit log

    @property
    def body(self) -> bytes:
        """What its producer gave, also when it was compressed on its way. Raises UnreadableBodyError."""
        return self._decompressed if self._source.sys_flag & FLAG_COMPRESSED else self._source.body

    @cached_property
    def _decompressed(self) -> bytes:
        return decompress(self._source.body, self._source.sys_flag)

    @property
    def _record(self) -> Record:
        if not isinstance(self._source, Record):
            self._source = self._source.decode()
        return self._source

    @property
    def queue_id(self) -> int:
        return self._record.queue_id

    @property
    def log_offset(self) -> int:
        """Where it stands in the log of its broker."""
        return self._record.log_offset

    @cached_property
    def topic(self) -> str:
        """The topic that was sent to, also when the message comes from the group's retry topic (MISSION C12)."""
        if self._record.topic.startswith(RETRY_PREFIX):
            return self.properties.get(RETRY_TOPIC, self._record.topic)
        return self._record.topic

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that it was read from; for a retried message a queue of the retry topic."""
        return MessageQueue(self._record.topic, self.broker_name, self.queue_id)

    @cached_property
    def properties(self) -> dict[str, str]:
        """Everything that travels beside the body, the queue's own entries included."""
        return decode_properties(self._record.properties)

    @property
    def user_properties(self) -> dict[str, str]:
        """What the producer set beside tag and keys: `properties` without the queue's own entries."""
        return {name: value for name, value in self.properties.items() if name not in RESERVED}

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(KEYS, "").split(KEY_SEPARATOR)) if KEYS in self.properties else ()

    @property
    def flag(self) -> int:
        return self._record.flag

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether its producer wanted it on disk before the broker acknowledged it."""
        return self.properties.get(WAIT) != "false"

    @property
    def born_timestamp_ms(self) -> int:
        """When the producer sent it, by the producer's clock."""
        return self._record.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        """When the broker stored it, by the broker's clock."""
        return self._record.store_timestamp_ms

    @property
    def message_id(self) -> str:
        """The producer's unique id; the id by position for a message that has none."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def transaction_id(self) -> str:
        """The transaction that it was sent in; empty for a message that was sent in none."""
        return self.properties[UNIQ_KEY] if {PGROUP, UNIQ_KEY} <= self.properties.keys() else ""

    @property
    def offset_message_id(self) -> str:
        """The id by position in the broker's log."""
        host, port = self._record.store_host
        return offset_message_id(host, port, self.log_offset)

    def __repr__(self) -> str:
        return f"<MessageExt {self.message_id} {self.message_queue} offset {self.queue_offset}>"
