"""Half messages, local transactions and their ends (mechanisms T1, T4-T7, T10, P17)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    ConnectionLostError,
    LocalTransactionRolledBackError,
    LocalTransactionState,
    Message,
    MessageExt,
    MQClientError,
    Producer,
    SendStatus,
    TransactionProducer,
    TransactionSendResult,
)
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqclient.transport.methods import END_TRANSACTION
from mqproto.properties import decode_properties
from mqproto.record import FLAG_TRANSACTION_PREPARED, decode_record
from osenv.sim_clock import settle

COMMIT, ROLLBACK, UNKNOW = (
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
)
END = END_TRANSACTION.path
CREATED = Message("orders", b"order-17", tag="created", keys="order-17", properties={"shop": "7"})


def producer_of(cluster: FakeCluster, listener: RecordingTransactionListener, **options: Any) -> TransactionProducer:
    return TransactionProducer("shop", cluster.url, transaction_listener=listener, **options)


def ends(broker: FakeBroker) -> list[tuple[str, str, bool]]:
    return [
        (request.transaction_id, broker_pb.TransactionState.Name(request.state), request.from_check)
        for request in broker.transactions.requests
    ]


async def test_a_committed_transaction_delivers_its_message() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener()
    async with producer_of(cluster, listener) as producer:
        result = await producer.send_message_in_transaction(CREATED, "argument")
        await settle()
        assert isinstance(result, TransactionSendResult)
        assert (result.send_status, result.local_transaction_state) == (SendStatus.SEND_OK, COMMIT)
        assert result.transaction_id == result.message_id
        assert listener.executed == [(CREATED, result.transaction_id, "argument")]
        assert ends(broker) == [(result.transaction_id, "COMMIT_MESSAGE", False)]
        (stored,) = broker.queues["orders", result.message_queue.queue_id]
    assert decode_properties(decode_record(stored).properties) == {
        "UNIQ_KEY": result.transaction_id,
        "PGROUP": "shop",
        "TAGS": "created",
        "KEYS": "order-17",
        "shop": "7",
    }


async def test_only_a_transactional_message_names_a_transaction() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with producer_of(cluster, RecordingTransactionListener()) as producer:
        result = await producer.send_message_in_transaction(CREATED)
        await producer.send(Message("orders", b"plain"))
        await settle()
    messages = [MessageExt(decode_record(record), "broker-a") for queue in broker.queues.values() for record in queue]
    assert {message.body: message.transaction_id for message in messages} == {
        b"order-17": result.transaction_id,
        b"plain": "",
    }


@pytest.mark.mechanism("T4")
async def test_the_half_says_whose_it_is_and_is_stored_before_the_local_transaction_runs() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener(UNKNOW)
    async with producer_of(cluster, listener) as producer:
        broker.silent = True
        send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
        await settle()
        assert listener.executed == []
        broker.answer_frame(broker.frames[0])
        result = await send
    half = broker.transactions.open[result.transaction_id]
    properties = decode_properties(half.properties)
    assert half.sys_flag == FLAG_TRANSACTION_PREPARED
    assert (properties["TRAN_MSG"], properties["PGROUP"], properties["UNIQ_KEY"]) == (
        "true",
        "shop",
        result.transaction_id,
    )
    assert len(listener.executed) == 1


async def test_a_listener_that_returns_rollback_rolls_back() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with producer_of(cluster, RecordingTransactionListener(ROLLBACK)) as producer:
        result = await producer.send_message_in_transaction(CREATED)
    assert result.local_transaction_state is ROLLBACK
    assert ends(broker) == [(result.transaction_id, "ROLLBACK_MESSAGE", False)]
    assert broker.bodies == []


@pytest.mark.parametrize("state", [UNKNOW, None, "COMMIT_MESSAGE"])
async def test_unknow_and_what_is_no_state_send_nothing(state: Any) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with producer_of(cluster, RecordingTransactionListener(state)) as producer:
        result = await producer.send_message_in_transaction(CREATED)
    assert result.local_transaction_state is UNKNOW
    assert ends(broker) == []
    assert list(broker.transactions.open) == [result.transaction_id]


async def test_an_exception_of_the_local_transaction_reaches_the_caller_and_leaves_it_open() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with producer_of(cluster, RecordingTransactionListener(OSError("the commit was lost"))) as producer:
        with pytest.raises(OSError, match="the commit was lost"):
            await producer.send_message_in_transaction(CREATED)
    assert ends(broker) == []
    assert len(broker.transactions.open) == 1


async def test_a_local_transaction_that_was_rolled_back_for_certain_rolls_back_and_gives_its_cause_to_the_caller() -> (
    None
):
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener(LocalTransactionRolledBackError(KeyError("out of stock")))
    async with producer_of(cluster, listener) as producer:
        with pytest.raises(KeyError, match="out of stock"):
            await producer.send_message_in_transaction(CREATED)
    assert [end[1:] for end in ends(broker)] == [("ROLLBACK_MESSAGE", False)]


async def test_a_cancelled_local_transaction_is_left_to_a_check() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingTransactionListener(asyncio.CancelledError())
    async with producer_of(cluster, listener) as producer:
        send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
        await settle()
        assert send.cancelled()
    assert ends(broker) == []


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        (SendStatus.SLAVE_NOT_AVAILABLE, True),
        (SendStatus.FLUSH_DISK_TIMEOUT, False),
        (SendStatus.FLUSH_SLAVE_TIMEOUT, False),
    ],
)
async def test_a_half_that_is_less_safe_than_wished_is_rolled_back_unless_only_the_replica_is_away(
    status: SendStatus, runs: bool
) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [common_pb.ResponseCode.Value(status.value)]
    listener = RecordingTransactionListener()
    async with producer_of(cluster, listener) as producer:
        result = await producer.send_message_in_transaction(CREATED)
    assert result.send_status is status
    assert len(listener.executed) == runs
    assert result.local_transaction_state is (COMMIT if runs else ROLLBACK)
    assert [end[1] for end in ends(broker)] == [result.local_transaction_state.value]


class TestEnd:
    async def test_it_goes_to_the_broker_that_holds_the_half(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b")
        async with producer_of(cluster, RecordingTransactionListener()) as producer:
            results = [await producer.send_message_in_transaction(CREATED) for _ in range(8)]
        for broker in brokers:
            own = {one.transaction_id for one in results if one.message_queue.broker_name == broker.name}
            assert {end[0] for end in ends(broker)} == own
            assert len(own) == 4

    @pytest.mark.mechanism("T7")
    @pytest.mark.parametrize("error", [ConnectionLostError("gone"), None])
    async def test_its_failure_is_logged_and_is_not_the_callers(
        self, error: MQClientError | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        if error:
            broker.unary_errors[END] = [error]
        listener = RecordingTransactionListener()
        async with producer_of(cluster, listener) as producer:
            send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
            if error is None:
                await settle_until_executed(listener)
                broker.transactions.open.clear()  # the broker has forgotten the half
            result = await send
            await settle()
        assert result.local_transaction_state is COMMIT
        assert f"transaction {result.transaction_id}: broker broker-a was not told COMMIT_MESSAGE" in caplog.text

    @pytest.mark.mechanism("T7")
    async def test_it_does_not_delay_the_caller_and_shutdown_waits_for_it(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.unary_gate = asyncio.Event()
        producer = producer_of(cluster, RecordingTransactionListener())
        await producer.start()
        await producer.send_message_in_transaction(CREATED)
        shutdown = asyncio.create_task(producer.shutdown())
        await cluster.clock.advance(1)
        assert not shutdown.done()
        broker.unary_gate.set()
        await shutdown
        assert broker.bodies == [b"order-17"]

    async def test_shutdown_waits_no_longer_than_it_may(self, caplog: pytest.LogCaptureFixture) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.unary_gate = asyncio.Event()
        producer = producer_of(cluster, RecordingTransactionListener())
        await producer.start()
        await producer.send_message_in_transaction(CREATED)
        before = asyncio.all_tasks()
        shutdown = asyncio.create_task(producer.shutdown(timeout_s=2.0))
        await cluster.clock.advance(2.1)
        assert shutdown.done()
        assert "is closed with 1 transactions that brokers will check" in caplog.text
        assert asyncio.all_tasks() <= before
        assert broker.bodies == []

    async def test_a_commit_that_a_check_has_overtaken_is_reported_loudly(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.unary_gate = asyncio.Event()
        async with producer_of(cluster, RecordingTransactionListener()) as producer:
            result = await producer.send_message_in_transaction(CREATED)
            id_ = result.transaction_id
            broker.transactions.end(
                broker_pb.EndTransactionRequest(transaction_id=id_, state=broker_pb.ROLLBACK_MESSAGE)
            )
            broker.unary_gate.set()
            await settle()
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert (
            record.getMessage() == f"transaction {id_} is COMMIT_MESSAGE here and ROLLBACK_MESSAGE at broker broker-a"
        )


async def settle_until_executed(listener: RecordingTransactionListener) -> None:
    for _ in range(100):
        if listener.executed:
            return
        await asyncio.sleep(0)
    raise AssertionError("the local transaction did not run")


class TestStart:
    @pytest.mark.mechanism("T10")
    async def test_sessions_with_all_masters_are_open_before_any_topic_exists(self) -> None:
        cluster = FakeCluster()
        brokers = [cluster.add_broker(name, auto_create=False) for name in ("broker-a", "broker-b")]
        async with producer_of(cluster, RecordingTransactionListener()):
            assert [broker.producer_groups() for broker in brokers] == [["shop"], ["shop"]]
        await settle()
        assert [broker.producer_groups() for broker in brokers] == [[], []]

    async def test_a_master_that_comes_later_is_met_too_and_one_that_left_is_let_go(self) -> None:
        cluster, (first,) = FakeCluster.of("broker-a", topic=None)
        async with producer_of(cluster, RecordingTransactionListener()):
            second = cluster.add_broker("broker-b", auto_create=False)
            await cluster.clock.advance(31)
            assert second.producer_groups() == ["shop"]
            first.down = True
            await cluster.clock.advance(31)
            assert first.producer_groups() == []
            cluster.name_servers["name-server-0"].knows_nothing = True
            await cluster.clock.advance(31)
            assert second.producer_groups() == ["shop"]

    async def test_a_plain_producer_opens_no_session_before_it_sends(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        async with Producer("shop", cluster.url):
            await settle()
            assert broker.producer_groups() == []

    async def test_no_name_server_is_no_obstacle(self, caplog: pytest.LogCaptureFixture) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        cluster.name_servers["name-server-0"].down = True
        async with producer_of(cluster, RecordingTransactionListener()):
            assert "cannot be asked by every broker yet" in caplog.text
            cluster.name_servers["name-server-0"].down = False
            await cluster.clock.advance(31)
            assert broker.producer_groups() == ["shop"]

    async def test_a_start_that_is_cancelled_leaves_nothing_behind(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.silent = True
        before = asyncio.all_tasks()
        start = asyncio.create_task(producer_of(cluster, RecordingTransactionListener()).start())
        await settle()
        start.cancel()
        await cluster.clock.advance(2)
        assert start.cancelled()
        assert asyncio.all_tasks() == before
