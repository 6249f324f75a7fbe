"""Transactions that an operator looks at and decides: on a broker in memory, and over several brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from hourglass.mq.v1 import admin_service_pb2 as pb
from mq_broker.core.transactions import TransactionOptions
from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnreachableError,
    IllegalArgumentError,
    LocalTransactionState,
    Message,
    MessageQueue,
    NoRouteError,
    TransactionProducer,
)
from mqclient.admin import TransactionPhase
from mqclient.sync import SyncAdmin
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqclient.transport.methods import DECIDE_TRANSACTION, GET_TRANSACTION
from mqproto.codes import ResponseCode
from osenv import SimClock

START_MS = 1_700_000_000_000
UNKNOW = LocalTransactionState.UNKNOW
PREPARED, PARKED = TransactionPhase.PREPARED, TransactionPhase.PARKED
COMMITTED, ROLLED_BACK = TransactionPhase.COMMITTED, TransactionPhase.ROLLED_BACK
ENDS = {True: COMMITTED, False: ROLLED_BACK}


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    checks = TransactionOptions(check_interval_ms=1_000, immunity_ms=0, check_times_max=2)
    async with EmbeddedBroker("transactions", clock=SimClock(START_MS), transactions=checks) as running:
        yield running


@pytest_asyncio.fixture
async def admin(broker: EmbeddedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.url) as running:
        await running.update_topic("orders", read_queue_count=1, write_queue_count=1)
        yield running


async def send_unknown(broker: EmbeddedBroker, body: bytes, *, keys: tuple[str, ...] = (), group: str = "shop") -> str:
    """A half message of which its producer, which has left, does not know how it ends; returns its id."""
    listener = RecordingTransactionListener(UNKNOW, UNKNOW)
    async with TransactionProducer(group, broker.url, transaction_listener=listener) as producer:
        sent = await producer.send_message_in_transaction(Message("orders", body, tag="new", keys=keys))
    return sent.transaction_id


async def park(broker: EmbeddedBroker, body: bytes) -> str:
    """One that its producer was asked for until the checks ended."""
    listener = RecordingTransactionListener(UNKNOW, UNKNOW)
    async with TransactionProducer("shop", broker.url, transaction_listener=listener) as producer:
        sent = await producer.send_message_in_transaction(Message("orders", body))
        for _ in range(4):
            await broker.clock.advance(1)
    assert len(listener.checked) == 2
    return sent.transaction_id


async def bodies(admin: Admin) -> list[bytes]:
    return [message.body async for message in admin.read_queue(MessageQueue("orders", "broker-a", 0))]


class TestOnABroker:
    async def test_what_is_open_or_parked_is_listed_the_oldest_first(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        assert (await admin.list_transactions()).transactions == ()
        parked = await park(broker, b"one")
        opened = await send_unknown(broker, b"two", keys=("order-17", "x"), group="others")
        found = await admin.list_transactions()
        first, second = found.transactions
        assert not found.truncated
        assert (first.transaction_id, first.phase, first.producer_group) == (parked, PARKED, "shop")
        assert (first.check_times, first.store_timestamp_ms, first.topic) == (2, START_MS, "orders")
        assert (second.transaction_id, second.phase, second.keys) == (opened, PREPARED, ("order-17", "x"))
        assert (second.check_times, second.store_timestamp_ms) == (0, START_MS + 4_000)
        assert first.broker_name == second.broker_name == "broker-a"
        by_phase = {phase: (await admin.list_transactions(phase=phase)).transactions for phase in (PREPARED, PARKED)}
        assert by_phase == {PREPARED: (second,), PARKED: (first,)}
        assert (await admin.list_transactions(producer_group="others")).transactions == (second,)
        assert (await admin.list_transactions(producer_group="unknown")).transactions == ()
        shortened = await admin.list_transactions(max_transactions=1)
        assert (shortened.transactions, shortened.truncated) == ((first,), True)

    async def test_a_transaction_is_shown_with_its_message_as_it_would_be_delivered(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        id_ = await send_unknown(broker, b"body", keys=("k",))
        details = await admin.transaction(id_)
        assert details.info == (await admin.list_transactions()).transactions[0]
        assert details.message is not None
        message = details.message
        assert (message.body, message.topic, message.tag, message.keys) == (b"body", "orders", "new", ("k",))
        assert message.message_id == id_
        assert "TRAN_MSG" not in message.properties

    @pytest.mark.parametrize("is_parked", [True, False])
    @pytest.mark.parametrize("commit", [True, False])
    async def test_a_decision_holds_and_is_the_answer_to_a_second_one(
        self, broker: EmbeddedBroker, admin: Admin, commit: bool, is_parked: bool
    ) -> None:
        id_ = await (park if is_parked else send_unknown)(broker, b"body")
        assert await admin.decide_transaction(id_, commit=commit) is ENDS[commit]
        assert await bodies(admin) == [b"body"] * commit
        await broker.lose_power()
        async with broker:
            for again in (True, False):
                assert await admin.decide_transaction(id_, commit=again) is ENDS[commit]
            assert await bodies(admin) == [b"body"] * commit
            assert (await admin.list_transactions()).transactions == ()
            details = await admin.transaction(id_)
            assert (details.info.phase, details.message, details.remark) == (ENDS[commit], None, "")

    async def test_an_unknown_transaction_is_not_found(self, admin: Admin) -> None:
        for call in (admin.transaction("made up"), admin.decide_transaction("made up", commit=True)):
            with pytest.raises(BrokerRejectedError, match="made up") as raised:
                await call
            assert raised.value.code == ResponseCode.QUERY_NOT_FOUND

    async def test_what_makes_no_sense_is_asked_of_no_broker(self, admin: Admin) -> None:
        with pytest.raises(IllegalArgumentError, match="PREPARED or PARKED"):
            await admin.list_transactions(phase=COMMITTED)
        for count in (0, 2_001):
            with pytest.raises(IllegalArgumentError, match="1 to 2000"):
                await admin.list_transactions(max_transactions=count)
        for call in (admin.transaction(""), admin.decide_transaction("", commit=True)):
            with pytest.raises(IllegalArgumentError, match="empty"):
                await call


def info(id_: str, stored_ms: int, phase: pb.TransactionPhase.ValueType = pb.TP_PARKED) -> pb.TransactionInfo:
    return pb.TransactionInfo(transaction_id=id_, phase=phase, producer_group="shop", store_timestamp_ms=stored_ms)


def two() -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    cluster, (a, b) = FakeCluster.of("a", "b", topic="orders", queue_count=1)
    return cluster, a, b


class TestOverBrokers:
    async def test_a_list_is_of_all_masters_by_age(self) -> None:
        cluster, a, b = two()
        for name, stored_ms, broker in (("2", 2, a), ("4", 4, a), ("1", 1, b), ("3", 3, b)):
            broker.admin.transactions[name] = info(name, stored_ms)
        async with Admin(cluster.url) as admin:
            found = await admin.list_transactions(max_transactions=3)
            assert [(one.transaction_id, one.broker_name) for one in found.transactions] == [
                *(("1", "b"), ("2", "a"), ("3", "b"))
            ]
            assert found.truncated
            assert not (await admin.list_transactions(max_transactions=4)).truncated

    async def test_the_broker_that_knows_the_transaction_is_found_though_another_cannot_be_asked(self) -> None:
        cluster, a, b = two()
        b.admin.transactions["tx"] = info("tx", 1)
        for method in (GET_TRANSACTION, DECIDE_TRANSACTION):
            a.unary_errors[method.path].append(BrokerUnreachableError("a is away"))
        async with Admin(cluster.url) as admin:
            assert (await admin.transaction("tx")).info.broker_name == "b"
            assert await admin.decide_transaction("tx", commit=True) is COMMITTED
            assert b.admin.transactions["tx"].phase == pb.TP_COMMITTED

    async def test_the_answer_is_not_not_found_while_a_broker_cannot_be_asked(self) -> None:
        cluster, a, _ = two()
        a.unary_errors[DECIDE_TRANSACTION.path].append(BrokerUnreachableError("a is away"))
        async with Admin(cluster.url) as admin:
            with pytest.raises(BrokerUnreachableError, match="a is away"):
                await admin.decide_transaction("tx", commit=True)
            with pytest.raises(BrokerRejectedError):
                await admin.decide_transaction("tx", commit=True)

    async def test_without_brokers_there_is_an_error(self) -> None:
        cluster = FakeCluster.of()[0]
        async with Admin(cluster.url) as admin:
            with pytest.raises(NoRouteError):
                await admin.transaction("tx")


def test_the_synchronous_face_has_the_calls() -> None:
    assert {"list_transactions", "transaction", "decide_transaction"} <= set(vars(SyncAdmin))
