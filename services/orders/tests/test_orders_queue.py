"""The adapters to the queue, on a cluster in memory: connecting, publishing, consuming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mqclient.testing import FakeBroker, FakeCluster
from orders.adapters.mq_connection import MqConnection, QueueConfigurationError
from orders.adapters.mq_publisher import MqPublisher
from orders.adapters.recording_publisher import RecordingPublisher
from orders.domain.errors import PublishError, StorageUnavailableError
from orders.service.events import MalformedMessageError
from orders.service.message import MessagePublisher, OutgoingMessage
from orders.service.subscription import Subscription
from osenv import SimClock

CREATED = OutgoingMessage("order-events", "created", "order-1", b"{}")


class Handler:
    """Remembers bodies; fails as often as it is told to."""

    def __init__(self, *failures: Exception) -> None:
        self.bodies: list[bytes] = []
        self._failures = list(failures)

    async def __call__(self, body: bytes) -> None:
        self.bodies.append(body)
        if self._failures:
            raise self._failures.pop(0)

    def subscription(self) -> Subscription:
        return Subscription("order-timeout-scheduler", "order-events", "created", self)


@asynccontextmanager
async def connected(cluster: FakeCluster, handler: Handler) -> AsyncIterator[MqConnection]:
    connection = MqConnection(cluster.url, cluster.clock)
    connecting = asyncio.create_task(connection.connect([handler.subscription()]))
    try:
        await cluster.clock.advance(1)
        await connecting
        yield connection
    finally:
        connecting.cancel()
        await connection.stop_consumers()
        await connection.stop_producer()


def cluster_with_broker() -> tuple[FakeCluster, FakeBroker]:
    cluster = FakeCluster("orders-queue")
    return cluster, cluster.add_broker("broker-a")


async def test_connecting_creates_the_topics_before_anything_consumes() -> None:
    cluster, broker = cluster_with_broker()
    async with connected(cluster, Handler()) as connection:
        assert {"order-events", "order-timeouts"} <= set(broker.topics)
        assert broker.topics["order-events"].write_queue_count == 4
        assert broker.members("order-timeout-scheduler")
        assert connection.producer_health() == connection.consumers_health() == "ok"


async def test_connecting_is_tried_until_there_is_a_broker() -> None:
    cluster = FakeCluster("orders-queue")
    connection = MqConnection(cluster.url, cluster.clock)
    connecting = asyncio.create_task(connection.connect([Handler().subscription()]))
    await cluster.clock.advance(10)
    assert not connecting.done()
    assert connection.producer_health() == connection.consumers_health() == "not connected with the queue"
    with pytest.raises(PublishError, match="not connected"):
        await connection.publisher.publish(CREATED)
    cluster.add_broker("broker-a")
    await cluster.clock.advance(2)
    await connecting
    assert connection.producer_health() == connection.consumers_health() == "ok"
    await connection.stop_consumers()
    await connection.stop_producer()
    assert connection.producer_health() == connection.consumers_health() != "ok"


async def test_a_transport_that_nobody_knows_is_not_tried_again() -> None:
    connection = MqConnection("carrier-pigeon://roof", SimClock())
    with pytest.raises(QueueConfigurationError, match="ORDERS_MQ_URL=carrier-pigeon"):
        await connection.connect([])


async def test_messages_that_were_there_before_the_group_reach_its_handler_by_tag() -> None:
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url)
    await publisher.start()
    await publisher.publish(CREATED)
    await publisher.publish(OutgoingMessage("order-events", "closed", "order-1", b"[]"))
    await publisher.shutdown()
    handler = Handler()
    async with connected(cluster, handler):
        await cluster.clock.advance(1)
        assert handler.bodies == [b"{}"]
        assert broker.send_backs == []


@pytest.mark.parametrize(
    "failure", [PublishError("later"), StorageUnavailableError("later"), MalformedMessageError("never"), KeyError("x")]
)
async def test_a_message_whose_handler_fails_comes_again(failure: Exception) -> None:
    cluster, broker = cluster_with_broker()
    handler = Handler(failure)
    async with connected(cluster, handler) as connection:
        await connection.publisher.publish(CREATED)
        await cluster.clock.advance(60)
        assert [request.group for request in broker.send_backs] == ["order-timeout-scheduler"]
        assert handler.bodies == [b"{}", b"{}"]


async def test_a_published_message_carries_tag_key_and_delay() -> None:
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url)
    await publisher.start()
    await publisher.publish(OutgoingMessage("order-timeouts", "expire", "order-1", b"{}", delay_level=16))
    await publisher.shutdown()
    (record,) = [record for records in broker.queues.values() for record in records]
    for part in (b"TAGS\x01expire", b"KEYS\x01order-1", b"DELAY\x0116"):
        assert part in record


@pytest.mark.parametrize(("code", "is_taken"), [(0, True), (10, False), (11, True), (12, True)])
async def test_a_message_that_may_not_be_on_any_disk_counts_as_not_taken(code: int, is_taken: bool) -> None:
    """10 is FLUSH_DISK_TIMEOUT, 11 SLAVE_NOT_AVAILABLE, 12 FLUSH_SLAVE_TIMEOUT."""
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url)
    await publisher.start()
    broker.next_codes = [code]
    if is_taken:
        await publisher.publish(CREATED)
    else:
        with pytest.raises(PublishError, match="FLUSH_DISK_TIMEOUT"):
            await publisher.publish(CREATED)
    await publisher.shutdown()


async def check_contract(publisher: MessagePublisher, taken: Callable[[], int], go_down: Callable[[], None]) -> None:
    """What every MessagePublisher does: return once a message is taken, raise PublishError when it is not."""
    await publisher.publish(CREATED)
    assert taken() == 1
    go_down()
    with pytest.raises(PublishError):
        await publisher.publish(CREATED)
    assert taken() == 1


async def test_the_recording_publisher_keeps_the_contract() -> None:
    publisher = RecordingPublisher()

    def go_down() -> None:
        publisher.is_down = True

    await check_contract(publisher, lambda: len(publisher.messages), go_down)


async def test_the_publisher_over_the_queue_keeps_the_contract() -> None:
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url)
    await publisher.start()

    def go_down() -> None:
        broker.next_codes = [13]  # MESSAGE_ILLEGAL: refused for good, so that the client does not wait and retry

    await check_contract(publisher, lambda: len(broker.bodies), go_down)
    await publisher.shutdown()
