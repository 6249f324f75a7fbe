"""The adapters to the queue, on a cluster in memory: connecting, publishing, consuming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mqclient.testing import FakeBroker, FakeCluster
from osenv import SimClock
from servicekit.errors import MalformedMessageError, PublishError, StorageUnavailableError
from servicekit.message import MessagePublisher, OutgoingMessage, Subscription
from servicekit.monitoring import OK, HealthCheck
from servicekit.process.queue import (
    FAILURE_COUNTS_S,
    HANDLE_MAX_S,
    NOT_CONNECTED,
    STORAGE_LOOK_MAX_S,
    STORAGE_TRIES_MAX,
    MqConnection,
    MqPublisher,
    QueueConfigurationError,
)
from servicekit.sql.units import LocalOutcome
from servicekit.testing import RecordingPublisher

GROUP = "orders"
TOPICS = ("order-events", "order-timeouts")
CREATED = OutgoingMessage("order-events", "created", "order-1", b"{}")


class Handler:
    """Remembers bodies; fails as often as it is told to."""

    def __init__(self, *failures: Exception) -> None:
        self.bodies: list[bytes] = []
        self._failures = list(failures)
        self.hang: Callable[[bytes], Awaitable[None]] | None = None

    async def __call__(self, body: bytes) -> None:
        self.bodies.append(body)
        if self.hang is not None:
            await self.hang(body)
        if self._failures:
            raise self._failures.pop(0)

    def subscription(self) -> Subscription:
        return Subscription("order-timeout-scheduler", "order-events", "created", self)

    def broadcast(self) -> Subscription:
        return Subscription("order-feed", "order-events", "*", self, is_broadcasting=True)


async def always_there() -> str:
    return OK


class AwayDatabase:
    """A database that is away until the test says otherwise, and a handler that needs it."""

    def __init__(self) -> None:
        self.is_away = True
        self.looks = 0
        self.handled: list[bytes] = []

    async def health(self) -> str:
        self.looks += 1
        return "the database does not answer" if self.is_away else OK

    async def handle(self, body: bytes) -> None:
        if self.is_away:
            raise StorageUnavailableError("the database does not answer")
        self.handled.append(body)


async def never_asked(transaction_id: str) -> LocalOutcome:
    raise AssertionError(f"no half message was left open, and the queue asks for {transaction_id}")


def connection_to(url: str, clock: SimClock, storage: HealthCheck = always_there) -> MqConnection:
    return MqConnection(url, clock, group=GROUP, topics=TOPICS, storage=storage)


@asynccontextmanager
async def connected(
    cluster: FakeCluster, handler: Handler, *, is_broadcasting: bool = False, storage: HealthCheck = always_there
) -> AsyncIterator[MqConnection]:
    connection = connection_to(cluster.url, cluster.clock, storage)
    subscription = handler.broadcast() if is_broadcasting else handler.subscription()
    connecting = asyncio.create_task(connection.connect([subscription], never_asked))
    try:
        await cluster.clock.advance(1)
        await connecting
        yield connection
    finally:
        connecting.cancel()
        await connection.stop_consumers()
        await connection.stop_producers()


def cluster_with_broker() -> tuple[FakeCluster, FakeBroker]:
    cluster = FakeCluster("servicekit-queue")
    return cluster, cluster.add_broker("broker-a")


@pytest.mark.mechanism("U8")
async def test_connecting_creates_the_topics_before_anything_consumes() -> None:
    cluster, broker = cluster_with_broker()
    async with connected(cluster, Handler()) as connection:
        assert {"order-events", "order-timeouts"} <= set(broker.topics)
        assert broker.topics["order-events"].write_queue_count == 4
        assert broker.members("order-timeout-scheduler")
        assert await connection.producer_health() == await connection.consumers_health() == "ok"


async def test_a_topic_that_an_operator_has_made_larger_is_left_as_it_is() -> None:
    cluster, broker = cluster_with_broker()
    broker.create_topic("order-events", 16)
    async with connected(cluster, Handler()):
        assert broker.topics["order-events"].write_queue_count == 16
        assert broker.topics["order-timeouts"].write_queue_count == 4


async def test_health_tells_of_a_broker_that_is_gone_and_of_one_that_rejects() -> None:
    cluster, broker = cluster_with_broker()
    async with connected(cluster, Handler()) as connection:
        broker.next_codes = [13]  # MESSAGE_ILLEGAL: rejected for good, so that the client does not wait and retry
        with pytest.raises(PublishError):
            await connection.publisher.publish(CREATED)
        assert "MESSAGE_ILLEGAL" in await connection.producer_health()
        assert await connection.consumers_health() == "ok"
        await connection.publisher.publish(CREATED)
        assert await connection.producer_health() == "ok"
        broker.next_codes = [13]
        with pytest.raises(PublishError):
            await connection.publisher.publish(CREATED)
        await cluster.clock.advance(FAILURE_COUNTS_S + 1)
        assert await connection.producer_health() == "ok"  # so that a service without requests gets some again
        broker.down = True
        assert await connection.producer_health() == await connection.consumers_health() != "ok"


async def test_health_tells_of_a_broker_that_answers_and_takes_no_messages_unless_another_one_takes_them() -> None:
    cluster, broker = cluster_with_broker()
    async with connected(cluster, Handler()) as connection:
        broker.write_rejection = "the disk is full"
        assert await connection.producer_health() == f"{broker.name} takes no messages: the disk is full"
        assert await connection.consumers_health() == "ok"
        cluster.add_broker("broker-b")
        assert await connection.producer_health() == "ok"


async def test_connecting_is_tried_until_there_is_a_broker() -> None:
    cluster = FakeCluster("servicekit-queue")
    connection = connection_to(cluster.url, cluster.clock)
    connecting = asyncio.create_task(connection.connect([Handler().subscription()], never_asked))
    await cluster.clock.advance(10)
    assert not connecting.done()
    assert await connection.producer_health() == await connection.consumers_health() == NOT_CONNECTED
    with pytest.raises(PublishError, match="not connected"):
        await connection.publisher.publish(CREATED)
    cluster.add_broker("broker-a")
    await cluster.clock.advance(2)
    await connecting
    assert await connection.producer_health() == await connection.consumers_health() == "ok"
    await connection.stop_consumers()
    await connection.stop_producers()
    assert await connection.producer_health() == await connection.consumers_health() == NOT_CONNECTED


async def test_an_unknown_transport_is_not_tried_again() -> None:
    connection = connection_to("carrier-pigeon://roof", SimClock())
    with pytest.raises(QueueConfigurationError, match="MQ_URL=carrier-pigeon"):
        await connection.connect([], never_asked)


async def test_messages_that_were_there_before_the_group_reach_its_handler_by_tag() -> None:
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url, GROUP, cluster.clock)
    await publisher.start(never_asked)
    await publisher.publish(CREATED)
    await publisher.publish(OutgoingMessage("order-events", "closed", "order-1", b"[]"))
    await publisher.shutdown()
    handler = Handler()
    async with connected(cluster, handler):
        await cluster.clock.advance(1)
        assert handler.bodies == [b"{}"]
        assert broker.send_backs == []


OUTAGES_S = pytest.mark.parametrize("outage_s", [3, 1_200, 6 * 3_600])


@OUTAGES_S
async def test_an_outage_of_the_database_costs_no_retry_and_ends_within_a_second_of_its_return(outage_s: int) -> None:
    cluster, broker = cluster_with_broker()
    database = AwayDatabase()
    subscription = Subscription("order-payment-handler", "order-events", "created", database.handle)
    connection = connection_to(cluster.url, cluster.clock, database.health)
    connecting = asyncio.create_task(connection.connect([subscription], never_asked))
    try:
        await cluster.clock.advance(1)
        await connecting
        for _ in range(40):  # more than there are listeners
            await connection.publisher.publish(CREATED)
        await cluster.clock.advance(outage_s)
        assert (database.handled, broker.send_backs) == ([], [])
        database.is_away = False
        await cluster.clock.advance(STORAGE_LOOK_MAX_S + 2)
        assert len(database.handled) == 40
        assert broker.send_backs == []
    finally:
        await connection.stop_consumers()
        await connection.stop_producers()


async def test_a_message_that_waits_for_the_database_at_the_stop_is_not_sent_back() -> None:
    cluster, broker = cluster_with_broker()
    database = AwayDatabase()
    subscription = Subscription("order-payment-handler", "order-events", "created", database.handle)
    connection = connection_to(cluster.url, cluster.clock, database.health)
    connecting = asyncio.create_task(connection.connect([subscription], never_asked))
    await cluster.clock.advance(1)
    await connecting
    await connection.publisher.publish(CREATED)
    await cluster.clock.advance(5)
    stopping = asyncio.create_task(connection.stop_consumers())
    await cluster.clock.advance(2)
    await stopping
    assert (database.handled, broker.send_backs) == ([], [])
    await connection.stop_producers()


async def test_a_message_that_fails_although_the_database_answers_is_sent_back() -> None:
    cluster, broker = cluster_with_broker()
    handler = Handler(*(StorageUnavailableError("a lock") for _ in range(STORAGE_TRIES_MAX)))
    async with connected(cluster, handler) as connection:
        await connection.publisher.publish(CREATED)
        await cluster.clock.advance(60)
        assert len(broker.send_backs) == 1
        assert len(handler.bodies) == STORAGE_TRIES_MAX + 1


async def test_a_handler_that_hangs_loses_its_message_as_before() -> None:
    cluster, broker = cluster_with_broker()

    async def hang(_body: bytes) -> None:
        await cluster.clock.sleep(2 * HANDLE_MAX_S)

    handler = Handler()
    handler.hang = hang
    async with connected(cluster, handler) as connection:
        await connection.publisher.publish(CREATED)
        await cluster.clock.advance(HANDLE_MAX_S + 1)
        assert len(broker.send_backs) == 1


@pytest.mark.parametrize("failure", [PublishError("later"), MalformedMessageError("never"), KeyError("x")])
async def test_a_message_whose_handler_fails_comes_again(failure: Exception) -> None:
    cluster, broker = cluster_with_broker()
    handler = Handler(failure)
    async with connected(cluster, handler) as connection:
        await connection.publisher.publish(CREATED)
        await cluster.clock.advance(60)
        assert [request.group for request in broker.send_backs] == ["order-timeout-scheduler"]
        assert handler.bodies == [b"{}", b"{}"]


async def test_a_broadcast_begins_with_what_comes_next_and_leaves_nothing_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cluster, broker = cluster_with_broker()
    for _ in range(2):  # the second life knows nothing of the first
        handler = Handler()
        async with connected(cluster, handler, is_broadcasting=True) as connection:
            await connection.publisher.publish(CREATED)
            await cluster.clock.advance(60)
            assert handler.bodies == [b"{}"]
    assert (broker.offsets, broker.send_backs) == ({}, [])
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - an empty folder of a test


async def test_a_broadcast_that_fails_is_dropped() -> None:
    cluster, broker = cluster_with_broker()
    handler = Handler(PublishError("later"))
    async with connected(cluster, handler, is_broadcasting=True) as connection:
        await connection.publisher.publish(CREATED)
        await cluster.clock.advance(60)
        assert (handler.bodies, broker.send_backs) == ([b"{}"], [])


def test_a_message_waits_in_one_way_at_most() -> None:
    with pytest.raises(ValueError, match="one of the two is allowed"):
        OutgoingMessage("order-timeouts", "expire", "order-1", b"{}", delay_level=1, deliver_at_ms=1)


async def test_a_published_message_carries_the_moment_it_waits_for() -> None:
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url, GROUP, cluster.clock)
    await publisher.start(never_asked)
    at_ms = cluster.clock.wall_ms() + 604_800_001
    await publisher.publish(OutgoingMessage("order-completions", "complete", "order-1", b"{}", deliver_at_ms=at_ms))
    await publisher.shutdown()
    assert broker.bodies == []
    assert [message.due_timestamp_ms for message in broker.waiting.messages] == [at_ms]


async def test_a_published_message_carries_tag_key_and_delay() -> None:
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url, GROUP, cluster.clock)
    await publisher.start(never_asked)
    await publisher.publish(OutgoingMessage("order-timeouts", "expire", "order-1", b"{}", delay_level=16))
    await publisher.shutdown()
    (record,) = [record for records in broker.queues.values() for record in records]
    for part in (b"TAGS\x01expire", b"KEYS\x01order-1", b"DELAY\x0116"):
        assert part in record


@pytest.mark.parametrize(("code", "is_taken"), [(0, True), (10, False), (11, True), (12, True)])
async def test_a_message_that_may_not_be_on_any_disk_counts_as_not_taken(code: int, is_taken: bool) -> None:
    """10 is FLUSH_DISK_TIMEOUT, 11 SLAVE_NOT_AVAILABLE, 12 FLUSH_SLAVE_TIMEOUT."""
    cluster, broker = cluster_with_broker()
    publisher = MqPublisher(cluster.url, GROUP, cluster.clock)
    await publisher.start(never_asked)
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
    publisher = MqPublisher(cluster.url, GROUP, cluster.clock)
    await publisher.start(never_asked)

    def go_down() -> None:
        broker.next_codes = [13]  # MESSAGE_ILLEGAL: rejected for good, so that the client does not wait and retry

    await check_contract(publisher, lambda: len(broker.bodies), go_down)
    await publisher.shutdown()
