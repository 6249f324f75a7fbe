"""Producers over a change of masters: which broker takes the messages, and that each is stored once (mechanism H6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnreachableError,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    NoRouteError,
    Producer,
    ProducerConfig,
    RecallOutcome,
    SendResult,
    SendStatus,
    TransactionProducer,
)
from mqclient.testing import FakeBroker, FakeCluster, FrameFault, RecordingTransactionListener, consumer_of
from mqclient.transport import methods
from osenv.sim_clock import settle

UNCOMPRESSED = ProducerConfig(compress_msg_body_over_howmuch=None)
DEFAULT_TIMEOUT_S = 3.0
WITHOUT_MASTER_S = 2.0


def pair(queue_count: int = 1) -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    """A master with a replica."""
    cluster, (master,) = FakeCluster.of("broker-a", queue_count=queue_count)
    return cluster, master, cluster.add_replica(master)


def start(producer: Producer, *bodies: bytes) -> list[asyncio.Task[SendResult]]:
    return [asyncio.create_task(producer.send(Message("orders", body))) for body in bodies]


def numbers(broker: FakeBroker) -> list[tuple[int, int]]:
    """The producer and the first number of each batch that came."""
    return [(frame.producer_id, batch.base_sequence) for frame in broker.frames for batch in frame.batches]


async def test_a_switch_carries_the_messages_to_the_new_master_at_once() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        cluster.switch(master, replica)
        result = await producer.send(Message("orders", b"after"))
    assert replica.bodies == [b"before", b"after"]
    assert (result.broker_address, result.queue_offset) == (replica.address, 1)
    assert cluster.clock.monotonic() == 0.0


async def test_a_producer_keeps_its_id_and_its_numbers_at_the_new_master() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        cluster.switch(master, replica)
        await producer.send(Message("orders", b"after"))
    producer_id = master.frames[0].producer_id
    assert numbers(replica) == [(producer_id, 2)]
    assert replica.frames[0].producer_epoch > master.frames[0].producer_epoch


async def test_what_the_old_master_stored_without_an_answer_is_recognised_by_the_new_one() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        master.silent = True
        (sending,) = start(producer, b"once")
        await settle()
        master.produce(master.frames[-1])  # stored, copied, and the answer is lost
        cluster.switch(master, replica)
        result = await sending
    assert replica.bodies == [b"before", b"once"]
    assert (result.send_status, result.queue_offset) == (SendStatus.SEND_OK, 1)
    assert numbers(replica) == [numbers(master)[-1]]


async def test_what_the_old_master_took_to_its_grave_is_stored_by_the_new_one() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        replica.copy_from(master)
        master.silent = True
        (sending,) = start(producer, b"once")
        await settle()
        master.down = True
        cluster.promote(replica)
        master.break_streams()
        await sending
    assert replica.bodies == [b"before", b"once"]


@pytest.mark.parametrize("away", ["down", "stepped down"])
async def test_sends_wait_while_there_is_no_master_and_go_on_when_there_is_one(away: str) -> None:
    cluster, master, replica = pair(queue_count=4)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        replica.copy_from(master)
        if away == "down":
            master.down = True
            master.break_streams()
        else:
            master.stepped_down = True
        sends = start(producer, *(b"%d" % number for number in range(64)))
        await cluster.clock.advance(WITHOUT_MASTER_S)
        assert not any(sending.done() for sending in sends)
        if away == "down":
            cluster.promote(replica)
        else:
            cluster.switch(master, replica)
        await cluster.clock.advance(DEFAULT_TIMEOUT_S - WITHOUT_MASTER_S)
        results = await asyncio.gather(*sends)
    assert {result.broker_address for result in results} == {replica.address}
    assert sorted(replica.bodies) == sorted([b"before", *(b"%d" % number for number in range(64))])


async def test_a_producer_that_starts_without_a_master_waits_for_one() -> None:
    cluster, master, replica = pair()
    master.down = True
    async with Producer("shop", cluster.url) as producer:
        (sending,) = start(producer, b"first")
        await cluster.clock.advance(WITHOUT_MASTER_S)
        cluster.promote(replica)
        await cluster.clock.advance(0.5)
        assert (await sending).broker_address == replica.address


async def test_without_a_master_a_send_ends_with_its_time_and_nothing_is_stored() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        master.down = True
        master.break_streams()
        (sending,) = start(producer, b"x")
        await cluster.clock.advance(DEFAULT_TIMEOUT_S)
        assert isinstance(sending.exception(), (BrokerUnreachableError, NoRouteError))
    assert replica.frames == []


async def test_name_servers_are_asked_once_for_all_sends_that_find_no_master() -> None:
    cluster, master, _ = pair(queue_count=4)
    (name_server,) = cluster.name_servers.values()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        asked, listed = len(name_server.asked), name_server.listed
        master.stepped_down = True
        sends = start(producer, *(b"%d" % number for number in range(100)))
        await settle()
        assert (len(name_server.asked) - asked, name_server.listed - listed) == (0, 1)
        for sending in sends:
            sending.cancel()


async def test_a_master_that_has_stepped_down_is_not_asked_in_a_tight_circle() -> None:
    cluster, master, _ = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        frames = len(master.frames)
        master.stepped_down = True
        (sending,) = start(producer, b"x")
        await cluster.clock.advance(DEFAULT_TIMEOUT_S)
        assert isinstance(sending.exception(), BrokerUnreachableError)
    assert 3 <= len(master.frames) - frames <= 10
    assert len(set(numbers(master)[frames:])) == 1  # one batch, with one number, again and again


async def test_an_old_master_finishes_what_it_has_and_gets_nothing_more() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        await producer.send(Message("orders", b"before"))
        master.silent = True
        sends = start(producer, bytes(900_000), bytes(900_001))
        await settle()
        taken, rejected = master.frames[-2:]
        answer = master.produce(taken)
        master.stepped_down = True
        master.answer_frame(rejected)
        await settle()
        sends += start(producer, b"later")
        await settle()
        assert len(master.frames) == 3
        master.produce_stream.answer(answer)
        await settle()
        assert (await sends[0]).broker_address == master.address
        cluster.switch(master, replica)
        await cluster.clock.advance(1.0)
        assert {(await sending).broker_address for sending in sends[1:]} == {replica.address}
    assert [len(body) for body in replica.bodies] == [6, 900_000, 900_001, 5]


async def test_where_another_master_lives_messages_go_there_instead_of_waiting() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    cluster.add_replica(first)
    async with Producer("shop", cluster.url) as producer:
        for _ in range(2):
            await producer.send(Message("orders", b"before"))
        first.stepped_down = True
        results = [await producer.send(Message("orders", b"x")) for _ in range(4)]
        assert {result.message_queue.broker_name for result in results} == {"broker-b"}
    assert second.bodies.count(b"x") == 4
    assert cluster.clock.monotonic() == 0.0


async def test_the_order_of_a_chosen_queue_survives_a_switch() -> None:
    cluster, master, replica = pair(queue_count=1)
    queue = MessageQueue("orders", "broker-a", 0)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"0"), queue=queue)
        master.frame_faults = [FrameFault.BREAK_AFTER_STORE]
        sends = [
            asyncio.create_task(producer.send(Message("orders", b"%d" % number), queue=queue)) for number in range(1, 6)
        ]
        await settle()
        cluster.switch(master, replica)
        await cluster.clock.advance(1.0)
        await asyncio.gather(*sends)
    assert replica.bodies == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(
    ("code", "runs"), [(common_pb.SLAVE_NOT_AVAILABLE, True), (common_pb.FLUSH_SLAVE_TIMEOUT, False)]
)
async def test_a_local_transaction_runs_without_a_replica_and_not_with_one_that_is_late(code: int, runs: bool) -> None:
    cluster, master, _ = pair()
    listener = RecordingTransactionListener()
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        master.next_codes = [code]
        result = await producer.send_message_in_transaction(Message("orders", b"x"))
        await settle()
    expected = LocalTransactionState.COMMIT_MESSAGE if runs else LocalTransactionState.ROLLBACK_MESSAGE
    assert (result.local_transaction_state, master.bodies) == (expected, [b"x"] if runs else [])


async def test_a_transaction_is_ended_at_the_new_master() -> None:
    cluster, master, replica = pair()
    listener = RecordingTransactionListener()
    async with TransactionProducer("shop", cluster.url, transaction_listener=listener) as producer:
        master.unary_gate = asyncio.Event()  # the end does not get through
        result = await producer.send_message_in_transaction(Message("orders", b"x"))
        await settle()
        master.unary_errors[methods.END_TRANSACTION.path] = [BrokerUnreachableError("it is just going")]
        master.down = True
        replica.copy_from(master)
        master.break_streams()
        master.unary_gate.set()
        await cluster.clock.advance(WITHOUT_MASTER_S)
        assert replica.bodies == []
        cluster.promote(replica)
        await cluster.clock.advance(1.0)
    assert result.local_transaction_state is LocalTransactionState.COMMIT_MESSAGE
    assert replica.bodies == [b"x"]


async def test_a_new_master_can_ask_for_transactions_at_once() -> None:
    cluster, master, replica = pair()
    async with TransactionProducer("shop", cluster.url, transaction_listener=RecordingTransactionListener()):
        assert (master.producer_groups(), replica.producer_groups()) == (["shop"], [])
        cluster.switch(master, replica)
        await settle()
        assert replica.producer_groups() == ["shop"]
        assert cluster.clock.monotonic() == 0.0


async def test_what_waits_is_taken_back_at_the_new_master_also_by_one_who_knows_the_old_one() -> None:
    cluster, master, replica = pair()
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x", keys=["17"], delay_ms=60_000))
        cluster.name_servers["name-server-0"].unary = stale_once(cluster, master, replica)  # type: ignore[method-assign]
        result = await producer.recall("orders", key="17")
    assert result.outcome is RecallOutcome.REMOVED
    assert (len(master.waiting.requests), len(replica.waiting.requests)) == (0, 1)


def stale_once(cluster: FakeCluster, master: FakeBroker, replica: FakeBroker) -> Any:
    """A name server that tells the old master once more while the two change roles."""
    ask = cluster.name_servers["name-server-0"].unary
    answers = iter([True])

    async def unary(path: str, request: Any) -> Any:
        answer = await ask(path, request)
        if next(answers, False):
            cluster.switch(master, replica)
        return answer

    return unary


async def test_what_could_not_be_consumed_goes_back_to_the_new_master() -> None:
    cluster, master, replica = pair()
    master.put("orders", 0, b"x")
    replica.copy_from(master)
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def listen(messages: list[MessageExt]) -> ConsumeStatus:
        seen.extend(message.body for message in messages)
        await gate.wait()
        return ConsumeStatus.CONSUME_SUCCESS if messages[0].reconsume_times else ConsumeStatus.RECONSUME_LATER

    async with consumer_of(cluster, listen):
        await settle()
        assert seen == [b"x"]
        cluster.switch(master, replica)
        gate.set()
        await cluster.clock.advance(25.0)
    assert (len(master.send_backs), len(replica.send_backs)) == (0, 1)
    assert seen == [b"x", b"x"]
