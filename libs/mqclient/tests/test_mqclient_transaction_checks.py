"""A broker asks what has become of a half message (mechanisms T12, T13, L11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient import (
    CheckUnansweredError,
    ClientConfig,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    TransactionProducer,
)
from mqclient.producer.transaction_producer import CHECKS_AT_ONCE, CHECKS_WAITING_MAX, TransactionChecks
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqproto.properties import encode_properties
from mqproto.record import encode_record
from osenv import SimClock
from osenv.sim_clock import settle

COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)


async def checked(check_state: Any) -> tuple[FakeBroker, RecordingTransactionListener, broker_pb.EndTransactionRequest]:
    """What a check of a half that was left open came to."""
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener(UNKNOW, check_state)
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        result = await producer.send_message_in_transaction(Message("orders", b"x", tag="created"))
        broker.check(result.transaction_id)
        await settle()
    (request,) = broker.transactions.requests
    assert (request.producer_group, request.transaction_id, request.from_check) == ("shop", result.transaction_id, True)
    return broker, listener, request


@pytest.mark.parametrize(
    ("state", "sent", "bodies"),
    [
        (COMMIT, broker_pb.COMMIT_MESSAGE, [b"x"]),
        (ROLLBACK, broker_pb.ROLLBACK_MESSAGE, []),
        (UNKNOW, broker_pb.UNKNOW, []),
    ],
)
async def test_the_broker_hears_what_the_listener_says(
    state: LocalTransactionState, sent: int, bodies: list[bytes]
) -> None:
    broker, listener, request = await checked(state)
    assert request.state == sent
    assert broker.bodies == bodies
    (message,) = listener.checked
    assert (message.topic, message.body, message.tag, message.broker_name) == ("orders", b"x", "created", "broker-a")
    assert message.transaction_id == message.message_id == request.transaction_id


@pytest.mark.parametrize("answer", [OSError("no database"), None])
async def test_a_listener_that_cannot_tell_does_not_know(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, _, request = await checked(answer)
    assert request.state == broker_pb.UNKNOW
    assert ("no database" if answer else "the listener returned None") in caplog.text


async def test_a_check_that_cannot_reach_its_database_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener(UNKNOW, CheckUnansweredError("the database is away"))
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        result = await producer.send_message_in_transaction(Message("orders", b"x"))
        for _ in range(20):  # more often than the 15 answers that park a message
            broker.check(result.transaction_id)
            await settle()
        assert broker.transactions.requests == []
        listener.check_state = COMMIT
        broker.check(result.transaction_id)
        await settle()
    assert broker.bodies == [b"x"]
    assert "no answer to the check of transaction" in caplog.text


@pytest.mark.mechanism("P17", "T12")
async def test_any_member_of_the_group_can_be_asked() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listeners = [RecordingTransactionListener(UNKNOW, COMMIT) for _ in range(2)]
    first, second = (
        TransactionProducer(
            "shop", cluster.url, transaction_listener=listener, client_config=ClientConfig(instance_name=f"p{number}")
        )
        for number, listener in enumerate(listeners)
    )
    async with second:
        async with first:
            result = await first.send_message_in_transaction(Message("orders", b"x"))
        await settle()
        broker.check(result.transaction_id)
        await settle()
    assert [len(listener.checked) for listener in listeners] == [0, 1]
    assert broker.bodies == [b"x"]


async def test_a_member_without_a_listener_says_so_and_answers_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    producer = TransactionProducer("shop", cluster.url, transaction_listener=RecordingTransactionListener(UNKNOW))
    async with producer:
        result = await producer.send_message_in_transaction(Message("orders", b"x"))
    async with Producer("shop", cluster.url) as plain:
        await plain.send(Message("orders", b"y"))
        await settle()
        broker.check(result.transaction_id)
        await settle()
    assert "has no transaction listener" in caplog.text
    assert broker.transactions.requests == []


async def test_a_check_for_a_group_that_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    keeper = TransactionProducer("keeper", cluster.url, transaction_listener=RecordingTransactionListener())
    producer = TransactionProducer("shop", cluster.url, transaction_listener=RecordingTransactionListener(UNKNOW))
    async with keeper:
        async with producer:
            result = await producer.send_message_in_transaction(Message("orders", b"x"))
            await settle()
            check = broker.transactions.check(result.transaction_id)
            (session,) = [stream for stream in broker.streams if stream.path.endswith("Session")]
        session.answer(broker_pb.SessionResponse(check_transaction=check))
        await settle()
    assert "its producer group has left this client" in caplog.text


class GatedListener(RecordingTransactionListener):
    """Holds its checks until `gate` opens; counts how many are held."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.running = 0

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self.running += 1
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return await super().check_local_transaction(message)


class Checks:
    """A TransactionChecks whose answers are kept."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.listener = GatedListener()
        self.answered: list[str] = []
        self.checks = TransactionChecks(self.clock, self.listener, self._answer)

    async def _answer(self, message: MessageExt, state: LocalTransactionState) -> None:
        assert state is ROLLBACK
        self.answered.append(message.transaction_id)

    def submit(self, id_: str, record: bytes | None = None) -> None:
        properties = encode_properties({"UNIQ_KEY": id_, "PGROUP": "shop"})
        whole = encode_record(
            topic=b"orders", body=b"x", properties=properties, queue_id=0, born_timestamp_ms=0, born_ip=0
        )
        check = broker_pb.CheckTransaction(
            producer_group="shop", transaction_id=id_, record=whole if record is None else record
        )
        self.checks.submit("broker-a", check)


@pytest.mark.mechanism("T13")
async def test_five_run_2000_wait_and_the_rest_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = Checks()
    everything = CHECKS_AT_ONCE + CHECKS_WAITING_MAX
    for number in range(CHECKS_AT_ONCE):
        world.submit(f"{number}")
    await settle()
    for number in range(CHECKS_AT_ONCE, everything + 3):
        world.submit(f"{number}")
    await settle()
    assert world.listener.running == CHECKS_AT_ONCE
    assert caplog.text.count("is dropped, it will come again: 2,000 others are waiting") == 3
    world.listener.gate.set()
    while len(world.answered) < everything:  # noqa: ASYNC110 - a list sets no event
        await asyncio.sleep(0)
    assert set(world.answered) == {f"{number}" for number in range(everything)}
    await world.checks.close(0.0)


async def test_a_transaction_that_is_asked_for_again_waits_once() -> None:
    world = Checks()
    for number in range(CHECKS_AT_ONCE):
        world.submit(f"{number}")
    await settle()
    for _ in range(3):
        world.submit("again")
    world.listener.gate.set()
    await settle()
    assert world.answered.count("again") == 1
    await world.checks.close(0.0)


async def test_a_broken_check_is_logged_and_the_next_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    world = Checks()
    world.listener.gate.set()
    world.submit("broken", b"\x00" * 200)
    stranger = encode_record(topic=b"orders", body=b"x", properties=b"", queue_id=0, born_timestamp_ms=0, born_ip=0)
    world.submit("of another", stranger)
    world.submit("good")
    await settle()
    assert world.answered == ["good"]
    assert "transaction broken with a broken record" in caplog.text
    assert "transaction of another with the record of" in caplog.text
    await world.checks.close(0.0)


async def test_leaving_finishes_what_runs_and_begins_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    world = Checks()
    for number in range(CHECKS_AT_ONCE + 1):
        world.submit(f"{number}")
    await settle()
    closing = asyncio.create_task(world.checks.close(world.clock.monotonic() + 5.0))
    await settle()
    world.submit("late")
    world.listener.gate.set()
    await closing
    assert sorted(world.answered) == [f"{number}" for number in range(CHECKS_AT_ONCE)]
    assert "the check of transaction late is dropped" in caplog.text


async def test_leaving_waits_no_longer_than_it_may(caplog: pytest.LogCaptureFixture) -> None:
    world = Checks()
    world.submit("slow")
    await settle()
    closing = asyncio.create_task(world.checks.close(world.clock.monotonic() + 5.0))
    await world.clock.advance(5.1)
    assert closing.done()
    assert (world.answered, world.listener.running) == ([], 0)
    assert "1 transaction checks did not finish in time" in caplog.text
