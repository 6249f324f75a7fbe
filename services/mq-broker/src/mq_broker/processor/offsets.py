"""Consumer offsets: asked for, and committed (MISSION C20, C22).

Invariant: after a reset nobody who has not heard of it moves the offset (core/offset_fences.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.offset_fences import OffsetFences
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
    fences: OffsetFences

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group goes on in this queue; None when it has never said."""
        return self.offsets.query(group, topic, queue_id)

    def commit(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> tuple[ResponseCode, str]:
        """Remember (topic, queue id, offset) for the group: all of them, or none when one makes no sense.

        What was consumed before a reset is left out, and the remark says so. It is SUCCESS all the same, as in
        RocketMQ: the committer is about to hear of the reset.
        """
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
        late = []
        for topic, queue_id, offset in offsets:
            if self.fences.passes(group, topic, queue_id, offset):
                self.offsets.commit(group, topic, queue_id, offset)
            else:
                late.append(f"{offset} in queue {queue_id} of {topic}")
        remark = f"left out, because the offsets have been reset since: {', '.join(late)}" if late else ""
        return ResponseCode.SUCCESS, remark
