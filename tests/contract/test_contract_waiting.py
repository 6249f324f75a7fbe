"""What users may rely on for messages that wait, the same on `memory://` and on real processes (mechanisms D1-D7).

Nothing here depends on how fast the machine is: what an answer says is held against what comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from contract_world import Inbox, Visit

from mqclient import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    RecallOutcome,
    RecallResult,
    SendResult,
    TransactionProducer,
)

HOUR_MS = 3_600_000
REMOVED, RESCHEDULED, ALREADY_DELIVERED, UNKNOWN = RecallOutcome
WAITED = {"DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


async def begin(visit: Visit) -> tuple[Producer, Inbox]:
    """A producer, and what arrives in the only queue of the topic."""
    await visit.add_topic(1)
    inbox = visit.inbox()
    await visit.consumer(inbox)
    return await visit.producer(), inbox


async def send(visit: Visit, producer: Producer, body: bytes, **fields: Any) -> SendResult:
    return await visit.finish(producer.send(Message(visit.topic, body, **fields)))


async def recall(visit: Visit, producer: Producer, **named: Any) -> RecallResult:
    return await visit.finish(producer.recall(visit.topic, **named))


async def reschedule(visit: Visit, producer: Producer, **named: Any) -> RecallResult:
    return await visit.finish(producer.reschedule(visit.topic, **named))


async def arrives(visit: Visit, producer: Producer, inbox: Inbox, body: bytes = b"marker", delay_ms: int = 1) -> None:
    """Return when a message has come that waits for `delay_ms` from now on, and with it all that was due before."""
    await send(visit, producer, body, delay_ms=delay_ms)
    await visit.world.until(lambda: body in inbox.bodies, "the marker")


@pytest.mark.mechanism("D5")
@pytest.mark.parametrize("delay_ms", [1, 700])
async def test_a_message_with_a_delay_comes_after_it_and_as_it_was_sent(visit: Visit, delay_ms: int) -> None:
    producer, inbox = await begin(visit)
    before_ms = visit.world.clock.wall_ms()
    sent = await send(visit, producer, b"later", tag="due", keys="k", properties={"a": "b"}, flag=7, delay_ms=delay_ms)
    await visit.world.until(lambda: inbox.messages, "the message")
    (message,) = inbox.messages
    assert inbox.arrivals_ms[0] >= before_ms + delay_ms
    assert (message.topic, message.body, message.tag, message.keys) == (visit.topic, b"later", "due", ("k",))
    assert (message.message_id, message.flag, message.properties["a"]) == (sent.message_id, 7, "b")
    assert WAITED.isdisjoint(message.properties)


async def test_a_message_for_a_moment_comes_at_it_and_the_earlier_one_first(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    now_ms = visit.world.clock.wall_ms()
    dues_ms = {b"third": now_ms + 1_300, b"first": now_ms + 700, b"second": now_ms + 701}
    for body, due_ms in dues_ms.items():
        await send(visit, producer, body, deliver_at=moment(due_ms))
    await visit.world.until(lambda: len(inbox.messages) == 3, "three messages")
    arrivals_ms = dict(zip(inbox.bodies, inbox.arrivals_ms, strict=True))
    assert all(arrivals_ms[body] >= due_ms for body, due_ms in dues_ms.items())
    assert inbox.bodies == [b"first", b"second", b"third"]
    assert all(WAITED.isdisjoint(message.properties) for message in inbox.messages)


@pytest.mark.parametrize("ago", [timedelta(milliseconds=1), timedelta(days=1), timedelta(days=365 * 60)])
async def test_a_moment_that_has_passed_is_at_once(visit: Visit, ago: timedelta) -> None:
    producer, inbox = await begin(visit)
    await send(visit, producer, b"late already", deliver_at=moment(visit.world.clock.wall_ms()) - ago)
    await visit.world.until(lambda: inbox.messages, "the message")
    assert inbox.bodies == [b"late already"]


async def test_what_was_taken_back_says_so_for_ever_and_never_comes(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    sent = await send(visit, producer, b"taken back", keys=["order-17", "buyer-4"], delay_ms=HOUR_MS)
    by_key = await recall(visit, producer, key="buyer-4")
    again = await recall(visit, producer, message_id=sent.message_id)
    too_late = await reschedule(visit, producer, key="order-17", delay_ms=1)
    await arrives(visit, producer, inbox)
    for result in (by_key, again, too_late):
        (message,) = result.messages
        assert (message.message_id, message.broker_name) == (sent.message_id, sent.message_queue.broker_name)
        assert (message.outcome, result.outcome) == (REMOVED, REMOVED)
    assert inbox.bodies == [b"marker"]


@pytest.mark.mechanism("D7")
@pytest.mark.parametrize("delay", [{"delay_ms": 900}, {"delay_level": 1}], ids=["timer", "level"])
async def test_an_answer_just_before_the_time_is_true(visit: Visit, delay: dict[str, int]) -> None:
    producer, inbox = await begin(visit)
    for number in range(20):
        await send(visit, producer, b"%d" % number, keys=f"order-{number}", **delay)
    results = [await recall(visit, producer, key=f"order-{number}") for number in range(20)]
    await arrives(visit, producer, inbox, delay_ms=1_200)
    removed = {b"%d" % number for number, result in enumerate(results) if result.outcome is REMOVED}
    delivered = {b"%d" % number for number, result in enumerate(results) if result.outcome is ALREADY_DELIVERED}
    assert (len(removed | delivered), removed & set(inbox.bodies)) == (20, set())
    assert sorted(inbox.bodies) == sorted([*delivered, b"marker"])


@pytest.mark.mechanism("D1")
async def test_a_level_16_message_is_taken_back(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    sent = await send(visit, producer, b"in thirty minutes", keys="order-17", delay_level=16)
    result = await recall(visit, producer, key="order-17")
    assert [(one.message_id, one.outcome) for one in result.messages] == [(sent.message_id, REMOVED)]
    assert (await reschedule(visit, producer, key="order-17", delay_ms=1)).outcome is REMOVED
    await arrives(visit, producer, inbox)
    assert inbox.bodies == [b"marker"]


async def test_a_message_that_has_come_was_delivered(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    sent = await send(visit, producer, b"soon", keys="order-17", delay_ms=1)
    await visit.world.until(lambda: inbox.messages, "the message")
    for result in (
        await recall(visit, producer, key="order-17"),
        await reschedule(visit, producer, message_id=sent.message_id, delay_ms=HOUR_MS),
    ):
        (message,) = result.messages
        assert (message.message_id, message.outcome, message.due_timestamp_ms) == (
            sent.message_id,
            ALREADY_DELIVERED,
            0,
        )


async def test_what_never_had_to_wait_is_not_known(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    await send(visit, producer, b"at once", keys="order-17")
    await visit.world.until(lambda: inbox.messages, "the message")
    for named in ({"key": "order-17"}, {"key": "order-18"}, {"message_id": "0" * 32}):
        result = await recall(visit, producer, **named)
        assert (result.outcome, result.messages) == (UNKNOWN, ())
        assert result.broker_names == (inbox.messages[0].broker_name,)


async def test_messages_of_other_topics_stay(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    await send(visit, producer, b"kept", keys="order-17", delay_ms=600)
    other = f"{visit.topic}-other"
    await visit.finish(producer.send(Message(other, b"other", keys="order-17", delay_ms=HOUR_MS)))
    assert (await visit.finish(producer.recall(other, key="order-17"))).outcome is REMOVED
    await visit.world.until(lambda: inbox.messages, "the message")
    assert inbox.bodies == [b"kept"]


@pytest.mark.parametrize("first", [{"delay_ms": HOUR_MS}, {"delay_level": 16}], ids=["timer", "level"])
async def test_a_message_comes_earlier_once(visit: Visit, first: dict[str, int]) -> None:
    producer, inbox = await begin(visit)
    sent = await send(visit, producer, b"earlier", keys="order-17", **first)
    result = await reschedule(visit, producer, key="order-17", delay_ms=300)
    (message,) = result.messages
    assert (message.message_id, message.outcome) == (sent.message_id, RESCHEDULED)
    await visit.world.until(lambda: inbox.messages, "the message")
    assert inbox.arrivals_ms[0] >= message.due_timestamp_ms
    assert (inbox.messages[0].message_id, inbox.messages[0].keys) == (sent.message_id, ("order-17",))
    assert (await recall(visit, producer, key="order-17")).outcome is ALREADY_DELIVERED
    await arrives(visit, producer, inbox)
    assert inbox.bodies == [b"earlier", b"marker"]


async def test_a_message_comes_later_once(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    await send(visit, producer, b"later", keys="order-17", delay_ms=900)
    due_ms = visit.world.clock.wall_ms() + 1_500
    result = await reschedule(visit, producer, key="order-17", deliver_at=moment(due_ms))
    (message,) = result.messages
    await visit.world.until(lambda: inbox.messages, "the message")
    if message.outcome is RESCHEDULED:
        assert inbox.arrivals_ms[0] >= message.due_timestamp_ms >= due_ms
    else:  # it took the whole 900 ms to ask
        assert message.outcome is ALREADY_DELIVERED
    await arrives(visit, producer, inbox)
    assert inbox.bodies == [b"later", b"marker"]


async def test_a_new_time_can_be_changed_and_taken_back_again(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    sent = await send(visit, producer, b"taken back", keys="order-17", delay_level=16)
    for hours in (3, 2, 5):
        result = await reschedule(visit, producer, key="order-17", delay_ms=hours * HOUR_MS)
        (message,) = result.messages
        assert (message.message_id, message.outcome) == (sent.message_id, RESCHEDULED)
        assert message.due_timestamp_ms > visit.world.clock.wall_ms() + (hours - 1) * HOUR_MS
    assert (await recall(visit, producer, key="order-17")).outcome is REMOVED
    assert (await recall(visit, producer, key="order-17")).outcome is REMOVED
    await arrives(visit, producer, inbox)
    assert inbox.bodies == [b"marker"]


async def test_every_message_with_the_key_has_an_answer_of_its_own(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    sent = [await send(visit, producer, b"delivered", keys="order-17", delay_ms=1)]
    await visit.world.until(lambda: inbox.messages, "the first one")
    for delay in ({"delay_ms": HOUR_MS}, {"delay_level": 16}, {"delay_ms": HOUR_MS}):
        sent.append(await send(visit, producer, b"waits", keys="order-17", **delay))
    result = await recall(visit, producer, key="order-17")
    told = {message.message_id: message.outcome for message in result.messages}
    assert told == {
        one.message_id: outcome for one, outcome in zip(sent, [ALREADY_DELIVERED] + [REMOVED] * 3, strict=True)
    }
    assert result.outcome is ALREADY_DELIVERED
    await arrives(visit, producer, inbox)
    assert inbox.bodies == [b"delivered", b"marker"]


class Books:
    """A local transaction during which something else happens, and that commits."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.producer: TransactionProducer
        self.committed_at_ms = 0
        self.meanwhile: RecallResult
        self._now_ms = now_ms

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        self.meanwhile = await self.producer.recall(message.topic, message_id=transaction_id)
        self.committed_at_ms = self._now_ms()
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@pytest.mark.mechanism("T1")
@pytest.mark.parametrize("delay", [{"delay_ms": 1_000}, {"delay_level": 1}], ids=["timer", "level"])
async def test_a_transactional_message_waits_from_its_commit_on(visit: Visit, delay: dict[str, int]) -> None:
    _, inbox = await begin(visit)
    books = Books(visit.world.clock.wall_ms)
    books.producer = await visit.transaction_producer(books)
    message = Message(visit.topic, b"later", keys="order-17", **delay)  # type: ignore[arg-type]
    sent = await visit.finish(books.producer.send_message_in_transaction(message))
    assert (books.meanwhile.outcome, books.meanwhile.messages) == (UNKNOWN, ())
    await visit.world.until(lambda: inbox.messages, "the message")
    assert inbox.arrivals_ms[0] >= books.committed_at_ms + 1_000
    (came,) = inbox.messages
    assert (came.body, came.transaction_id) == (b"later", sent.transaction_id)
    assert WAITED.isdisjoint(came.properties)


async def test_a_committed_message_that_waits_is_taken_back(visit: Visit) -> None:
    producer, inbox = await begin(visit)
    books = Books(visit.world.clock.wall_ms)
    books.producer = await visit.transaction_producer(books)
    message = Message(visit.topic, b"never", keys="order-17", delay_ms=HOUR_MS)
    sent = await visit.finish(books.producer.send_message_in_transaction(message))
    async with asyncio.timeout(5):
        while (result := await recall(visit, producer, key="order-17")).outcome is UNKNOWN:
            pass  # the broker has not heard of the commit yet
    assert [(one.message_id, one.outcome) for one in result.messages] == [(sent.message_id, REMOVED)]
    await arrives(visit, producer, inbox)
    assert inbox.bodies == [b"marker"]
