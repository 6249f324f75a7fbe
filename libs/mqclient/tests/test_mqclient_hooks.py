"""Hooks around each try (mechanism P19)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnavailableError,
    CommunicationMode,
    Message,
    MessageType,
    Producer,
    SendMessageContext,
    TransactionProducer,
)
from mqclient.testing import FakeCluster, RecordingTransactionListener
from osenv.sim_clock import settle


class RecordingHook:
    """Remembers what it sees; each context has its own mark in between."""

    hook_name = "recording"

    def __init__(self) -> None:
        self.begun: list[SendMessageContext] = []
        self.ended: list[SendMessageContext] = []

    def send_message_before(self, context: SendMessageContext) -> None:
        assert (context.send_result, context.exception) == (None, None)
        context.props["number"] = len(self.begun)
        self.begun.append(context)

    def send_message_after(self, context: SendMessageContext) -> None:
        assert context is self.begun[context.props["number"]]
        self.ended.append(context)


class FailingHook:
    """Raises whenever it is called."""

    hook_name = "failing"

    def send_message_before(self, context: SendMessageContext) -> None:
        raise ValueError("before")

    def send_message_after(self, context: SendMessageContext) -> None:
        raise ValueError("after")


@pytest.mark.mechanism("P19")
async def test_a_hook_sees_the_message_before_it_leaves_and_its_result_after() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    hook = RecordingHook()
    message = Message("orders", b"x", keys="o-1")
    producer = Producer("shop", cluster.url)
    producer.register_send_message_hook(hook)
    async with producer:
        broker.silent = True
        send = asyncio.create_task(producer.send(message))
        await settle()
        (context,) = hook.begun
        assert hook.ended == []
        broker.answer_frame(broker.frames[0])
        result = await send
    assert hook.ended == [context]
    assert context.message is message
    assert context.send_result is result
    assert context.exception is None
    assert context.unique_id == result.message_id
    assert (context.producer_group, context.born_host) == ("shop", "10.0.0.1")
    assert (context.message_queue, context.broker_address) == (result.message_queue, broker.address)
    assert (context.communication_mode, context.message_type) == (CommunicationMode.SYNC, MessageType.NORMAL_MSG)


@pytest.mark.mechanism("P19")
async def test_each_try_is_seen_with_what_became_of_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    hook = RecordingHook()
    async with Producer("shop", cluster.url) as producer:
        producer.register_send_message_hook(hook)
        broker.next_codes = [common_pb.SYSTEM_BUSY]
        send = asyncio.create_task(producer.send(Message("orders", b"x")))
        await cluster.clock.advance(1.0)
        result = await send
    first, second = hook.ended
    assert isinstance(first.exception, BrokerUnavailableError)
    assert second.send_result is result


async def test_a_cancelled_send_is_seen_as_such() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    hook = RecordingHook()
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        producer.register_send_message_hook(hook)
        send = asyncio.create_task(producer.send(Message("orders", b"x")))
        await settle()
        send.cancel()
        await settle()
        broker.silent = False
    assert isinstance(hook.ended[0].exception, asyncio.CancelledError)


async def test_kinds_of_messages_and_of_sends_have_their_names() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    hook = RecordingHook()
    done = asyncio.Event()

    class Callback:
        async def on_success(self, result: object) -> None:
            done.set()

        async def on_exception(self, error: Exception) -> None:
            raise AssertionError(error)

    async with TransactionProducer(
        "shop", cluster.url, transaction_listener=RecordingTransactionListener()
    ) as producer:
        producer.register_send_message_hook(hook)
        await producer.send(Message("orders", b"x", delay_level=3))
        await producer.send_message_in_transaction(Message("orders", b"x"))
        await producer.send_oneway(Message("orders", b"x"))
        batch = [Message("orders", b"x"), Message("orders", b"y")]
        await producer.send_batch(batch)
        producer.send_async(Message("orders", b"x"), Callback())
        await done.wait()
    assert [context.message_type for context in hook.ended] == [
        MessageType.DELAY_MSG,
        MessageType.TRANS_MSG_HALF,
        MessageType.NORMAL_MSG,
        MessageType.NORMAL_MSG,
        MessageType.NORMAL_MSG,
    ]
    modes = [context.communication_mode.value for context in hook.ended]
    assert modes == ["SYNC", "SYNC", "ONEWAY", "SYNC", "ASYNC"]
    assert hook.ended[2].send_result is None
    assert list(hook.ended[3].messages) == batch
    assert hook.ended[3].unique_id.count(",") == 1


@pytest.mark.mechanism("P19")
async def test_a_hook_that_raises_is_logged_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    hook = RecordingHook()
    producer = Producer("shop", cluster.url)
    producer.register_send_message_hook(FailingHook())
    producer.register_send_message_hook(hook)
    async with producer:
        await producer.send(Message("orders", b"x"))
    assert broker.bodies == [b"x"]
    assert len(hook.ended) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "the hook failing failed before" in caplog.text
    assert "the hook failing failed after" in caplog.text
