"""The world of `group_world.py`, whose topic, clock, disk and client ids change as well.

A third group begins at the end of the topic. The broker flushes as it is told, ten messages fill a file of the log, and
a file that a group has not consumed stays (unconsumedDeleteGuard=REFUSE), so that nothing that it deletes is missed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import ClassVar
from unittest.mock import patch

from client_tasks import CLIENT
from elastic_model import ElasticModel
from group_model import InvariantError, Place
from group_world import GROUPS, TOPIC, GroupWorld, Member

from mq_broker.config import BrokerConfig
from mq_broker.core.limits import GuardMode
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import read_all
from mqclient import (
    BrokerRejectedError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    MQClientError,
    client_instance,
)
from mqclient.recall import RecallOutcome
from mqproto.codes import ResponseCode
from mqproto.record import Record

LATE = "late"
KEYS = ("a", "b")
QUEUES_MAX = 4
BEGUN_AGAIN_S = 7.0  # members commit every 5 s, and ask for routes
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ElasticWorld(GroupWorld):
    """The history of one broker, its groups, its topic, its clock and its disk."""

    GROUPS: ClassVar[tuple[str, ...]] = (*GROUPS, LATE)
    BEGINS: ClassVar[dict[str, ConsumeFromWhere]] = {LATE: ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET}
    PADDING: ClassVar[dict[str, str]] = {"padding": "x" * 6_000}  # ten messages fill a file of the log
    model: ElasticModel

    def __init__(self, seed: int, flush: FlushDiskType) -> None:
        super().__init__(seed, flush, ElasticModel)
        self.broker.configure(unconsumed_delete_guard=GuardMode.REFUSE)
        self.model.late = frozenset({LATE})
        self._is_async = flush is FlushDiskType.ASYNC_FLUSH
        self._lost: set[tuple[bytes, int, int]] = set()  # copies that a power cut took: body, place in the log, time
        self._by_id: dict[str, bytes] = {}  # message id -> body, of what was sent to wait
        self._wall_offset_ms = 0
        self._processes = patch.object(client_instance, "process_name", lambda _: CLIENT.get())

    async def open(self) -> None:
        self._processes.start()
        await super().open()

    async def close(self) -> None:
        await super().close()
        self._processes.stop()

    @property
    def queue_ids(self) -> range:
        config = self.broker.broker.topics.get(TOPIC)
        return range(config.read_queue_count if config else 0)

    # ------------------------------------------------------------------------------------------------ messages

    async def send_for_a_time(self, queue_id: int, seconds: float, key: str) -> None:
        """A message that waits until the wall clock shows so much later."""
        body = self.new_body()
        due_ms = self.clock.wall_ms() + round(seconds * 1_000)
        self.model.to_wait(body, due_ms, self.clock.monotonic())
        message = Message(
            TOPIC, body, keys=key, properties=self.PADDING, deliver_at=EPOCH + timedelta(milliseconds=due_ms)
        )
        queue = MessageQueue(TOPIC, BrokerConfig().broker_name, queue_id)
        try:
            result = await self.until_done(self.producer.send(message, queue=queue))
        except MQClientError:
            return  # whether it is stored is seen by who gets it
        self._by_id[result.message_id] = body
        self.model.waits(body, result.log_offset)

    async def recall(self, key: str) -> None:
        """All that wait with this key."""
        try:
            result = await self.until_done(self.producer.recall(TOPIC, key=key))
        except MQClientError:
            return
        for one in result.messages:
            if one.outcome is RecallOutcome.REMOVED and one.message_id in self._by_id:
                self.model.removed(self._by_id[one.message_id], self.broker.broker.store.log_end)

    async def listen(self, member: Member, messages: list[MessageExt]) -> bool:
        (message,) = messages
        if (message.body, message.log_offset, message.store_timestamp_ms) in self._lost:
            return True  # it was pulled before the power cut, and its number may belong to another one
        self.model.wall_shows(self.clock.wall_ms())
        return await super().listen(member, messages)

    # ------------------------------------------------------------------------------------------------- members

    async def join_with_a_taken_id(self, number: int) -> None:
        """Another process uses the client id of a member: it is rejected, and consumes nothing."""
        first = self.members[number % len(self.members)]
        if any(member.is_cut for member in self.members):
            return
        await self._all_known(first.group)
        twin = Member(self, first.group, first.name, f"{first.name} again")
        with patch.object(client_instance, "_instances", {}):
            try:
                await self.until_done(twin.run(twin.consumer.start()))
            except BrokerRejectedError as error:
                if error.code != ResponseCode.CLIENT_ID_IN_USE:
                    raise
            else:
                raise InvariantError(f"a second process has the client id of {first.name}")
            finally:
                twin.die()
                await self.clock.advance(0.0)

    async def _all_known(self, group: str) -> None:
        """Wait until the broker knows every member."""
        while len(self.broker.broker.sessions.members.consumer_ids(group)) < len(self.of(group)):
            await self.clock.advance(0.1)

    # ------------------------------------------------------------------------------------------ topic, clock, disk

    async def resize(self, read: int, write: int) -> None:
        """More or fewer queues. Rejected when messages could be read no more."""
        self._disturbed(*self.GROUPS)
        try:
            await self.until_done(self.admin.update_topic(TOPIC, read_queue_count=read, write_queue_count=write))
        except BrokerRejectedError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise

    async def renew_topic(self, seconds: float) -> None:
        """It is deleted, and made again after a while, also while the disk is too full for messages.

        A message that comes due meanwhile makes the topic by itself, with as many queues as it needs: then fewer are
        rejected.
        """
        self._disturbed(*self.GROUPS)
        held = {record.body: _place(record) for record in await self._records()}
        ends = self._ends()
        self.model.topic_deleted(held, ends)
        await self.until_done(self.admin.delete_topic(TOPIC))
        await self.clock.advance(seconds)
        await self.resize(read=2, write=2)
        await self.clock.advance(BEGUN_AGAIN_S)

    async def step_wall(self, seconds: int) -> None:
        """The wall clock is corrected by so much."""
        self.model.wall_shows(self.clock.wall_ms())
        self._wall_offset_ms += seconds * 1_000
        self.clock.set_wall_ms(self.clock.wall_ms() + seconds * 1_000)
        await self.clock.advance(0.0)

    async def reset(self, group: str, queue_id: int, share: float) -> None:
        if queue_id in self.queue_ids:
            await super().reset(group, queue_id, share)

    async def fill(self, share: float) -> None:
        """So much of the disk is used: from 85 % on old files go, from 90 % on until 85 % sends are rejected."""
        self._disturbed(*self.GROUPS)
        self.broker.disk.used_share = share
        await self.advance(11.0)  # it is measured every ten seconds

    # ------------------------------------------------------------------------------------------- broker, looks

    async def restart_broker(self, *, power: bool) -> None:
        if not (power and self._is_async):
            await super().restart_broker(power=power)
            return
        self._lost |= {_copy(record) for record in await self._records()}
        await super().restart_broker(power=power)

    async def started_again(self, *, power: bool) -> None:
        if power and self._is_async:
            log_end, ends = self.broker.broker.store.log_end, self._ends()
            records = await self._records()
            self._lost -= {_copy(record) for record in records}
            held = {record.body: _place(record) for record in records}
            self.model.power_cut(held, ends, log_end)
            await self.clock.advance(0.001)  # so that nothing is a copy of the same body, place and time

    def look(self, seconds: float = 0.0) -> None:
        store, offsets = self.broker.broker.store, self.broker.broker.consumer_offsets
        self.model.wall_shows(self.clock.wall_ms())
        for group in self.GROUPS:
            at = {queue_id: offsets.progress(group, TOPIC, queue_id) for queue_id in self.queue_ids}
            known = {queue_id: one.offset if one else None for queue_id, one in at.items()}
            self.model.progress(group, known, self._ends())
            has_begun = offsets.has_begun(group, TOPIC)
            for queue_id in self.queue_ids:
                begin, _ = store.queue_bounds(TOPIC, queue_id)
                self.model.deleted_below(group, queue_id, begin, has_begun=has_begun)
        super().look(seconds)

    async def finish(self) -> None:
        self.broker.disk.used_share = 0.0
        await self.step_wall(-self._wall_offset_ms // 1_000)
        await self.advance(11.0)
        await self.resize(QUEUES_MAX, QUEUES_MAX)  # what stands in an unreadable queue is readable
        await super().finish()

    def _ends(self) -> dict[int, int]:
        return {queue_id: self.broker.broker.store.queue_end(TOPIC, queue_id) for queue_id in range(16)}

    async def _records(self) -> list[Record]:
        """All that the topic holds."""
        reads: list[Awaitable[list[Record]]] = [read_all(self.broker.broker, TOPIC, one) for one in self.queue_ids]
        return [record for read in reads for record in await self.until_done(read)]


def _copy(record: Record) -> tuple[bytes, int, int]:
    return record.body, record.log_offset, record.store_timestamp_ms


def _place(record: Record) -> Place:
    return Place(record.queue_id, record.queue_offset)
