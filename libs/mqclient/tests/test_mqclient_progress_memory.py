"""Progress that reaches a broker with a real store in memory, whatever else happens to a queue (mechanisms C20-C22)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mq_broker.core import consumer_offsets as broker_progress
from mq_broker.core import limits
from mq_broker.embedded import EmbeddedBroker
from mq_broker.rpc import broker_service
from mq_broker.store.message_store import FlushDiskType
from mqclient import (
    Admin,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
)
from mqclient.connection import poll_stream
from mqclient.consumer import offsets as group_offsets
from mqclient.testing import RecordingListener, made_consumer
from osenv import SimDisk

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(request.node.name) as broker:
        yield broker


@pytest.fixture
async def admin(broker: EmbeddedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.url) as admin:
        yield admin


async def fill(broker: EmbeddedBroker, count: int, queue_id: int = 0) -> None:
    async with Producer("shop", broker.url) as producer:
        queue = MessageQueue("orders", "broker-a", queue_id)
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number), queue=queue)


async def offsets(admin: Admin) -> list[int]:
    return [one.consumer_offset for one in (await admin.consume_stats("closers", "orders")).queues]


async def test_progress_counts_at_once_after_a_reset_during_which_a_listener_ran(
    broker: EmbeddedBroker, admin: Admin
) -> None:
    """What the listener finishes of before the reset is reported with nothing of after it."""
    await admin.update_topic("orders", read_queue_count=1, write_queue_count=1)
    await fill(broker, 4)

    async def busy(messages: list[MessageExt]) -> ConsumeStatus:
        await broker.clock.sleep(0.02)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = made_consumer("closers", broker.url, consume_concurrency=2, consume_from_where=FIRST)
    consumer.subscribe("orders")
    consumer.register_message_listener(busy)
    async with consumer:
        await broker.clock.advance(0.03)
        await admin.reset_offset_by_time("closers", "orders", 0)
        await broker.clock.advance(0.2)
        assert await offsets(admin) == [4]


async def test_more_finished_ranges_than_a_broker_keeps_hold_up_nothing(
    broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest ranges are reported, and all of the other queue. Eight stand for the 4,096 of both sides."""
    assert group_offsets.RANGES_MAX == limits.RANGES_PER_QUEUE_MAX
    monkeypatch.setattr(group_offsets, "RANGES_MAX", 8)
    monkeypatch.setattr(broker_progress, "RANGES_PER_QUEUE_MAX", 8)
    await admin.update_topic("orders", read_queue_count=2, write_queue_count=2)
    await fill(broker, 30)
    await fill(broker, 5, queue_id=1)

    release = asyncio.Event()

    async def every_other(messages: list[MessageExt]) -> ConsumeStatus:
        if messages[0].message_queue.queue_id == 0 and int(messages[0].body) % 2 == 0:
            await release.wait()
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = made_consumer("closers", broker.url, consume_concurrency=40, consume_from_where=FIRST)
    consumer.subscribe("orders")
    consumer.register_message_listener(every_other)
    async with consumer:
        await broker.clock.advance(0.2)
        now = (await admin.consume_stats("closers", "orders")).queues
        release.set()
        assert [(one.consumer_offset, one.finished_beyond) for one in now] == [(0, 8), (5, 0)]
        await broker.clock.advance(0.2)
        assert await offsets(admin) == [30, 5]


async def test_more_polls_than_one_stream_takes_go_over_several(
    broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_service, "POLLS_PER_STREAM_MAX", 4)
    monkeypatch.setattr(poll_stream, "POLLS_PER_STREAM", 2)
    await admin.update_topic("orders", read_queue_count=10, write_queue_count=10)
    consumer, listener = made_consumer("closers", broker.url, consume_from_where=FIRST), RecordingListener()
    consumer.subscribe("orders")
    consumer.register_message_listener(listener)
    async with consumer:
        for queue_id in range(10):
            await fill(broker, 1, queue_id)
        await broker.clock.advance(0.2)
        assert listener.bodies == [b"0"] * 10
        assert await offsets(admin) == [1] * 10


STEP_S = 0.02  # between two messages


async def twice_after_a_restart(broker: EmbeddedBroker, dying: Callable[[], Awaitable[None]]) -> list[bytes]:
    """What comes twice of `before`, sent before the broker died under its consumer, and `after`, of the next 8 s."""
    async with Producer("shop", broker.url) as producer, Admin(broker.url) as admin:
        await admin.update_topic("orders", read_queue_count=2, write_queue_count=2)
        listener = RecordingListener()
        consumer = made_consumer("closers", broker.url, consume_from_where=FIRST)
        consumer.subscribe("orders")
        consumer.register_message_listener(listener)
        async with consumer:
            for number in range(50):
                await producer.send(Message("orders", b"before %d" % number))
                await broker.clock.advance(STEP_S)
            await dying()
            await broker.start()
            sent = []
            for number in range(400):
                sent.append(asyncio.ensure_future(producer.send(Message("orders", b"after %d" % number))))
                await broker.clock.advance(STEP_S)
            await broker.clock.advance(5.0)
            assert all(one.done() and one.exception() is None for one in sent)
            seen = Counter(listener.bodies)
            assert all(seen[b"after %d" % number] for number in range(400))
            return [body for body, count in seen.items() if count > 1]


async def test_a_broker_that_is_killed_makes_nothing_come_again() -> None:
    """Under asynchronous flush, too: what was written outlives the process."""
    async with EmbeddedBroker("killed", flush_disk_type=FlushDiskType.ASYNC_FLUSH) as broker:
        assert await twice_after_a_restart(broker, broker.kill) == []


async def test_after_a_loss_of_power_nothing_new_comes_again() -> None:
    """The first poll of after it is told of the new version, before it brings anything."""
    async with EmbeddedBroker("lost power", flush_disk_type=FlushDiskType.ASYNC_FLUSH) as broker:
        twice = await twice_after_a_restart(broker, broker.lose_power)
        assert not [body for body in twice if body.startswith(b"after")]


async def test_after_a_loss_of_power_an_orderly_group_gets_new_messages_in_their_order() -> None:
    """They have the numbers of lost ones that the group has finished, and more of them."""
    async with (
        EmbeddedBroker("order", flush_disk_type=FlushDiskType.ASYNC_FLUSH) as broker,
        Admin(broker.url) as admin,
    ):
        await admin.update_topic("orders", read_queue_count=1, write_queue_count=1)
        got: list[bytes] = []

        async def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
            got.extend(message.body for message in messages)
            return ConsumeOrderlyStatus.SUCCESS

        consumer = made_consumer("closers", broker.url, consume_from_where=FIRST)
        consumer.subscribe("orders")
        consumer.register_message_listener_orderly(listener)
        async with consumer:
            await fill(broker, 1)
            await broker.clock.advance(1.0)
            await fill(broker, 3)
            while len(got) < 4:
                await broker.clock.advance(0.01)
            await broker.lose_power()
            await broker.start()
            async with Producer("shop", broker.url) as producer:
                for number in range(6):
                    await producer.send(Message("orders", b"new %d" % number))
            await broker.clock.advance(10.0)
        assert got == [b"0", b"0", b"1", b"2", *(b"new %d" % number for number in range(6))]


async def test_progress_counts_at_a_broker_that_has_begun_with_an_empty_disk(broker: EmbeddedBroker) -> None:
    """Its members name a log that it will not reach for long."""
    await fill(broker, 100, queue_id=1)
    await fill(broker, 3)
    listener = RecordingListener()
    consumer = made_consumer("closers", broker.url, consume_from_where=FIRST)
    consumer.subscribe("orders")
    consumer.register_message_listener(listener)
    async with consumer:
        await broker.clock.advance(1.0)
        assert len(listener.bodies) == 103
        await broker.kill()
        broker.disk = SimDisk()
        await broker.start()
        await fill(broker, 5)
        await broker.clock.advance(60.0)
        async with Admin(broker.url) as admin:
            assert (await offsets(admin))[0] == 5
