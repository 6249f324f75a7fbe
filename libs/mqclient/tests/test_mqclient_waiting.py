"""Messages that are to be delivered later: what leaves the client, by which way, and when it is rejected.

Mechanisms D1, D7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from mqclient import LocalTransactionState, Message, MessageRejectedError, MessageType, Producer, TransactionProducer
from mqclient.message import deliver_timestamp_ms
from mqclient.producer.prepared import check_message, message_properties
from mqclient.sync import SyncTransactionProducer
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqclient.testing.loopback import loopback_server
from mqproto.properties import decode_properties
from mqproto.record import Record, iter_records
from osenv import SimClock
from osenv.sim_clock import settle

START = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # where the fake cluster's clock stands
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
EARLY, LATE = {"delay_level": 3}, {"deliver_at": START + timedelta(hours=1)}
DELAYS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "delay level": ({"delay_level": 16}, {"DELAY": "16"}),
    "delay_ms": ({"delay_ms": 1}, {"TIMER_DELAY_MS": "1"}),
    "delay_ms of 40 days": ({"delay_ms": 40 * DAY_MS}, {"TIMER_DELAY_MS": "3456000000"}),
    "deliver_at": ({"deliver_at": START}, {"TIMER_DELIVER_MS": "1700000000000"}),
    "deliver_at in 40 days": ({"deliver_at": START + timedelta(days=40)}, {"TIMER_DELIVER_MS": "1703456000000"}),
    "deliver_at long ago": ({"deliver_at": datetime(1, 1, 1, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "0"}),
}
Send = Callable[[TransactionProducer, Message], Awaitable[object]]


async def send_with_a_callback(producer: Producer, message: Message) -> None:
    ended = asyncio.get_running_loop().create_future()

    class Callback:
        def on_success(self, result: object) -> None:
            ended.get_loop().call_soon_threadsafe(ended.set_result, result)

        def on_exception(self, error: Exception) -> None:
            ended.get_loop().call_soon_threadsafe(ended.set_exception, error)

    producer.send_async(message, Callback())
    await ended


async def send_oneway(producer: Producer, message: Message) -> None:
    await producer.send_oneway(message)
    await settle()


WAYS: dict[str, Send] = {
    "send": lambda producer, message: producer.send(message),
    "callback": send_with_a_callback,
    "one way": send_oneway,
    "transaction": lambda producer, message: producer.send_message_in_transaction(message),
}


def sent(broker: FakeBroker) -> list[Record]:
    return [record for frame in broker.frames for batch in frame.batches for record in iter_records(batch.records)]


def delay_properties(record: Record) -> dict[str, str]:
    names = ("DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
    return {name: value for name, value in decode_properties(record.properties).items() if name in names}


class TestOnTheWire:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("delay", DELAYS)
    async def test_every_way_to_send_takes_every_delay(self, way: str, delay: str) -> None:
        fields, properties = DELAYS[delay]
        cluster, (broker,) = FakeCluster.of("broker-a")
        listener = RecordingTransactionListener()
        async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
            await WAYS[way](producer, Message("orders", b"later", **fields))
        (record,) = sent(broker)
        assert delay_properties(record) == properties

    async def test_what_waits_travels_in_a_batch_of_its_own(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
        times: list[dict[str, Any]] = [{}, {}, {"delay_ms": 5}, LATE, {"delay_ms": 5}, EARLY, {}]
        async with Producer("shop", cluster.url) as producer:
            await asyncio.gather(*(producer.send(Message("orders", b"x", **fields)) for fields in times))
        counts = [batch.count for frame in broker.frames for batch in frame.batches]
        timed = [record for record in sent(broker) if delay_properties(record)]
        assert (len(timed), sum(counts)) == (4, 7)
        assert counts.count(1) >= 4
        assert broker.bodies == [b"x"] * 4  # the other three wait

    async def test_hooks_hear_of_a_delay_message(self) -> None:
        kinds = []

        class Hook:
            hook_name = "kinds"

            def send_message_before(self, context: Any) -> None:
                kinds.append(context.message_type)

            def send_message_after(self, context: Any) -> None:
                """Not of interest."""

        cluster, _ = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url) as producer:
            producer.register_send_message_hook(Hook())
            await producer.send(Message("orders", b"x", delay_ms=5))
            await producer.send(Message("orders", b"x", deliver_at=START))
            await producer.send(Message("orders", b"x"))
        assert kinds == [MessageType.DELAY_MSG, MessageType.DELAY_MSG, MessageType.NORMAL_MSG]


class TestTimes:
    @pytest.mark.parametrize(
        ("moment", "expected_ms"),
        [
            (START, START_MS),
            (START + timedelta(microseconds=1), START_MS + 1),
            (START + timedelta(microseconds=999), START_MS + 1),
            (START + timedelta(milliseconds=7), START_MS + 7),
            (START - timedelta(microseconds=1), START_MS),
            (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), 0),
            (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 0),
            (datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), 253_402_344_000_000),
        ],
    )
    def test_a_moment_is_rounded_up_to_the_millisecond_so_that_it_is_never_early(
        self, moment: datetime, expected_ms: int
    ) -> None:
        assert deliver_timestamp_ms(moment) == expected_ms

    def test_the_time_zone_counts(self) -> None:
        shanghai = START.astimezone(timezone(timedelta(hours=8)))
        assert deliver_timestamp_ms(shanghai) == deliver_timestamp_ms(START)
        assert deliver_timestamp_ms(START.replace(tzinfo=shanghai.tzinfo)) == START_MS - 8 * 3_600_000

    async def test_forty_days_are_counted_from_now_by_the_clients_clock(self) -> None:
        cluster, _ = FakeCluster.of("broker-a")
        message = Message("orders", b"x", deliver_at=START + timedelta(days=40, seconds=1))
        async with Producer("shop", cluster.url) as producer:
            with pytest.raises(MessageRejectedError, match="more than 40 days from now"):
                await producer.send(message)
            await cluster.clock.advance(1)
            await producer.send(message)

    def test_a_message_says_one_delay_at_the_most(self) -> None:
        message = Message("orders", b"x", delay_ms=7, keys="k")
        check_message(message)
        assert decode_properties(message_properties(message, "ID").encode()) == {
            "UNIQ_KEY": "ID",
            "KEYS": "k",
            "TIMER_DELAY_MS": "7",
        }


class TestTransactions:
    async def test_a_transactional_message_waits_from_its_commit_on(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        listener = RecordingTransactionListener(LocalTransactionState.UNKNOW, LocalTransactionState.COMMIT_MESSAGE)
        async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
            sent_half = await producer.send_message_in_transaction(Message("orders", b"later", delay_ms=60_000))
            await cluster.clock.advance(50)
            assert broker.waiting.messages == []
            broker.check(sent_half.transaction_id)
            await settle()
            await cluster.clock.advance(59)
            broker.deliver_due()
            assert broker.bodies == []
            await cluster.clock.advance(1)
            broker.deliver_due()
            assert broker.bodies == [b"later"]

    async def test_a_later_try_of_a_half_has_the_same_delay_and_immunity(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b")
        for broker in brokers:
            broker.next_codes = [2]  # SYSTEM_BUSY
        listener = RecordingTransactionListener()
        async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
            message = Message("orders", b"x", delay_ms=5)
            sending = asyncio.create_task(producer.send_message_in_transaction(message, check_immunity_s=90))
            await cluster.clock.advance(2)
            await sending
        tries = [record for broker in brokers for record in sent(broker)]
        assert len(tries) == 3
        for record in tries:
            properties = decode_properties(record.properties)
            assert (properties["TIMER_DELAY_MS"], properties["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == ("5", "90")

    @pytest.mark.parametrize(("seconds", "expected"), [(None, None), (0, "0"), (3_456_000, "3456000")])
    async def test_the_half_says_from_when_on_it_may_be_asked_for(
        self, seconds: int | None, expected: str | None
    ) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        listener = RecordingTransactionListener()
        async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
            await producer.send_message_in_transaction(Message("orders", b"x"), check_immunity_s=seconds)
        (record,) = sent(broker)
        assert decode_properties(record.properties).get("CHECK_IMMUNITY_TIME_IN_SECONDS") == expected


async def test_the_synchronous_face_passes_delay_and_immunity_on() -> None:
    class Listener:
        def execute_local_transaction(self, *_: object) -> LocalTransactionState:
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, _: object) -> LocalTransactionState:
            return LocalTransactionState.UNKNOW

    def script(url: str) -> None:
        with SyncTransactionProducer("shop", url, transaction_listener=Listener()) as producer:
            producer.send_message_in_transaction(Message("orders", b"x", delay_ms=5), check_immunity_s=90)

    async with loopback_server() as loopback:
        await asyncio.to_thread(script, loopback.url)
        (record,) = sent(loopback.broker)
    assert decode_properties(record.properties)["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "90"
    assert delay_properties(record) == {"TIMER_DELAY_MS": "5"}


def test_the_fake_clusters_clock_stands_where_these_tests_think() -> None:
    assert SimClock().wall_ms() == START_MS == round(START.timestamp() * 1_000)
