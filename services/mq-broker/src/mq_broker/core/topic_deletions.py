"""What follows from the deletions that topics.json tells of, for groups that had consumed the topics."""

from __future__ import annotations

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.topics import TopicTable


def forget_offsets(topic: str, topics: TopicTable, offsets: ConsumerOffsets) -> None:
    """Forget the groups' offsets in a deleted topic; when it is there again, those from before its deletion only."""
    if topics.get(topic) is None:
        offsets.forget_topic(topic)
    else:
        offsets.forget_below(topic, lambda queue_id: topics.deleted_below(topic, queue_id))
