"""How far a group has consumed, and where it is to begin anew (MISSION C23, L13).

Invariant: a reset is on disk before it is answered; from the moment it is decided nobody's late report undoes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.limits import RefusedError
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.changing import Changing, Moved
from mq_broker.processor.group_administration import require_known
from mq_broker.processor.querying import Querying
from mq_broker.processor.refusals import require_master
from mq_broker.processor.sessions import Sessions
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode

log = logging.getLogger(__name__)

QUEUES_PER_STEP = 1_024  # of the search for what is not consumed; takes about 2 ms
QUEUE_END = -1  # as a time to reset to: behind the last message


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue: `consumer_offset` is None without a commit, `last_consumed_ms` 0 when that is not known any more.

    `finished_beyond` counts the messages that are finished although they lie beyond the offset.
    """

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    last_consumed_ms: int
    finished_beyond: int = 0


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
    sessions: Sessions
    querying: Querying
    changing: Changing

    async def unconsumed_below(self, log_offset: int) -> list[str]:
        """Who has not consumed everything below this place in the log: `group (queue of topic)`.

        A group that has begun with a topic reads its other queues from their first message (ADR 90). Other work has
        its turn every `QUEUES_PER_STEP` queues.
        """
        found, looked_at = list[str](), 0
        for group, topic in self.offsets.begun():
            queues = self.store.queues.of_topic(topic)
            found += [
                f"{group} (queue {queue.queue_id} of {topic})"
                for queue in queues
                if (first := max(self.offsets.query(group, topic, queue.queue_id) or 0, queue.min_offset))
                < queue.max_offset
                and queue.entry(first)[0] < log_offset
            ]
            if (looked_at := looked_at + len(queues)) >= QUEUES_PER_STEP:
                looked_at = 0
                await asyncio.sleep(0)
        return found

    async def stats(self, group: str, topic: str = "") -> list[QueueProgress]:
        """Every readable queue of the topic, or of each topic for which the group has an offset.

        A topic that is not there has no queues. Raises RefusedError for a group that nobody knows; OSError.
        """
        require_known(group, self.groups, self.offsets)
        found = []
        for name in [topic] if topic else self.offsets.topics_of(group):
            config = self.topics.get(name)
            for queue_id in range(config.read_queue_count if config else 0):
                progress = self.offsets.progress(group, name, queue_id)
                offset = None if progress is None else progress.offset
                last_ms = await self.querying.stored_at_ms(name, queue_id, offset - 1) if offset else 0
                beyond = 0 if progress is None else progress.finished_beyond
                end = self.store.queue_end(name, queue_id)
                found.append(QueueProgress(name, queue_id, end, offset, last_ms, beyond))
        return found

    async def reset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> tuple[list[OffsetChange], list[str]]:
        """Let the group go on at the first message of each queue that was stored at or after the time (-1: at its end).

        Without `force` no offset moves forward. What is finished beyond an offset that is set is forgotten. Durable on
        return; returns the changes, and the client ids of the members that were told. Raises RefusedError, OSError.
        """
        require_master(self.store)
        require_known(group, self.groups, self.offsets)
        queue_count = self._queue_count(topic)
        wanted = [await self._offset_at(topic, queue_id, timestamp_ms) for queue_id in range(queue_count)]
        require_master(self.store)  # nor may it be another's by now
        self._queue_count(topic)  # it may have been deleted while we searched
        moving, staying = list[OffsetChange](), list[OffsetChange]()
        for queue_id, offset in enumerate(wanted):
            known = self.offsets.progress(group, topic, queue_id)
            if known is None:
                moving.append(OffsetChange(queue_id, None, offset))
            elif force or (offset <= known.offset and offset < known.end):
                moving.append(OffsetChange(queue_id, known.offset, offset))
            else:
                staying.append(OffsetChange(queue_id, known.offset, known.offset))
        told = await self._set(group, topic, moving)
        return sorted([*moving, *staying], key=lambda change: change.queue_id), told

    async def reset_to(
        self, group: str, topic: str, offsets: Sequence[tuple[int, int]]
    ) -> tuple[list[OffsetChange], list[str]]:
        """Let the group go on exactly at (queue id, offset), and leave the topic's other queues as they are.

        All of them, or none when one makes no sense. Durable on return, and returns the same as `reset`. Raises
        RefusedError, OSError.
        """
        require_master(self.store)
        require_known(group, self.groups, self.offsets)
        queue_count = self._queue_count(topic)
        if len(dict(offsets)) < len(offsets):
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "each queue can be named once")
        for queue_id, offset in offsets:
            if not 0 <= queue_id < queue_count:
                sentence = f"topic {topic!r} has no queue {queue_id}; it has 0 to {queue_count - 1}"
                raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
            end = self.store.queue_end(topic, queue_id)
            if not 0 <= offset <= end:
                sentence = f"offset {offset} of queue {queue_id} of {topic!r}; allowed are 0 to {end}"
                raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        changes = [
            OffsetChange(queue_id, self.offsets.query(group, topic, queue_id), offset) for queue_id, offset in offsets
        ]
        return changes, await self._set(group, topic, changes)

    async def _set(self, group: str, topic: str, changes: Iterable[OffsetChange]) -> list[str]:
        """Make the changes, as durably as a message; returns the client ids of the members that were told."""
        told = list[str]()

        def tell(moved: Sequence[Moved]) -> None:
            where = {queue_id: progress.offset for _, queue_id, progress in moved}
            log.warning("group %s goes on in %s at %s", group, topic, where)
            told.extend(self.sessions.tell_reset(group, moved))

        await self.changing.reset(group, [(topic, change.queue_id, change.now) for change in changes], tell)
        return told

    async def _offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        if timestamp_ms == QUEUE_END:
            return self.store.queue_end(topic, queue_id)
        return await self.querying.offset_by_time(topic, queue_id, timestamp_ms)

    def _queue_count(self, topic: str) -> int:
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        return config.queue_count
