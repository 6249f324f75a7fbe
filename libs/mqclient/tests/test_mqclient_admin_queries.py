"""Messages found again by an operator: by key, by id, by time; and what a broker says about its store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    BrokerRejectedError,
    IllegalArgumentError,
    IllegalStateError,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    MQClientError,
    NoRouteError,
    Producer,
    SendResult,
    TransactionProducer,
)
from mqclient.message import offset_message_id, parse_offset_message_id
from mqclient.testing import FakeCluster
from osenv import SimClock

START_MS = 1_700_000_000_000
NAME = "admin-queries"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(NAME, clock=SimClock(START_MS)) as running:
        yield running


@pytest_asyncio.fixture
async def admin(broker: EmbeddedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.url) as running:
        await running.update_topic("t", read_queue_count=1, write_queue_count=1)
        yield running


@pytest_asyncio.fixture
async def producer(broker: EmbeddedBroker, admin: Admin) -> AsyncIterator[Producer]:
    async with Producer("shop", broker.url) as running:
        yield running


async def send(producer: Producer, clock: SimClock, count: int = 5, key: str = "k") -> list[SendResult]:
    """A message a second."""
    results = []
    for number in range(count):
        message = Message("t", b"%d" % number, tag="red", keys=[key, f"own{number}"], properties={"a": "b"})
        results.append(await producer.send(message))
        await clock.advance(1)
    return results


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


class TestByKey:
    async def test_every_key_and_the_unique_id_find_the_message_as_it_was_sent(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        sent = await send(producer, broker.clock)
        for number, result in enumerate(sent):
            for key in (f"own{number}", result.message_id):
                (message,) = await admin.query_message("t", key)
                assert (message.body, message.tag, message.properties["a"]) == (b"%d" % number, "red", "b")
                assert message.keys == ("k", f"own{number}")
                assert (message.message_id, message.offset_message_id) == (result.message_id, result.offset_message_id)
                assert (message.message_queue, message.queue_offset) == (result.message_queue, result.queue_offset)
                assert message.store_timestamp_ms == START_MS + 1_000 * number

    async def test_the_newest_come_first_and_no_more_than_asked_for(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        await send(producer, broker.clock)
        assert bodies(await admin.query_message("t", "k")) == [b"4", b"3", b"2", b"1", b"0"]
        for asked in (1, 4, 5, 6, 2_000):
            found = await admin.query_message("t", "k", max_messages=asked)
            assert bodies(found) == [b"4", b"3", b"2", b"1", b"0"][:asked]

    async def test_zero_asks_for_as_many_as_the_broker_gives_by_itself(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        await send(producer, broker.clock, 3)
        assert bodies(await admin.query_message("t", "k", max_messages=0)) == [b"2", b"1", b"0"]

    async def test_the_time_range_is_exact_and_includes_both_ends(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        await send(producer, broker.clock)
        ranges: list[tuple[int, int, list[bytes]]] = [
            (1_000, 3_000, [b"3", b"2", b"1"]),
            (1_001, 2_999, [b"2"]),
            (4_001, 0, []),
            (-START_MS, 0, [b"4", b"3", b"2", b"1", b"0"]),
            (4_000, 0, [b"4"]),
        ]
        for begin, end, wanted in ranges:
            found = await admin.query_message("t", "k", begin_ms=START_MS + begin, end_ms=START_MS + end if end else 0)
            assert bodies(found) == wanted

    async def test_what_is_not_there_is_not_found(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        await send(producer, broker.clock, 2)
        for topic, key in (("t", "K"), ("t", "kk"), ("t", "k own0"), ("u", "k"), ("SCHEDULE_TOPIC_XXXX", "k")):
            assert await admin.query_message(topic, key) == []

    async def test_a_delayed_message_is_found_under_its_topic_when_it_is_delivered(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        sent = await producer.send(Message("t", b"later", keys="k", delay_level=1))
        assert await admin.query_message("t", "k") == []
        assert bodies(await admin.query_message("SCHEDULE_TOPIC_XXXX", "k")) == [b"later"]
        await broker.clock.advance(1)
        assert bodies(await admin.query_message("t", "k")) == [b"later"]
        assert bodies(await admin.query_message("t", sent.message_id)) == [b"later"]

    async def test_a_transaction_is_found_by_its_id_when_it_is_committed(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        ids: list[str] = []

        class Listener:
            async def execute_local_transaction(
                self, message: Message, transaction_id: str, arg: object
            ) -> LocalTransactionState:
                ids.append(transaction_id)
                assert await admin.query_message("t", transaction_id) == []
                return LocalTransactionState.COMMIT_MESSAGE

            async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
                raise AssertionError("this broker is not asked")

        async with TransactionProducer("shop", broker.url, transaction_listener=Listener()) as producer:
            await producer.send_message_in_transaction(Message("t", b"order"))
        await broker.clock.advance(0.1)
        assert bodies(await admin.query_message("t", ids[0])) == [b"order"]

    @pytest.mark.parametrize("end", ["stop", "kill", "lose_power"])
    async def test_everything_is_found_again_after_a_restart(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer, end: str
    ) -> None:
        sent = await send(producer, broker.clock)
        await getattr(broker, end)()
        await broker.start()
        async with Admin(broker.url) as fresh:
            assert bodies(await fresh.query_message("t", "k")) == [b"4", b"3", b"2", b"1", b"0"]
            assert (await fresh.view_message(sent[2].offset_message_id)).body == b"2"
            assert await fresh.search_offset(sent[0].message_queue, START_MS + 1_500) == 2

    async def test_of_several_masters_the_newest_are_given(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b", topic="t")
        for number in range(6):
            brokers[number % 2].put("t", 0, b"%d" % number, {"KEYS": "k"})
            await cluster.clock.advance(1)
        async with Admin(cluster.url) as admin:
            found = await admin.query_message("t", "k", max_messages=5)
            assert bodies(found) == [b"5", b"4", b"3", b"2", b"1"]
            assert [message.broker_name for message in found] == ["broker-b", "broker-a"] * 2 + ["broker-b"]


class TestById:
    async def test_the_id_by_position_shows_its_message(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        for number, result in enumerate(await send(producer, broker.clock)):
            for message_id in (result.offset_message_id, result.offset_message_id.lower()):
                message = await admin.view_message(message_id)
                assert (message.body, message.topic, message.queue_offset) == (b"%d" % number, "t", number)
                assert message.offset_message_id == result.offset_message_id

    async def test_an_id_of_a_place_without_a_message_is_rejected_with_a_sentence(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        (sent, *_) = await send(producer, broker.clock, 1)
        host, port, at = parse_offset_message_id(sent.offset_message_id)
        for place in (at + 1, at + 10_000, (1 << 63) - 1):
            with pytest.raises(MQClientError, match=f"QUERY_NOT_FOUND.*{place}"):
                await admin.view_message(offset_message_id(host, port, place))

    @pytest.mark.parametrize(
        "message_id",
        [
            "",
            "17",
            "0" * 31,
            "0" * 33,
            "g" * 32,
            "0" * 32,
            "7F000001" + "00010000" + "0" * 16,
            "7F0000010000" + "2A9F" + "8" + "0" * 15,
        ],
    )
    async def test_what_is_no_id_by_position_is_said_so_before_any_broker_is_asked(
        self, admin: Admin, message_id: str
    ) -> None:
        with pytest.raises(IllegalArgumentError):
            await admin.view_message(message_id)

    async def test_a_unique_id_is_not_taken_for_a_place(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        (sent, *_) = await send(producer, broker.clock, 1)
        with pytest.raises(IllegalArgumentError, match="a unique id, perhaps"):
            await admin.view_message(sent.message_id)

    @pytest.mark.parametrize("place", [0, 1, 1 << 40, (1 << 63) - 1])
    @pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 10_911), ("255.255.255.255", 65_535), ("0.0.0.0", 1)])
    def test_an_id_says_what_it_was_made_of(self, host: str, port: int, place: int) -> None:
        assert parse_offset_message_id(offset_message_id(host, port, place)) == (host, port, place)


class TestByTime:
    async def test_it_is_the_first_message_stored_then_or_later(
        self, broker: EmbeddedBroker, admin: Admin, producer: Producer
    ) -> None:
        (first, *_) = await send(producer, broker.clock)
        for milliseconds, wanted in ((-5_000, 0), (0, 0), (1, 1), (1_000, 1), (3_999, 4), (4_000, 4), (4_001, 5)):
            assert await admin.search_offset(first.message_queue, START_MS + milliseconds) == wanted

    async def test_a_queue_without_messages_begins_at_0(self, admin: Admin) -> None:
        assert await admin.search_offset(MessageQueue("t", "broker-a", 0), START_MS) == 0

    async def test_an_unknown_topic_or_broker_is_said_so(self, admin: Admin) -> None:
        with pytest.raises(MQClientError, match=r"TOPIC_NOT_EXIST.*topic 'nowhere' does not exist"):
            await admin.search_offset(MessageQueue("nowhere", "broker-a", 0), 0)
        with pytest.raises(NoRouteError, match="no master is registered as 'broker-z'"):
            await admin.search_offset(MessageQueue("t", "broker-z", 0), 0)


REJECTED: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "a query names a topic and a key": lambda admin: admin.query_message("t", ""),
    "2001 messages; allowed are 1 to 2000": lambda admin: admin.query_message("t", "k", max_messages=2_001),
    "-1 messages; allowed are 1 to 2000": lambda admin: admin.query_message("t", "k", max_messages=-1),
}


@pytest.mark.parametrize("sentence", REJECTED)
async def test_a_query_that_makes_no_sense_is_rejected_with_the_broker_s_sentence(admin: Admin, sentence: str) -> None:
    with pytest.raises(BrokerRejectedError, match=f"MESSAGE_ILLEGAL: {sentence}"):
        await REJECTED[sentence](admin)


CALLS: dict[str, Callable[[Admin], Awaitable[object]]] = {
    "query_message": lambda admin: admin.query_message("t", "k"),
    "view_message": lambda admin: admin.view_message("7F00000100002A9F" + "0" * 16),
    "search_offset": lambda admin: admin.search_offset(MessageQueue("t", "broker-a", 0), 0),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_admin_that_was_not_started_or_has_been_shut_down_asks_no_broker(
    broker: EmbeddedBroker, call: str
) -> None:
    admin = Admin(broker.url)
    with pytest.raises(IllegalStateError):
        await CALLS[call](admin)
    await admin.start()
    await admin.shutdown()
    with pytest.raises(IllegalStateError):
        await CALLS[call](admin)


@pytest.mark.parametrize("call", ["query_message", "view_message"])
async def test_a_message_that_was_damaged_on_its_way_is_an_error_of_the_client_s_tree(call: str) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", topic="t")
    broker.put("t", 0, b"it", {"KEYS": "k"})
    broker._log[0] = broker._log[0][:88] + b"\xff" + broker._log[0][89:]
    async with Admin(cluster.url) as admin:
        with pytest.raises(MQClientError, match="damaged"):
            await CALLS[call](admin)


async def test_a_broker_says_how_its_store_is(broker: EmbeddedBroker, admin: Admin, producer: Producer) -> None:
    sent = await send(producer, broker.clock)
    (status,) = await admin.broker_statuses()
    store = status.store
    assert store.confirm_offset == store.durable_offset == store.indexed_offset == status.log_max_offset > 0
    assert (store.write_rejection, store.damaged, store.files_deleted, store.messages_carried) == ("", (), 0, 0)
    broker.disk.used_share = 0.93
    await broker.clock.advance(11)
    (status,) = await admin.broker_statuses()
    assert status.store.disk_used_share == 0.93
    assert status.store.write_rejection == "the disk is 93% full; writes are accepted again at 85%"
    broker.disk.used_share = 0.5
    _, _, place = parse_offset_message_id(sent[1].offset_message_id)
    await broker.stop()
    broker.disk.open(Path("/store/commitlog") / ("0" * 20)).pwrite(b"\xff\xff", place + 90)
    broker.disk.remove_tree(Path("/store/checkpoint"))
    await broker.start()
    async with Admin(broker.url) as fresh:
        (status,) = await fresh.broker_statuses()
        (found,) = await fresh.query_message("t", "own2")
        size = found.log_offset - place
        assert status.store.damaged == ((place, size),)
        assert bodies(await fresh.query_message("t", "k")) == [b"4", b"3", b"2", b"0"]
        with pytest.raises(MQClientError, match="damaged"):
            await fresh.view_message(sent[1].offset_message_id)
