"""Consumer offsets: asked for, and committed (MISSION C20, C22)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.topics import TopicTable
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.names import IllegalNameError, check_group


@dataclass
class Offsets:
    """The processor of offset requests."""

    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group goes on in this queue; None when it has never said."""
        return self.offsets.query(group, topic, queue_id)

    def commit(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> tuple[ResponseCode, str]:
        """Remember (topic, queue id, offset) for the group: all of them, or none when one makes no sense."""
        try:
            check_group(group)
        except IllegalNameError as error:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)
        for topic, queue_id, offset in offsets:
            if self.topics.get(topic) is None:
                return ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist"
            _, high = self.store.queue_bounds(topic, queue_id)
            if not 0 <= offset <= high:
                remark = f"offset {offset} of queue {queue_id} of {topic!r}; allowed are 0 to {high}"
                return ResponseCode.SYSTEM_ERROR, remark
        for topic, queue_id, offset in offsets:
            self.offsets.commit(group, topic, queue_id, offset)
        return ResponseCode.SUCCESS, ""
