"""What users of TransactionProducer may rely on, the same on `memory://` and on real processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from contract_world import Visit

from mqclient import LocalTransactionState, Message, MessageExt
from mqclient.producer.transaction_producer import END_PATIENCE_S

COMMIT, ROLL_BACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
UNKNOW = LocalTransactionState.UNKNOW
CHECK_TIMEOUT_S = 40.0

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Books:
    """The application's side: what it says in its transaction, and what it says when it is asked later."""

    def __init__(self, state: LocalTransactionState, *, when_asked: LocalTransactionState = ROLL_BACK) -> None:
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.executed: list[tuple[str, object]] = []
        self.asked: list[str] = []
        self._state, self._when_asked = state, when_asked

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> LocalTransactionState:
        self.executed.append((transaction_id, arg))
        if self.meanwhile is not None:
            await self.meanwhile()
        return self._state

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.asked.append(message.transaction_id)
        return self._when_asked


async def test_message_of_a_committed_transaction_arrives_and_of_a_rolled_back_one_does_not(visit: Visit) -> None:
    await visit.add_topic(1)
    committing, rejecting, inbox = Books(COMMIT), Books(ROLL_BACK), visit.inbox()
    await visit.consumer(inbox)
    producer = await visit.transaction_producer(rejecting)
    rolled_back = await producer.send_message_in_transaction(Message(visit.topic, b"rolled back"))
    await visit.finish(producer.shutdown())
    producer = await visit.transaction_producer(committing)
    committed = await producer.send_message_in_transaction(Message(visit.topic, b"committed", tag="t"), 42)
    await visit.world.until(lambda: inbox.messages, "the committed message")
    await (await visit.producer()).send(Message(visit.topic, b"after it"))
    await visit.world.until(lambda: b"after it" in inbox.bodies, "the plain message")
    assert inbox.bodies == [b"committed", b"after it"]
    assert committing.executed == [(committed.message_id, 42)]
    assert (committed.local_transaction_state, rolled_back.local_transaction_state) == (COMMIT, ROLL_BACK)
    assert (inbox.messages[0].message_id, inbox.messages[0].tag) == (committed.message_id, "t")


async def test_transaction_whose_end_got_lost_is_committed_when_the_broker_asks(visit: Visit) -> None:
    await visit.add_topic(1)
    books, inbox = Books(COMMIT, when_asked=COMMIT), visit.inbox()
    books.meanwhile = visit.world.kill
    producer = await visit.transaction_producer(books)
    sent = await visit.finish(producer.send_message_in_transaction(Message(visit.topic, b"committed")))
    assert sent.local_transaction_state is COMMIT
    given_up_at = visit.world.clock.monotonic() + END_PATIENCE_S + 0.5
    await visit.world.until(lambda: visit.world.clock.monotonic() >= given_up_at, "the producer to give up")
    await visit.world.start()
    await visit.consumer(inbox)
    await visit.world.until(lambda: inbox.messages, "the message, by a check", CHECK_TIMEOUT_S)
    assert (inbox.bodies, books.executed) == ([b"committed"], [(sent.message_id, None)])
    assert set(books.asked) == {sent.message_id}


@pytest.mark.mechanism("P17")
async def test_any_active_member_of_the_group_answers_for_one_that_has_left(visit: Visit) -> None:
    await visit.add_topic(1)
    leaving, staying, inbox = Books(UNKNOW), Books(ROLL_BACK, when_asked=COMMIT), visit.inbox()
    await visit.consumer(inbox)
    producer = await visit.transaction_producer(leaving)
    await visit.transaction_producer(staying)
    sent = await visit.finish(producer.send_message_in_transaction(Message(visit.topic, b"committed")))
    await visit.finish(producer.shutdown())
    await visit.world.until(lambda: inbox.messages, "the message, by a check", CHECK_TIMEOUT_S)
    assert inbox.bodies == [b"committed"]
    assert (staying.executed, set(staying.asked)) == ([], {sent.transaction_id})


@pytest.mark.mechanism("T9")
async def test_no_member_is_asked_before_the_time_that_the_half_names(visit: Visit) -> None:
    await visit.add_topic(1)
    books, inbox = Books(UNKNOW, when_asked=COMMIT), visit.inbox()
    await visit.consumer(inbox)
    producer = await visit.transaction_producer(books)
    begun_ms = visit.world.clock.wall_ms()
    await visit.finish(producer.send_message_in_transaction(Message(visit.topic, b"patient"), check_immunity_s=2))
    await visit.world.until(lambda: inbox.messages, "the message, by a check", CHECK_TIMEOUT_S)
    assert (inbox.bodies, len(set(books.asked))) == ([b"patient"], 1)
    assert inbox.arrivals_ms[0] >= begun_ms + 2_000  # the broker's own rule is half a second
