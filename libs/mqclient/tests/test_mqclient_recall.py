"""Recalls: the brokers that the client asks, the merged answers, and when it claims nothing.

Mechanism D7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnreachableError,
    ConnectionLostError,
    IllegalArgumentError,
    IllegalStateError,
    Message,
    MessageQueue,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
    Producer,
    RecalledMessage,
    RecallOutcome,
    RecallResult,
    RequestTimeoutError,
    RetryableError,
    TransactionProducer,
)
from mqclient import recall as recalls
from mqclient.sync import SyncAdmin, SyncProducer, SyncTransactionProducer
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqclient.testing.loopback import loopback_server
from mqclient.transport.methods import RECALL_MESSAGE
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
START = datetime.fromtimestamp(START_MS / 1_000, UTC)
HOUR_MS = 3_600_000
RECALL = RECALL_MESSAGE.path
REMOVED, RESCHEDULED, ALREADY_DELIVERED, UNKNOWN = RecallOutcome


async def send_later(producer: Producer, broker: FakeBroker, key: str = "order-17", delay_ms: int = HOUR_MS) -> str:
    """Send a message that waits on this broker; its id."""
    queue = MessageQueue("orders", broker.name, 0)
    return (await producer.send(Message("orders", b"later", keys=key, delay_ms=delay_ms), queue=queue)).message_id


def outcomes(result: RecallResult) -> list[tuple[str, str, RecallOutcome]]:
    return [(message.broker_name, message.message_id, message.outcome) for message in result.messages]


class TestAnswers:
    async def test_a_message_is_taken_back_by_its_key_or_its_id_and_never_comes(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url) as producer:
            by_key, by_id = await send_later(producer, broker), await send_later(producer, broker, "order-18")
            first = await producer.recall("orders", key="order-17")
            second = await producer.recall("orders", message_id=by_id)
            await cluster.clock.advance(2 * HOUR_MS / 1_000)
            broker.deliver_due()
        assert outcomes(first) == [("broker-a", by_key, REMOVED)]
        assert outcomes(second) == [("broker-a", by_id, REMOVED)]
        assert (first.outcome, first.broker_names, broker.bodies) == (REMOVED, ("broker-a",), [])

    async def test_a_second_recall_says_the_same_and_one_after_the_delivery_that_it_was_too_late(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url) as producer:
            await send_later(producer, broker)
            results = [await producer.recall("orders", key="order-17") for _ in range(2)]
            await send_later(producer, broker, "order-18", delay_ms=1)
            await cluster.clock.advance(1)
            broker.deliver_due()
            results.append(await producer.recall("orders", key="order-18"))
            results.append(await producer.reschedule("orders", key="order-18", delay_ms=5))
        assert [result.outcome for result in results] == [REMOVED, REMOVED, ALREADY_DELIVERED, ALREADY_DELIVERED]
        assert broker.bodies == [b"later"]

    @pytest.mark.parametrize(
        ("new_time", "due_ms"),
        [
            ({"delay_ms": 7}, START_MS + 7),
            ({"delay_ms": 2 * HOUR_MS}, START_MS + 2 * HOUR_MS),
            ({"deliver_at": START + timedelta(microseconds=1_001)}, START_MS + 2),
            ({"deliver_at": START - timedelta(days=1)}, START_MS - 24 * HOUR_MS),
        ],
    )
    async def test_a_message_waits_for_another_time(self, new_time: dict[str, Any], due_ms: int) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url) as producer:
            id_ = await send_later(producer, broker)
            result = await producer.reschedule("orders", key="order-17", **new_time)
        assert result.messages == (RecalledMessage(id_, "broker-a", RESCHEDULED, due_ms),)
        assert result.outcome is RESCHEDULED

    async def test_the_masters_of_the_route_are_asked_and_no_others(self) -> None:
        cluster, (one, two) = FakeCluster.of("broker-a", "broker-b")
        other = cluster.add_broker("broker-c")
        async with Producer("shop", cluster.url) as producer:
            ids = [await send_later(producer, one), await send_later(producer, two)]
            result = await producer.recall("orders", key="order-17")
        assert outcomes(result) == [("broker-a", ids[0], REMOVED), ("broker-b", ids[1], REMOVED)]
        assert (result.broker_names, other.waiting.requests) == (("broker-a", "broker-b"), [])

    async def test_nothing_anywhere_is_unknown(self) -> None:
        cluster, _ = FakeCluster.of("broker-a", "broker-b")
        async with Producer("shop", cluster.url) as producer:
            result = await producer.recall("orders", key="unknown")
        assert (result.outcome, result.messages, result.broker_names) == (UNKNOWN, (), ("broker-a", "broker-b"))

    async def test_an_answer_that_is_cut_short_is_asked_for_again(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.waiting.messages_max = 2
        async with Producer("shop", cluster.url) as producer:
            ids = [await send_later(producer, broker) for _ in range(5)]
            result = await producer.recall("orders", key="order-17")
        assert len(broker.waiting.requests) == 3
        assert outcomes(result) == [("broker-a", id_, REMOVED) for id_ in reversed(ids)]

    async def test_a_broker_that_never_comes_to_an_end_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recalls, "REQUESTS_MAX", 2)
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.waiting.messages_max = 1
        async with Producer("shop", cluster.url) as producer:
            for _ in range(4):
                await send_later(producer, broker)
            with pytest.raises(RetryableError, match="has still more messages with the key 'order-17'") as caught:
                await producer.recall("orders", key="order-17")
            assert str(caught.value).endswith("; answers so far: broker-a: 2 REMOVED")
            again = await producer.recall("orders", key="order-17")
        assert len(again.messages) == 4


@pytest.mark.parametrize(
    ("told", "summary"),
    [
        ([], UNKNOWN),
        ([REMOVED], REMOVED),
        ([RESCHEDULED], RESCHEDULED),
        ([ALREADY_DELIVERED], ALREADY_DELIVERED),
        ([REMOVED, REMOVED], REMOVED),
        ([REMOVED, RESCHEDULED], RESCHEDULED),
        ([REMOVED, ALREADY_DELIVERED], ALREADY_DELIVERED),
        ([RESCHEDULED, ALREADY_DELIVERED, REMOVED], ALREADY_DELIVERED),
    ],
)
def test_the_summary_promises_no_more_than_every_message_keeps(
    told: list[RecallOutcome], summary: RecallOutcome
) -> None:
    for order in (told, told[::-1]):
        messages = tuple(RecalledMessage("id", "broker-a", outcome) for outcome in order)
        assert RecallResult(messages, ("broker-a",)).outcome is summary


class TestNoAnswer:
    """One broker has removed the message; what the other one has is unknown."""

    async def error_of(self, fail: Callable[[FakeBroker], object]) -> MQClientError:
        cluster, (one, two) = FakeCluster.of("broker-a", "broker-b")
        async with Producer("shop", cluster.url) as producer:
            await send_later(producer, one)
            fail(two)
            recall = asyncio.create_task(producer.recall("orders", key="order-17"))
            await settle()
            await cluster.clock.advance(3)
            with pytest.raises(MQClientError) as caught:
                await recall
            two.unary_gate = None
            assert (await producer.recall("orders", key="order-17")).outcome is REMOVED
        assert str(caught.value).endswith("; answers so far: broker-a: 1 REMOVED")
        return caught.value

    async def test_a_request_that_never_left_can_be_tried_again(self) -> None:
        gone = BrokerUnreachableError("127.0.0.1:10912: nothing listens")
        error = await self.error_of(lambda broker: broker.unary_errors[RECALL].append(gone))
        assert isinstance(error, RetryableError)
        assert str(error).startswith("127.0.0.1:10912: nothing listens")

    async def test_a_connection_that_broke_leaves_it_open(self) -> None:
        error = await self.error_of(lambda broker: broker.unary_errors[RECALL].append(ConnectionLostError("it broke")))
        assert type(error) is ConnectionLostError

    @pytest.mark.mechanism("D7")
    async def test_a_broker_that_is_silent_leaves_it_open(self) -> None:
        error = await self.error_of(lambda broker: setattr(broker, "unary_gate", asyncio.Event()))
        assert type(error) is RequestTimeoutError
        assert "did not answer within 3 s" in str(error)

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (common_pb.MESSAGE_ILLEGAL, BrokerRejectedError),  # a broker without an index
            (common_pb.SYSTEM_ERROR, OutcomeUnknownError),
            (common_pb.SYSTEM_BUSY, OutcomeUnknownError),
        ],
    )
    async def test_a_rejection_is_no_answer(
        self, code: common_pb.ResponseCode.ValueType, kind: type[MQClientError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = [broker_pb.RecallMessageResponse(code=code, remark="no index")]

        def reject(broker: FakeBroker) -> None:
            monkeypatch.setitem(
                broker._unary, RECALL, lambda request: answers.pop() if answers else broker.waiting.recall(request)
            )

        error = await self.error_of(reject)
        assert type(error) is kind
        assert f"broker broker-b answered {common_pb.ResponseCode.Name(code)}: no index" in str(error)

    async def test_a_name_without_a_running_master_is_not_unknown(self) -> None:
        cluster, (_, two) = FakeCluster.of("broker-a", "broker-b")
        two.addresses = {1: two.address}  # its replica alone
        async with Producer("shop", cluster.url) as producer:
            with pytest.raises(BrokerUnreachableError, match="the master of broker 'broker-b' is not there"):
                await producer.recall("orders", key="order-17")

    async def test_the_gravest_error_is_raised_and_tells_the_others(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b", "broker-c")
        errors = (BrokerUnreachableError("a is away"), ConnectionLostError("b broke"), IllegalArgumentError("c: what?"))
        async with Producer("shop", cluster.url) as producer:
            for broker, error in zip(brokers, errors, strict=True):
                broker.unary_errors[RECALL].append(error)
            with pytest.raises(ConnectionLostError) as caught:
                await producer.recall("orders", key="order-17")
        assert str(caught.value) == "b broke; answers so far: broker-a: a is away; broker-c: c: what?"

    async def test_of_a_topic_that_no_broker_has_nothing_waits(self) -> None:
        cluster, _ = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url) as producer:
            result = await producer.recall("bills", key="order-17")
            assert (result.outcome, result.messages, result.broker_names) == (RecallOutcome.UNKNOWN, (), ())

    async def test_of_a_topic_whose_brokers_may_be_away_nothing_is_claimed(self) -> None:
        cluster = FakeCluster(name_servers=2)
        broker = cluster.add_broker("broker-a")
        async with Producer("shop", cluster.url) as producer:
            await producer.send(Message("orders", b"x"))
            broker.topics.pop("orders")
            with pytest.raises(NoRouteError, match="no registered broker has the topic 'orders' any more"):
                await producer.recall("orders", key="order-17")
            for server in list(cluster.name_servers.values())[1:]:
                server.down = True
            with pytest.raises(NoRouteError, match="whether topic 'bills' exists is unknown: no answer of"):
                await producer.recall("bills", key="order-17")
            for server in cluster.name_servers.values():
                server.down = True
            with pytest.raises(NoRouteError, match="no name server answered"):
                await producer.recall("bills", key="order-17")

    async def test_a_name_server_without_brokers_does_not_say_that_a_topic_is_not_there(self) -> None:
        cluster = FakeCluster()
        async with Producer("shop", cluster.url) as producer:
            with pytest.raises(NoRouteError, match="'bills' exists is unknown: no broker is registered"):
                await producer.recall("bills", key="order-17")


Call = Callable[[Producer], Awaitable[object]]
ILLEGAL: dict[str, tuple[Call, str]] = {
    "neither": (lambda p: p.recall("orders"), "name the messages by key or by message_id, one of the two"),
    "both": (lambda p: p.recall("orders", key="k", message_id="i"), "one of the two"),
    "empty key": (lambda p: p.recall("orders", key=""), "the key '' has to be text, not empty and without a space"),
    "two keys": (lambda p: p.recall("orders", key="a b"), "the key 'a b' has to be text"),
    "no id": (lambda p: p.recall("orders", message_id=""), "the message_id '' has to be text"),
    "system topic": (lambda p: p.recall("SCHEDULE_TOPIC_XXXX", key="k"), "belongs to the queue itself"),
    "no time": (lambda p: p.reschedule("orders", key="k"), "give the new time as delay_ms or as deliver_at"),
    "two times": (lambda p: p.reschedule("orders", key="k", delay_ms=1, deliver_at=START), "one of the two"),
    "no delay": (lambda p: p.reschedule("orders", key="k", delay_ms=0), "delay_ms is 0; allowed are 1 to"),
    "too far": (lambda p: p.reschedule("orders", key="k", deliver_at=START + timedelta(days=41)), "more than 40 days"),
    "no zone": (lambda p: p.reschedule("orders", key="k", deliver_at=datetime(2030, 1, 1)), "time zone"),  # noqa: DTZ001
}


@pytest.mark.parametrize("case", ILLEGAL)
async def test_what_makes_no_sense_is_asked_of_no_broker(case: str) -> None:
    call, sentence = ILLEGAL[case]
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        with pytest.raises(IllegalArgumentError) as caught:
            await call(producer)
    assert sentence in str(caught.value)
    assert broker.waiting.requests == []


class TestWhoMayAsk:
    async def test_an_admin_has_the_same_calls(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url) as producer, Admin(cluster.url) as admin:
            id_ = await send_later(producer, broker)
            later = await admin.reschedule_message("orders", message_id=id_, deliver_at=START + timedelta(hours=2))
            gone = await admin.recall_message("orders", key="order-17")
        assert outcomes(later) == [("broker-a", id_, RESCHEDULED)]
        assert outcomes(gone) == [("broker-a", id_, REMOVED)]

    async def test_one_that_does_not_run_does_not_ask(self) -> None:
        cluster, _ = FakeCluster.of("broker-a")
        producer, admin = Producer("shop", cluster.url), Admin(cluster.url)
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: producer.recall("orders", key="k"),
            lambda: producer.reschedule("orders", key="k", delay_ms=1),
            lambda: admin.recall_message("orders", key="k"),
            lambda: admin.reschedule_message("orders", key="k", delay_ms=1),
        )
        for call in calls:
            with pytest.raises(IllegalStateError, match="is not running"):
                await call()

    async def test_a_shutdown_waits_for_the_answer(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        producer = Producer("shop", cluster.url)
        await producer.start()
        broker.unary_gate = asyncio.Event()
        recall = asyncio.create_task(producer.recall("orders", key="k"))
        await settle()
        leaving = asyncio.create_task(producer.shutdown())
        await settle()
        assert not leaving.done()
        broker.unary_gate.set()
        await leaving
        assert (await recall).outcome is UNKNOWN

    async def test_a_transaction_producer_does_and_scripts_do_without_await(self) -> None:
        def script(url: str) -> list[RecallOutcome]:
            listener: Any = RecordingTransactionListener()
            with (
                SyncProducer("scripts", url) as producer,
                SyncTransactionProducer("shop", url, transaction_listener=listener) as transactions,
                SyncAdmin(url) as admin,
            ):
                producer.send(Message("orders", b"x", keys="k", delay_ms=HOUR_MS))
                return [
                    producer.reschedule("orders", key="k", delay_ms=2 * HOUR_MS).outcome,
                    transactions.reschedule("orders", key="k", delay_ms=2 * HOUR_MS).outcome,
                    admin.reschedule_message("orders", key="k", delay_ms=2 * HOUR_MS).outcome,
                    producer.recall("orders", key="k").outcome,
                    transactions.recall("orders", key="k").outcome,
                    admin.recall_message("orders", key="nothing").outcome,
                ]

        async with loopback_server() as loopback:
            told = await asyncio.to_thread(script, loopback.url)
        assert told == [RESCHEDULED] * 3 + [REMOVED] * 2 + [UNKNOWN]
        assert TransactionProducer.recall is Producer.recall
