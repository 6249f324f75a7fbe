"""How far a group has consumed, and where it is to begin anew (MISSION L13).

Invariant: a reset is on disk before it is answered; from the moment it is decided nobody's late commit undoes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.offset_fences import OffsetFences
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.group_administration import require_known
from mq_broker.processor.querying import Querying
from mq_broker.processor.refusals import RefusedError
from mq_broker.processor.sessions import Sessions
from mq_broker.processor.state_names import CONSUMER_OFFSETS
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode

log = logging.getLogger(__name__)

QUEUE_END = -1  # as a time to reset to: behind the last message


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue: `consumer_offset` is None without a commit, `last_consumed_ms` 0 when that is not known any more."""

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    last_consumed_ms: int


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One queue's offset before a reset (None when there was none) and after it."""

    queue_id: int
    before: int | None
    now: int


@dataclass
class ConsumeProgress:
    """The processor of what an operator asks about a group's offsets."""

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    fences: OffsetFences
    sessions: Sessions
    querying: Querying

    async def stats(self, group: str, topic: str = "") -> list[QueueProgress]:
        """Every readable queue of the topic, or of each topic for which the group has an offset.

        A topic that is not there has no queues. Raises RefusedError for a group that nobody knows; OSError.
        """
        require_known(group, self.groups, self.offsets)
        found = []
        for name in [topic] if topic else self.offsets.topics_of(group):
            config = self.topics.get(name)
            for queue_id in range(config.read_queue_count if config else 0):
                offset = self.offsets.query(group, name, queue_id)
                _, end = self.store.queue_bounds(name, queue_id)
                last_ms = await self.querying.stored_at_ms(name, queue_id, offset - 1) if offset else 0
                found.append(QueueProgress(name, queue_id, end, offset, last_ms))
        return found

    async def reset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> tuple[list[OffsetChange], list[str]]:
        """Let the group go on at the first message of each queue that was stored at or after the time (-1: at its end).

        Without `force` no offset moves forward. Returns the changes, and the client ids of the members that were told.
        Raises RefusedError, OSError.
        """
        require_known(group, self.groups, self.offsets)
        queue_count = self._queue_count(topic)
        wanted = [await self._offset_at(topic, queue_id, timestamp_ms) for queue_id in range(queue_count)]
        self._queue_count(topic)  # it may have been deleted while we searched
        changes = [self._change(group, topic, *queue, force=force) for queue in enumerate(wanted)]
        moved = [change for change in changes if force or change.now != change.before]
        for change in moved:
            _, end = self.store.queue_bounds(topic, change.queue_id)
            self.offsets.commit(group, topic, change.queue_id, change.now)
            self.fences.raise_at(group, topic, change.queue_id, change.now, end)
        log.warning("group %s goes on in %s at %s", group, topic, {change.queue_id: change.now for change in moved})
        told = self.sessions.tell_reset(group, [(topic, change.queue_id, change.now) for change in moved])
        await self.store.persist(CONSUMER_OFFSETS)
        return changes, told

    async def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms == QUEUE_END:
            return self.store.queue_end(topic, queue_id)
        return await self.querying.offset_by_time(topic, queue_id, timestamp_ms)

    def _change(self, group: str, topic: str, queue_id: int, offset: int, *, force: bool) -> OffsetChange:
        before = self.offsets.query(group, topic, queue_id)
        return OffsetChange(queue_id, before, offset if force or before is None else min(offset, before))

    def _queue_count(self, topic: str) -> int:
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        return config.queue_count
