"""A producer that comes back under its numbers, against the broker itself (mechanism Y5, ADR 15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    BrokerRejectedError,
    IllegalArgumentError,
    Message,
    MessageQueue,
    MessageRejectedError,
    NoRouteError,
    RetryableError,
)
from mqclient.producer.idempotent_producer import IdempotentProducer, SequencedMessage
from mqproto.properties import RETURNING_PRODUCERS_FROM

PRODUCER = RETURNING_PRODUCERS_FROM + 0xFEED
TIMEOUT_S = 60.0


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[EmbeddedBroker, MessageQueue]]:
    async with EmbeddedBroker("numbered") as broker:
        async with Admin(broker.url) as admin:
            await admin.update_topic("t", read_queue_count=2, write_queue_count=2)
        yield broker, MessageQueue("t", broker.broker.identity.broker_name, 1)


def checked(producer: IdempotentProducer, *bodies: str) -> list[SequencedMessage]:
    found = []
    for body in bodies:
        one = producer.checked(Message("t", body.encode(), tag="x"))
        one.unique_id = f"{body:>032}"
        found.append(one)
    return found


async def send(broker: EmbeddedBroker, queue: MessageQueue, *bodies: str, first: int = 1) -> int:
    """As a process of its own; the log offset."""
    async with IdempotentProducer(broker.url, PRODUCER) as producer:
        messages = checked(producer, *bodies)
        log_offset, _ = await producer.send(queue, messages, first, first_unanswered=0, timeout=TIMEOUT_S)
    return log_offset


async def bodies_in(broker: EmbeddedBroker, queue: MessageQueue) -> list[str]:
    async with Admin(broker.url) as admin:
        return [message.body.decode() for message in (await admin.pull(queue, 0)).messages]


async def test_the_same_numbers_from_another_process_are_stored_once() -> None:
    async with cluster() as (broker, queue):
        places = [await send(broker, queue, "a", "b") for _ in range(3)]
        assert len(set(places)) == 1
        assert await bodies_in(broker, queue) == ["a", "b"]
        await send(broker, queue, "b", "c", first=2)
        assert await bodies_in(broker, queue) == ["a", "b", "c"]


async def test_what_stands_at_a_place_is_told_and_nothing_where_nothing_is() -> None:
    async with cluster() as (broker, queue), IdempotentProducer(broker.url, PRODUCER) as producer:
        place, born_ms = await producer.send(queue, checked(producer, "a"), 7, first_unanswered=7, timeout=TIMEOUT_S)
        stored = await producer.stored_at(queue.broker_name, place)
        assert stored is not None
        assert (stored.unique_id, stored.born_timestamp_ms) == (f"{'a':>032}", born_ms)
        assert await producer.stored_at(queue.broker_name, place + 1_000_000) is None


async def test_a_send_outlives_the_death_of_the_broker_and_is_stored_once() -> None:
    async with cluster() as (broker, queue):
        await send(broker, queue, "a")
        async with IdempotentProducer(broker.url, PRODUCER) as producer:
            await producer.write_queues("t")
            await broker.kill()
            sending = asyncio.create_task(
                producer.send(queue, checked(producer, "a", "b"), 1, first_unanswered=0, timeout=TIMEOUT_S)
            )
            await broker.clock.advance(5)
            assert not sending.done()
            await broker.start()
            await broker.clock.advance(5)
            await sending
        assert await bodies_in(broker, queue) == ["a", "b"]


async def test_when_the_time_is_over_the_last_try_s_error_is_raised() -> None:
    async with cluster() as (broker, queue), IdempotentProducer(broker.url, PRODUCER) as producer:
        await producer.write_queues("t")
        await broker.stop()
        sending = asyncio.create_task(
            producer.send(queue, checked(producer, "a"), 1, first_unanswered=0, timeout=TIMEOUT_S)
        )
        await broker.clock.advance(TIMEOUT_S + 5)
        with pytest.raises(RetryableError):
            await sending
        await broker.start()


async def test_what_is_rejected_for_good_is_raised_at_once() -> None:
    async with cluster() as (broker, queue), IdempotentProducer(broker.url, PRODUCER) as producer:
        with pytest.raises(BrokerRejectedError, match="has no queue 9; it has 0 to 1"):
            await producer.send(
                queue._replace(queue_id=9), checked(producer, "a"), 1, first_unanswered=0, timeout=TIMEOUT_S
            )
        with pytest.raises(IllegalArgumentError, match="the number 0 is not from 1"):
            await producer.send(queue, checked(producer, "a"), 0, first_unanswered=0, timeout=TIMEOUT_S)
        with pytest.raises(MessageRejectedError, match="the body is empty"):
            producer.checked(Message("t", b""))


async def test_queues_are_those_that_may_be_written_and_a_topic_has_to_be_there() -> None:
    async with cluster() as (broker, queue), IdempotentProducer(broker.url, PRODUCER) as producer:
        assert await producer.write_queues("t") == (queue._replace(queue_id=0), queue)
        with pytest.raises(NoRouteError, match="no registered broker has the topic 'nowhere'"):
            await producer.write_queues("nowhere")


@pytest.mark.parametrize("producer_id", [0, RETURNING_PRODUCERS_FROM - 1, 2 * RETURNING_PRODUCERS_FROM])
def test_an_id_that_a_broker_would_forget_after_an_hour_is_rejected(producer_id: int) -> None:
    with pytest.raises(IllegalArgumentError, match="one that comes back is from"):
        IdempotentProducer("mq://127.0.0.1:9876", producer_id)
