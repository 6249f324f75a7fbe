"""memory:// without an event loop: thirty minutes pass in a plain function."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from mq_broker.embedded import SyncEmbeddedBroker
from mqclient import ConsumeFromWhere, ConsumeStatus, LocalTransactionState, Message, MessageExt
from mqclient.errors import IllegalStateError
from mqclient.sync import SyncAdmin, SyncProducer, SyncPushConsumer, SyncTransactionProducer


class Listener:
    """Answers what it is given, again and again the last."""

    def __init__(self, *answers: ConsumeStatus) -> None:
        self.answers = answers or (ConsumeStatus.CONSUME_SUCCESS,)
        self.got: list[tuple[bytes, threading.Thread]] = []

    def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.got += [(message.body, threading.current_thread()) for message in messages]
        return self.answers[min(len(self.got), len(self.answers)) - 1]


def consumer_of(broker: SyncEmbeddedBroker, listener: Listener) -> SyncPushConsumer:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer = SyncPushConsumer("closers", broker.url, consume_from_where=first)
    consumer.subscribe("closings")
    consumer.register_message_listener(listener)
    return consumer


def test_thirty_minutes_pass_without_an_event_loop(sync_broker: SyncEmbeddedBroker) -> None:
    listener = Listener()
    with SyncProducer("shop", sync_broker.url) as producer, consumer_of(sync_broker, listener):
        producer.send(Message("closings", b"order 17", delay_level=16))
        sync_broker.clock.advance(30 * 60 - 1)
        sync_broker.idle()
        assert listener.got == []
        sync_broker.clock.advance(1)
        sync_broker.idle()
        ((body, thread),) = listener.got
        assert (body, thread is threading.current_thread()) == (b"order 17", False)


def test_time_passes_until_a_condition_is_true_that_this_thread_looks_at(sync_broker: SyncEmbeddedBroker) -> None:
    database = sqlite3.connect(":memory:")  # of this thread only
    listener = Listener(ConsumeStatus.RECONSUME_LATER, ConsumeStatus.CONSUME_SUCCESS)

    def is_met() -> bool:
        database.execute("SELECT 1")
        return len(listener.got) == 2

    with SyncProducer("shop", sync_broker.url) as producer, consumer_of(sync_broker, listener):
        producer.send(Message("closings", b"order 17"))
        sync_broker.clock.until(is_met)
        assert 10 <= sync_broker.clock.monotonic() < 20  # the first retry comes after 10 s
    database.close()


def test_what_a_condition_raises_is_raised(sync_broker: SyncEmbeddedBroker) -> None:
    def broken() -> bool:
        raise KeyError("order 17")

    with pytest.raises(KeyError, match="order 17"):
        sync_broker.clock.until(broken)


def test_a_transaction_is_in_this_thread_and_its_message_is_there_when_the_queue_is_idle(
    sync_broker: SyncEmbeddedBroker,
) -> None:
    class Transaction:
        def execute_local_transaction(self, *_: object) -> LocalTransactionState:
            assert threading.current_thread() is threading.main_thread()
            return LocalTransactionState.COMMIT_MESSAGE

        def check_local_transaction(self, _: MessageExt) -> LocalTransactionState:
            raise AssertionError("there is no check")

    listener = Listener()
    transactions = SyncTransactionProducer("shop", sync_broker.url, transaction_listener=Transaction())
    with transactions as producer, consumer_of(sync_broker, listener):
        producer.send_message_in_transaction(Message("closings", b"order 17"))
        sync_broker.clock.until(lambda: listener.got)


def test_a_broker_that_lost_power_comes_back_with_what_was_acknowledged(sync_broker: SyncEmbeddedBroker) -> None:
    listener = Listener()
    with SyncProducer("shop", sync_broker.url) as producer:
        producer.send(Message("closings", b"order 17"))
        sync_broker.lose_power()
        sync_broker.restart()
        sync_broker.clock.advance(1)  # the client looks for it again
        with consumer_of(sync_broker, listener):
            sync_broker.clock.until(lambda: listener.got)
    with SyncAdmin(sync_broker.url) as admin:
        assert "closings" in admin.topic_list()


def test_a_broker_that_was_not_started_says_so() -> None:
    broker = SyncEmbeddedBroker("away")
    with pytest.raises(IllegalStateError, match="was not started"):
        broker.clock.advance(1)
    with broker, pytest.raises(ValueError, match="runs already"), SyncEmbeddedBroker("away"):
        pass


async def test_a_thread_with_an_event_loop_is_not_blocked() -> None:
    with pytest.raises(IllegalStateError, match="would block the event loop"):
        SyncEmbeddedBroker("blocking").start()
