"""Consumer groups for an operator: created, changed, deleted, and their progress (mechanisms C23, L11-L13, N9, N11)."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.limits import RejectedError, first_few
from mq_broker.core.members import Connection, Consumer
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups, check_changeable
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.processor.querying import Querying
from mq_broker.processor.sessions import Session, Sessions
from mq_broker.processor.topic_administration import Changing, Moved, TopicAdministration, require_master
from mq_broker.store.changes import Change
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.names import WAITING_TOPICS, dlq_topic, retry_topic
from mqproto.record import Record, decode_record
from osenv import Clock
from osenv.clock import timeout

log = logging.getLogger(__name__)


def require_known(group: str, groups: SubscriptionGroups, offsets: ConsumerOffsets) -> None:
    """Raise RejectedError for a group that has neither settings nor an offset here.

    A group that was made by itself a moment before a crash may have its offsets only.
    """
    if groups.get(group) is None and not offsets.topics_of(group):
        raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist")


@dataclass
class GroupAdministration:
    """The processor of what an operator does with consumer groups.

    Invariant: each change is one record of the log (store/changes.py): it has happened wholly or not at all.
    """

    store: MessageStore
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    sessions: Sessions
    topics: TopicAdministration

    def recover(self) -> None:
        """Bring everything in line with the deletions that subscriptionGroup.json and the log tell of."""
        self.groups.clamp(self.store.log_end)
        for group in self.groups.begun_anew():
            self.offsets.forget_before(group)

    async def update(self, config: SubscriptionGroup) -> None:
        """Create or change a group; as durable as an acknowledged message on return. Raises RejectedError."""
        require_master(self.store)
        try:
            self.groups.check_update(config)
        except ValueError as error:
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        topics = self._retry_topic(config)
        said = self.topics.changing.changes.groups_said.get(config.group)
        is_so = self.groups.get(config.group) == config == said and not topics
        await self.topics.changing.make(None if is_so else Change(topics=topics, groups={config.group: config}))

    async def delete(self, group: str, *, clean_offsets: bool) -> None:
        """Forget the group's settings; with `clean_offsets` its offsets too, and what waited to be tried again.

        As durable as an acknowledged message on return. Its dead letters stay. Raises RejectedError.
        """
        require_master(self.store)
        try:
            check_changeable(group)
        except ValueError as error:
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        try:
            require_known(group, self.groups, self.offsets)
        except RejectedError:
            await self.topics.changing.make()  # gone, perhaps, by a deletion that is not everywhere yet
            raise
        if members := self.sessions.members.consumer_ids(group):
            sentence = f"group {group!r} has active members: {first_few(members, ', ')}; stop them first"
            raise RejectedError(ResponseCode.NO_PERMISSION, sentence)
        log.warning("group %s is deleted%s", group, " with its offsets" if clean_offsets else "")
        change = Change(groups={group: None})
        if clean_offsets:  # a later group of this name begins anew: it must not get what this one had to try again
            retries = retry_topic(group)
            change = replace(
                change,
                topics={retries: None},
                deleted_below={retries: self.topics.next_offsets(retries)},
                first_resets={group: self.offsets.resets_after(group)},
            )
        await self.topics.changing.make(change)

    def _retry_topic(self, config: SubscriptionGroup) -> dict[str, TopicConfig]:
        """The group's retry topic as it has to become, if it is there and has too few queues."""
        known, count = self.topics.topics.get(retry_topic(config.group)), max(1, config.retry_queue_count)
        if known is None or known.queue_count >= count:
            return {}
        return {known.topic: replace(known, read_queue_count=count, write_queue_count=count)}


QUEUES_PER_STEP = 1_024  # of the search for what is not consumed; takes about 2 ms
QUEUE_END = -1  # as a time to reset to: behind the last message


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue: `consumer_offset` is None without a commit, `last_timestamp_ms` 0 when that is not known any more.

    `finished_beyond` counts the messages that are finished although they lie beyond the offset.
    """

    topic: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    last_timestamp_ms: int
    finished_beyond: int = 0


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One queue's offset before a reset (None when there was none) and after it."""

    queue_id: int
    before: int | None
    now: int


@dataclass
class ConsumeProgress:
    """The progress of a group, and resets of its offsets (mechanisms C23, L13).

    The processor of what an operator asks about a group's offsets.

    Invariant: a reset is on disk before it is answered; from the moment it is decided no late report undoes it.
    """

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    sessions: Sessions
    querying: Querying
    changing: Changing

    async def unconsumed_below(self, log_offset: int) -> list[str]:
        """The groups that have not consumed everything below this place in the log: `group (queue of topic)`.

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

        A topic that is not there has no queues. Raises RejectedError for a group that is unknown; OSError.
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
        """Reset the group's offsets to the first message of each queue that was stored at or after the time (-1: its
        end).

        Without `force` no offset moves forward. What is finished beyond an offset that is set is forgotten. Durable on
        return; returns the changes, and the client ids of the members that were told. Raises RejectedError, OSError.
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
        """Reset the group's offsets to exactly (queue id, offset), and leave the topic's other queues as they are.

        All of them, or none when one makes no sense. Durable on return, and returns the same as `reset`. Raises
        RejectedError, OSError.
        """
        require_master(self.store)
        require_known(group, self.groups, self.offsets)
        queue_count = self._queue_count(topic)
        if len(dict(offsets)) < len(offsets):
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, "each queue can be named once")
        for queue_id, offset in offsets:
            if not 0 <= queue_id < queue_count:
                sentence = f"topic {topic!r} has no queue {queue_id}; it has 0 to {queue_count - 1}"
                raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
            end = self.store.queue_end(topic, queue_id)
            if not 0 <= offset <= end:
                sentence = f"offset {offset} of queue {queue_id} of {topic!r}; allowed are 0 to {end}"
                raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
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
            raise RejectedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        return config.queue_count


RUNNING_INFO_TIMEOUT_S = 5
CONSUME_DIRECTLY_TIMEOUT_S = 30  # a listener works meanwhile


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """A client's answer. `result` is passed on as it came; None when the code is not SUCCESS."""

    code: ResponseCode
    remark: str
    result: object


@dataclass(slots=True)
class _Pending:
    session: Session
    answer: asyncio.Future[CommandAnswer]


@dataclass
class ClientCommands:
    """Commands of an operator to an active consumer, by way of its session (mechanisms L11-L13).

    The processor of commands to consumers.

    Invariants: each command is answered once: by the client it was sent to, by the end of its session, or by the time;
    an answer without a caller is dropped.
    """

    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    sessions: Sessions
    querying: Querying
    clock: Clock
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def connections(self, group: str) -> list[Connection]:
        """The group's active members, sorted. Raises RejectedError for a group that is unknown."""
        require_known(group, self.groups, self.offsets)
        return self.sessions.members.connections(group)

    async def running_info(self, group: str, client_id: str) -> object:
        """The member's report of its state. Raises RejectedError."""
        self._member(group, client_id)
        return await self._ask(
            group, client_id, RUNNING_INFO_TIMEOUT_S, lambda session, id_: session.get_running_info(id_, group)
        )

    async def consume_directly(self, group: str, client_id: str, log_offset: int) -> object:
        """The outcome of the message at this place in the member's listener. No offset moves.

        The message has to be of a topic to which the member subscribes, or of the group's retry or dead-letter topic.
        Raises RejectedError, OSError.
        """
        self._member(group, client_id)
        try:
            record = await self.querying.by_log_offset(log_offset)
        except ValueError as error:
            raise RejectedError(ResponseCode.QUERY_NOT_FOUND, str(error)) from error
        _require_consumable(decode_record(record), client_id, self._member(group, client_id))
        return await self._ask(
            group,
            client_id,
            CONSUME_DIRECTLY_TIMEOUT_S,
            lambda session, id_: session.consume_directly(id_, group, record),
        )

    def answered(self, session: Session, command_id: int, answer: CommandAnswer) -> None:
        """A client has answered a command that came by its session."""
        pending = self._pending.get(command_id)
        if pending is None or pending.session is not session or pending.answer.done():
            log.info("dropped the answer to command %d, which has no caller any more", command_id)
        else:
            pending.answer.set_result(answer)

    def ended(self, session: Session) -> None:
        """The session has ended: no answer comes by it any more."""
        for pending in self._pending.values():
            if pending.session is session and not pending.answer.done():
                sentence = "the client's session has ended before it answered"
                pending.answer.set_exception(RejectedError(ResponseCode.CONSUMER_NOT_ONLINE, sentence))

    def _member(self, group: str, client_id: str) -> Consumer:
        consumer = self.sessions.members.consumer(client_id, group)
        if consumer is None:
            require_known(group, self.groups, self.offsets)
            raise _not_online(group, client_id)
        return consumer

    async def _ask(self, group: str, client_id: str, timeout_s: float, send: Callable[[Session, int], None]) -> object:
        session = self.sessions.members.session_of(client_id, group)
        if session is None:
            raise _not_online(group, client_id)
        command_id = next(self._ids)
        pending = _Pending(session, asyncio.get_running_loop().create_future())
        self._pending[command_id] = pending
        try:
            send(session, command_id)
            async with timeout(self.clock, timeout_s):
                answer = await pending.answer
        except TimeoutError:
            sentence = f"{client_id!r} has not answered within {timeout_s:g} s"
            raise RejectedError(ResponseCode.CONSUMER_NOT_ONLINE, sentence) from None
        finally:
            del self._pending[command_id]
        if answer.code is not ResponseCode.SUCCESS:
            raise RejectedError(answer.code, answer.remark)
        return answer.result


def _not_online(group: str, client_id: str) -> RejectedError:
    return RejectedError(ResponseCode.CONSUMER_NOT_ONLINE, f"{client_id!r} is no active member of group {group!r}")


def _require_consumable(record: Record, client_id: str, consumer: Consumer) -> None:
    """Raise RejectedError unless the record is one that the consumer could get by itself, now or before it gave up."""
    if record.topic in WAITING_TOPICS:
        sentence = f"the record at {record.log_offset} still waits for its delivery"
        raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
    own = {retry_topic(consumer.group), dlq_topic(consumer.group)}
    if record.topic not in consumer.topics() | own:
        sentence = f"the record at {record.log_offset} is of topic {record.topic!r}, to which {client_id!r}"
        raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, f"{sentence} does not subscribe in group {consumer.group!r}")
