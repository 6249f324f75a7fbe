"""What a listener can say beside its answer, and what becomes of one that never returns."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from mqclient import (
    ConnectionLostError,
    ConsumeConcurrentlyContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    IllegalArgumentError,
    LocalTransactionState,
    MessageExt,
    MessageSelector,
)
from mqclient.consumer.engine import failure_text
from mqclient.consumer.listener import takes_context
from mqclient.consumer.pulling import parse_subscription
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of, made_consumer
from mqclient.transport import methods
from mqproto.record import decode_record
from osenv.sim_clock import settle

SUCCESS, LATER = ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER


def sent_back(broker: FakeBroker) -> list[bytes]:
    """The bodies of what has come back, in this order."""
    return [decode_record(broker.record_at(request.log_offset)).body for request in broker.send_backs]


async def later_once(messages: list[MessageExt]) -> ConsumeStatus:
    return SUCCESS if messages[0].reconsume_times else LATER


async def test_listener_that_does_not_return_loses_its_message_after_the_consume_timeout_and_not_before() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    released = asyncio.Event()

    async def hang(messages: list[MessageExt]) -> ConsumeStatus:
        await released.wait()
        return LATER

    async with consumer_of(cluster, hang, consume_timeout_s=900.0) as consumer:
        broker.put("orders", 0, b"slow")
        await settle()
        await cluster.clock.advance(899.0)
        assert sent_back(broker) == []
        await cluster.clock.advance(1.0)
        assert sent_back(broker) == [b"slow"]
        released.set()  # what it answers so late changes nothing
        await settle()
        assert len(sent_back(broker)) == 1
        await consumer.shutdown()
    assert broker.offsets["closers", "orders", 0] == 1


async def test_listener_that_returns_in_time_keeps_its_message_beside_one_that_hangs() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    released = asyncio.Event()

    async def hang_on_slow(messages: list[MessageExt]) -> ConsumeStatus:
        if messages[0].body == b"slow":
            await released.wait()
        return SUCCESS

    async with consumer_of(cluster, hang_on_slow, consume_timeout_s=60.0):
        broker.put("orders", 0, b"slow")
        broker.put("orders", 0, b"quick")
        await settle()
        await cluster.clock.advance(61.0)
        assert sent_back(broker) == [b"slow"]
        released.set()


async def test_a_timed_out_message_that_no_broker_takes_back_is_tried_again() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    released = asyncio.Event()

    async def hang(messages: list[MessageExt]) -> ConsumeStatus:
        await released.wait()
        return SUCCESS

    async with consumer_of(cluster, hang, consume_timeout_s=60.0):
        broker.put("orders", 0, b"slow")
        await settle()
        broker.unary_errors[methods.CONSUMER_SEND_BACK.path] = [ConnectionLostError("gone")]
        await cluster.clock.advance(61.0)
        assert sent_back(broker) == []
        await cluster.clock.advance(61.0)
        assert len(sent_back(broker)) == 1
        released.set()


async def test_max_reconsume_times_of_0_makes_a_dead_letter_of_the_first_failure() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with consumer_of(cluster, later_once, max_reconsume_times=0):
        broker.put("orders", 0, b"bad")
        await settle()
        assert [request.delay_level for request in broker.send_backs] == [-1]


@pytest.mark.parametrize("level", [-1, 0, 5])
async def test_listener_says_when_its_message_comes_again(level: int) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)

    async def listen(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeStatus:
        assert context.message_queue == messages[0].message_queue
        context.delay_level_when_next_consume = level
        return await later_once(messages)

    async with consumer_of(cluster, listen):
        broker.put("orders", 0, b"later")
        await settle()
        assert [request.delay_level for request in broker.send_backs] == [level]


@pytest.mark.parametrize(
    ("ack_index", "again"), [(None, []), (2, []), (9, []), (0, [b"1", b"2"]), (-1, [b"0", b"1", b"2"])]
)
async def test_listener_acknowledges_the_front_of_a_batch(ack_index: int | None, again: list[bytes]) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(3):
        broker.put("orders", 0, b"%d" % number)

    async def listen(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeStatus:
        if len(messages) == 3:
            context.ack_index = ack_index
        return SUCCESS

    async with consumer_of(cluster, listen, consume_message_batch_max_size=3):
        await settle()
        assert sent_back(broker) == again


async def test_ordered_listener_says_how_long_its_queue_waits() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    calls = 0

    async def listen(messages: list[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        nonlocal calls
        calls += 1
        context.suspend_current_queue_time_s = 20.0
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    consumer = made_consumer("closers", cluster.url)
    consumer.subscribe("orders")
    consumer.register_message_listener_orderly(listen)
    async with consumer:
        broker.put("orders", 0, b"first")
        await settle()
        assert calls == 1
        await cluster.clock.advance(19.0)
        assert calls == 1
        await cluster.clock.advance(1.0)
        assert calls == 2


def test_only_a_second_positional_parameter_without_default_is_a_context() -> None:
    def one(messages: object) -> None:
        del messages

    def two(messages: object, context: object) -> None:
        del messages, context

    def defaulted(messages: object, retries: int = 3) -> None:
        del messages, retries

    def named(messages: object, *, log: object) -> None:
        del messages, log

    assert takes_context(two)
    for listener in (one, defaulted, print, partial(named, log=None), RecordingListener()):
        assert not takes_context(listener)


@pytest.mark.parametrize("expression", ["A||||B", "A || B", " || A||B||", "B||A||A"])
def test_empty_places_between_tags_are_ignored(expression: str) -> None:
    assert parse_subscription("orders", expression).tags == {"A", "B"}


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_of_separators_alone_is_rejected(expression: str) -> None:
    with pytest.raises(IllegalArgumentError, match="no tag"):
        parse_subscription("orders", expression)


@pytest.mark.parametrize("wanted", [None, "", "*"])
def test_no_expression_wants_every_message(wanted: str | None) -> None:
    assert parse_subscription("orders", wanted).expression == "*"


def test_something_else_than_an_expression_is_rejected_by_a_sentence() -> None:
    with pytest.raises(IllegalArgumentError, match="None, not 7"):
        parse_subscription("orders", 7)  # type: ignore[arg-type]


def test_selector_of_an_expression_that_is_no_text_is_rejected_by_a_sentence() -> None:
    with pytest.raises(IllegalArgumentError, match="has to be text"):
        parse_subscription("orders", MessageSelector.by_sql(None))  # type: ignore[arg-type]


async def test_user_properties_are_what_the_producer_set() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        broker.put("orders", 0, b"1", {"TAGS": "created", "KEYS": "o1", "region": "east", "UNIQ_KEY": "u1"})
        await listener.has(1)
        assert listener.batches[0][0].user_properties == {"region": "east"}


def test_unknown_is_another_name_of_unknow() -> None:
    assert LocalTransactionState["UNKNOWN"] is LocalTransactionState.UNKNOW


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (ValueError("no\n such order"), "ValueError: no such order"),
        (asyncio.QueueFull(), "asyncio.queues.QueueFull:"),
        (LATER, "the listener answered RECONSUME_LATER"),
        (None, "the listener answered NoneType, no status"),
        ("the listener has not returned within 900 s", "the listener has not returned within 900 s"),
        ("\ud800", "?"),
        (RuntimeError("x" * 600), f"RuntimeError: {'x' * 495}..."),
    ],
)
def test_a_failure_is_told_in_one_line(failure: object, text: str) -> None:
    assert failure_text(failure) == text
