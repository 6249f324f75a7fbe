"""Requests of consumers: messages of a queue (mechanism C6), and progress of groups (mechanisms C20-C23)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from mq_broker.core.batches import Traffic
from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.documents import CONSUMER_OFFSETS
from mq_broker.core.limits import CONSUMER_OFFSETS_MAX, RejectedError, TooManyError, first_few
from mq_broker.core.pulling import (
    NO_REPLICA,
    PULL_BYTES_MAX,
    PULL_MESSAGES_MAX,
    MessageFilter,
    MessageFilters,
    PullQuery,
    PullResult,
    ReplicaReads,
    Search,
    Selection,
)
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.querying import Querying
from mq_broker.processor.topic_administration import Changing, require_master
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.message_store import MessageStore
from mqfilter import Condition
from mqproto.codes import PullStatus, ResponseCode
from mqproto.names import RETRY_PREFIX, IllegalNameError, check_group


@dataclass(slots=True)
class _Plan:
    """A pull that will find entries to look at, and how much it may bring."""

    group: SubscriptionGroup
    queue: ConsumeQueue
    wanted: MessageFilter
    max_messages: int
    max_bytes: int


@dataclass
class Pulling:
    """The processor of pull requests.

    A replica serves what it has. A pull of what it does not have yet waits, as for a message that is not sent yet.

    Invariant: a pull with a version of its progress gets no messages where the group's progress has another version.
    The member may have pulled messages that are lost, and would pass over others with the same numbers (ADR 135).
    """

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    filters: MessageFilters
    offsets: ConsumerOffsets
    is_broadcasting: Callable[[str], bool]  # whether the group's members consume by broadcasting now
    reads: ReplicaReads = NO_REPLICA
    given: Traffic[tuple[str, str]] = field(default_factory=Traffic)  # by topic and group

    @property
    def messages_got(self) -> int:
        """By all groups, since the broker was opened."""
        return sum(amount.messages for _, amount in self.given.all())

    def pull_hot(self, query: PullQuery) -> PullResult | None:
        """The answer when it can be given from memory, else None."""
        plan = self._plan(query)
        if isinstance(plan, PullResult):
            return plan
        if plan.wanted.condition is not None:
            found = self._search_hot(query.queue_offset, plan, plan.wanted.condition)
        else:
            found = self.store.reader.select_hot(
                plan.queue,
                query.queue_offset,
                plan.wanted.tags,
                max_messages=plan.max_messages,
                max_bytes=plan.max_bytes,
            )
        return None if found is None else self._answer(query, plan, *found)

    async def pull(self, query: PullQuery) -> PullResult:
        """The answer, from disk if need be. Raises OSError."""
        plan = self._plan(query)
        if isinstance(plan, PullResult):
            return plan
        try:
            found = await self._read_cold(query, plan)
        except (OSError, ValueError):
            plan = self._plan(query)  # deleted while we read: then there is another place to go on
            if isinstance(plan, PullResult):
                return plan
            raise
        return self._answer(query, plan, *found)

    def rejects(self, query: PullQuery) -> bool:
        """Whether it would be answered with anything but messages now."""
        return isinstance(self._admit(query), PullResult)

    def _search_hot(self, begin: int, plan: _Plan, condition: Condition) -> tuple[Selection, bytes] | None:
        search = Search(condition, begin, plan.max_messages, plan.max_bytes)
        while not search.ended and search.at < plan.queue.max_offset:
            found = self.store.reader.select_hot(plan.queue, search.at, plan.wanted.tags, **search.step)
            if found is None:
                return None
            search.look_at(*found)
        return search.outcome()

    async def _read_cold(self, query: PullQuery, plan: _Plan) -> tuple[Selection, bytes]:
        begin, tags, read = query.queue_offset, plan.wanted.tags, self.store.reader.select_cold
        if plan.wanted.condition is None:
            limits = {"max_messages": plan.max_messages, "max_bytes": plan.max_bytes}
            return await read(plan.queue, begin, tags, query.client, **limits)
        search = Search(plan.wanted.condition, begin, plan.max_messages, plan.max_bytes)
        while not search.ended and search.at < plan.queue.max_offset:
            found = await read(plan.queue, search.at, tags, query.client, **search.step)
            search.look_at(*found)
        return search.outcome()

    def _plan(self, query: PullQuery) -> _Plan | PullResult:
        group = self._admit(query)
        if isinstance(group, PullResult):
            return group
        try:
            wanted = self.filters.parse(query.expression_type, query.expression)
        except ValueError as error:
            return PullResult(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        except PermissionError as error:
            return PullResult(ResponseCode.SYSTEM_ERROR, str(error))  # RocketMQ's code
        queue = self.store.queue(query.topic, query.queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        if query.version is not None and (elsewhere := self._compare(query, query.version, low, high)) is not None:
            return elsewhere
        if query.queue_offset > high and self.store.follows:
            return self._nothing_new(query, low, high)  # the master may have it
        if not low <= query.queue_offset <= high:
            return _illegal(low if query.queue_offset < low else high, low, high)
        if queue is None or query.queue_offset == high:
            return self._nothing_new(query, low, high)
        return _Plan(
            group,
            queue,
            wanted,
            max_messages=max(1, min(query.max_messages, PULL_MESSAGES_MAX)),
            max_bytes=max(1, min(query.max_bytes, PULL_BYTES_MAX)),
        )

    def _compare(self, query: PullQuery, version: int, low: int, high: int) -> PullResult | None:
        """The answer without messages to a member whose progress has another version than the group's."""
        known = self.offsets.progress(query.group, query.topic, query.queue_id)
        if known is None or known.version == version:
            return None
        if not self.store.follows or known.version > version:
            return _illegal(known.offset, low, high, known)
        if known.renewals < Progress(0, version=version).renewals:
            return self._nothing_new(query, low, high)  # this log has still to be compared with the master's
        return None

    def _admit(self, query: PullQuery) -> SubscriptionGroup | PullResult:
        """The group, when it may pull from the queue."""
        if self.store.follows and not self.reads.enabled:
            remark = "this broker is a replica that serves no pulls (slaveReadEnable=false); ask the master"
            return PullResult(ResponseCode.SYSTEM_BUSY, remark)
        try:
            group = self.groups.get_or_create(query.group, query.client)
        except (IllegalNameError, TooManyError) as error:
            return PullResult(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error))
        if group is None:
            remark = f"group {query.group!r} does not exist and autoCreateSubscriptionGroup is false"
            return PullResult(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return self._rejection(query, group) or group

    def _rejection(self, query: PullQuery, group: SubscriptionGroup) -> PullResult | None:
        if not group.consume_enable:
            remark = f"group {query.group!r} may not consume (consumeEnable=false)"
            return PullResult(ResponseCode.NO_PERMISSION, remark)
        if not group.consume_broadcast_enable and self.is_broadcasting(query.group):
            remark = f"group {query.group!r} may not consume by broadcasting (consumeBroadcastEnable=false)"
            return PullResult(ResponseCode.NO_PERMISSION, remark)
        config = self.topics.get(query.topic)
        if config is None:
            return PullResult(ResponseCode.TOPIC_NOT_EXIST, f"topic {query.topic!r} does not exist")
        if not config.readable:
            return PullResult(ResponseCode.NO_PERMISSION, f"topic {query.topic!r} may not be read (perm {config.perm})")
        if not 0 <= query.queue_id < config.read_queue_count:
            remark = f"topic {query.topic!r} has no read queue {query.queue_id}"
            return PullResult(ResponseCode.SYSTEM_ERROR, f"{remark}; it has 0 to {config.read_queue_count - 1}")
        return None

    def _answer(self, query: PullQuery, plan: _Plan, chosen: Selection, records: bytes) -> PullResult:
        low, high = plan.queue.min_offset, plan.queue.max_offset
        if not chosen.scanned:  # the next record is not readable yet
            return self._nothing_new(query, low, high)
        if chosen.count:
            self.given.add((query.topic, query.group), chosen.count, len(records))
        return PullResult(
            status=PullStatus.FOUND if chosen.count else PullStatus.NO_MATCHED_MSG,
            next_begin_offset=query.queue_offset + chosen.scanned,
            min_offset=low,
            max_offset=high,
            count=chosen.count,
            records=records,
            suggest_broker_id=self.reads.suggestion(plan.group, self.store.log_end - chosen.log_offset),
        )

    def _nothing_new(self, query: PullQuery, low: int, high: int) -> PullResult:
        return PullResult(
            status=PullStatus.NO_NEW_MSG, next_begin_offset=query.queue_offset, min_offset=low, max_offset=high
        )


def _illegal(begin: int, low: int, high: int, progress: Progress | None = None) -> PullResult:
    return PullResult(
        status=PullStatus.OFFSET_ILLEGAL, next_begin_offset=begin, min_offset=low, max_offset=high, progress=progress
    )


QueueReport = tuple[str, int, Progress]  # topic, queue id, and what is finished of the queue


class ConsumeFromWhere(IntEnum):
    """Where a group begins; the numbers are the wire's."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_FIRST_OFFSET = 1
    CONSUME_FROM_TIMESTAMP = 2


@dataclass
class Offsets:
    """The progress of groups: queries, reports, resets, and where a group begins (mechanisms C20-C23).

    The processor of offset requests.

    Invariants: what is reported is added and takes nothing away; a member that has not heard of a reset changes nothing
    (`Progress`); nothing is finished by a report that depends on more of the log than is here; a report of one queue
    that makes no sense holds up no other queue's; offsets are set all or none; what is answered as set is a record of
    the log (store/changes.py); what is answered as a beginning is on disk.
    """

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    querying: Querying
    changing: Changing

    @property
    def log_needed(self) -> int:
        """Up to where a log has to reach that everything is in it on which what is finished here depends.

        A send back is answered when its retry is confirmed; a replica may have it, and not have heard yet that it is.
        """
        return self.store.log_end if self.store.follows else self.store.readable_end

    def has_log_of(self, group: str, report: QueueReport, log_end: int) -> bool:
        """Whether everything is here on which a report depends that needs the log up to `log_end`.

        A replica has what its log reaches. A master has all that counts with its own version, also where the log is
        shorter now: a replica had told of a tail that no disk has kept, or the store was begun anew.
        """
        if log_end <= self.store.log_end:
            return True
        topic, queue_id, reported = report
        known = self.query(group, topic, queue_id)
        is_newer = known is None and reported.renewals > self.offsets.renewals  # of a master that has replaced this one
        return not self.store.follows and not is_newer

    def query(self, group: str, topic: str, queue_id: int) -> Progress | None:
        """The group's progress in this queue; None without one."""
        return self.offsets.progress(group, topic, queue_id)

    async def known(self, group: str, topic: str, queue_id: int) -> Progress | None:
        """As `query`, and durable on return. Raises OSError."""
        if self.query(group, topic, queue_id) is not None:
            await self.store.persist(CONSUMER_OFFSETS)
        return self.query(group, topic, queue_id)

    async def begin(
        self,
        group: str,
        topic: str,
        queue_id: int,
        where: ConsumeFromWhere,
        timestamp_ms: int = 0,
        *,
        whole_topic: bool = False,
    ) -> Progress:
        """The group's progress in this queue; a group without one begins as it should.

        With `whole_topic` all queues of the topic begin in one step, unless the group has an offset in one of them:
        then this queue was made later, and begins with its first message (ADR 90).

        Durable on return: another beginning after a crash would pass over what lies in between. `timestamp_ms` is of
        CONSUME_FROM_TIMESTAMP. Retries always begin with the first one. Raises RejectedError, OSError.
        """
        self._check_group(group)
        self._check_queue(topic, queue_id)
        progress = self.query(group, topic, queue_id)
        if progress is None:
            queue_ids = frozenset([queue_id])
            if whole_topic and self.offsets.has_begun(group, topic):
                where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
            elif whole_topic:
                queue_ids |= self._queue_ids(topic)
            found = {one: await self._first_offset(topic, one, where, timestamp_ms) for one in queue_ids}
            self._check_queue(topic, queue_id)  # it may have been deleted while we searched
            self._check_room(group, topic, queue_id)
            for one, offset in found.items():
                self.offsets.begin(group, topic, one, offset)
            progress = Progress(found[queue_id])
        await self.store.persist(CONSUMER_OFFSETS)
        return self.query(group, topic, queue_id) or progress

    def commit(self, group: str, reports: Iterable[QueueReport]) -> str:
        """Add the report of a member. It is durable a moment later.

        What is of another version than the queue's progress is left out, and the remark that is returned says so. Where
        the queue has no progress, that is a report from before versions were renewed: the group begins with the first
        message then, because others may have the reported numbers. A replica may not have all that its master has sent
        to members: of what lies beyond its queues they have to say again, to the master, that it is finished. Raises
        RejectedError when the report of a queue makes no sense; all other reports have been added then.
        """
        self._check_group(group)
        late, rejections = list[str](), list[RejectedError]()
        for topic, queue_id, reported in reports:
            try:
                self._check_report(topic, queue_id, reported)
                self._check_room(group, topic, queue_id)
                known = self.query(group, topic, queue_id)
                if known is None and reported.renewals < self.offsets.renewals:
                    known = self.offsets.begin(group, topic, queue_id, self.store.queue_bounds(topic, queue_id)[0])
                if known is not None and known.version != reported.version:
                    late.append(f"{reported.offset} in queue {queue_id} of {topic}")
                    continue
                within = self._within(topic, queue_id, reported)
            except RejectedError as error:
                rejections.append(error)
            else:
                self.offsets.put(group, topic, queue_id, self.offsets.joined(group, topic, queue_id, within))
        if rejections:
            sentence = first_few(rejections)
            raise RejectedError(rejections[0].code, f"{sentence}; the other queues' progress has been added")
        return f"left out, because the offsets have been reset since: {first_few(late, ', ')}" if late else ""

    async def set(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Reset the group's offsets to exactly (topic, queue id, offset): all of them, or none when one makes no sense.

        As durable as an acknowledged message on return. Raises RejectedError, on a replica too: what is set anew undoes
        what is finished, and only one broker may do that.
        """
        require_master(self.store)
        self._check_group(group)
        for topic, queue_id, offset in offsets:
            self._check_queue(topic, queue_id)
            self._check_room(group, topic, queue_id)
            self._check_end(topic, queue_id, Progress(offset))
        if len({(topic, queue_id) for topic, queue_id, _ in offsets}) < len(offsets):
            raise _rejection("each queue can be named once")
        await self.changing.reset(group, offsets)

    async def _first_offset(self, topic: str, queue_id: int, where: ConsumeFromWhere, timestamp_ms: int) -> int:
        low, high = self.store.queue_bounds(topic, queue_id)
        if topic.startswith(RETRY_PREFIX) or where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return low
        if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return await self.querying.offset_by_time(topic, queue_id, timestamp_ms)
        return high

    def _check_report(self, topic: str, queue_id: int, reported: Progress) -> None:
        self._check_queue(topic, queue_id)
        try:
            reported.check()
        except ValueError as error:
            raise _rejection(f"queue {queue_id} of {topic!r}: {error}") from error

    def _within(self, topic: str, queue_id: int, reported: Progress) -> Progress:
        """What a replica has of it; a master has to have all of it."""
        if self.store.follows:
            return reported.cut(self.store.queue_end(topic, queue_id))
        self._check_end(topic, queue_id, reported)
        return reported

    def _check_end(self, topic: str, queue_id: int, progress: Progress) -> None:
        high = self.store.queue_end(topic, queue_id)
        if not 0 <= progress.offset <= high:
            raise _rejection(f"offset {progress.offset} of queue {queue_id} of {topic!r}; allowed are 0 to {high}")
        if progress.end > high:
            raise _rejection(
                f"the finished offset {progress.end} is beyond the end {high} of queue {queue_id} of {topic!r}"
            )

    def _queue_ids(self, topic: str) -> frozenset[int]:
        """Of all queues that the topic has or had."""
        config = self.topics.get(topic)
        stored = (queue.queue_id for queue in self.store.queues.of_topic(topic))
        return frozenset([*range(config.queue_count if config else 0), *stored])

    def _check_group(self, group: str) -> None:
        try:
            check_group(group)
        except IllegalNameError as error:
            raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error

    def _check_room(self, group: str, topic: str, queue_id: int) -> None:
        """Raise RejectedError when the group has no offset for the queue, and there are too many to make one more."""
        offsets = self.offsets
        if offsets.progress(group, topic, queue_id) is not None:
            return
        if offsets.count >= CONSUMER_OFFSETS_MAX:
            raise _rejection(
                f"this broker keeps {offsets.count} offsets of groups and takes no new ones; allowed are "
                f"{CONSUMER_OFFSETS_MAX}; delete groups that are not needed, with their offsets"
            )
        if not offsets.has_group(group) and self.groups.get(group) is None:
            try:
                self.groups.creations.check_total(offsets.group_count)
            except TooManyError as error:
                raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error

    def _check_queue(self, topic: str, queue_id: int) -> None:
        config = self.topics.get(topic)
        if config is None:
            raise RejectedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        if not 0 <= queue_id < config.queue_count and self.store.queue(topic, queue_id) is None:
            raise _rejection(f"topic {topic!r} has no queue {queue_id}; it has 0 to {config.queue_count - 1}")


def _rejection(sentence: str) -> RejectedError:
    return RejectedError(ResponseCode.SYSTEM_ERROR, sentence)
