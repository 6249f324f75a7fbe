"""What an operator asks of transactions on the wire, and that retention keeps what is undecided."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2
from mq_broker.core.limits import RetentionOptions
from mq_broker.core.transactions import Phase
from mq_broker.embedded.embedded_broker import CallContext
from mq_broker.processor.broker import Broker
from mq_broker.rpc.admin_service import AdminService
from mq_broker.testing import (
    COMMIT,
    ROLLBACK,
    asking_at_once,
    clean,
    end,
    fill,
    half,
    park,
    produce,
    quiet_broker,
    read_all,
    running_broker,
    visible,
)
from mqproto.names import CHECK_MAX_TIMES_TOPIC
from mqproto.record import decode_record
from osenv import SimClock, SimDisk

OPTIONS = asking_at_once(check_times_max=2)
START_MS = 1_700_000_000_000


def service(broker: Broker) -> AdminService:
    return AdminService(broker, cast(Any, None), dict)


async def listed(broker: Broker, **request: Any) -> pb.ListTransactionsResponse:
    return await service(broker).ListTransactions(pb.ListTransactionsRequest(**request), CallContext())


async def shown(broker: Broker, id_: str) -> pb.GetTransactionResponse:
    return await service(broker).GetTransaction(pb.GetTransactionRequest(transaction_id=id_), CallContext())


async def decided(broker: Broker, id_: str, state: int) -> pb.DecideTransactionResponse:
    request = pb.DecideTransactionRequest(transaction_id=id_, state=broker_pb.TransactionState.ValueType(state))
    return await service(broker).DecideTransaction(request, None)


class TestWire:
    async def test_a_list_has_everything_that_is_known_and_the_oldest_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mq_broker.processor.transactions.SLOTS_AT_ONCE", 4)
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock, options=OPTIONS) as broker:
            for number in range(9):
                await produce(broker, half("t", b"x", f"tx-{number}", properties={"KEYS": f"k{number} all"}))
                await clock.advance(1)
            await end(broker, "tx-0", COMMIT)  # its slot is taken by the youngest
            await park(broker, "parked")
            answer = await listed(broker)
            assert [one.transaction_id for one in answer.transactions] == [*(f"tx-{n}" for n in range(1, 9)), "parked"]
            first, last = answer.transactions[0], answer.transactions[-1]
            assert (first.producer_group, first.topic, list(first.keys)) == ("shop", "t", ["k1", "all"])
            assert (first.phase, first.store_timestamp_ms) == (pb.TP_PREPARED, START_MS + 1_000)
            assert (last.phase, last.check_times, last.store_timestamp_ms) == (pb.TP_PARKED, 2, START_MS + 9_000)
            assert last.log_offset == (await read_all(broker, CHECK_MAX_TIMES_TOPIC))[0].log_offset
            answer = await listed(broker, max_transactions=3)
            assert ([one.transaction_id for one in answer.transactions], answer.truncated) == (
                ["tx-1", "tx-2", "tx-3"],
                True,
            )

    async def test_one_transaction_has_its_message_as_it_would_be_delivered(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            await produce(broker, half("t", b"x", "open", queue_id=3))
            await park(broker, "parked", body=b"y")
            for id_, body, phase in (("open", b"x", pb.TP_PREPARED), ("parked", b"y", pb.TP_PARKED)):
                answer = await shown(broker, id_)
                record = decode_record(answer.record)
                assert (record.topic, record.body, answer.transaction.phase) == ("t", body, phase)
                assert answer.code == common_pb2.SUCCESS
            await end(broker, "open", COMMIT)
            answer = await shown(broker, "open")
            assert (answer.transaction.phase, answer.record) == (pb.TP_COMMITTED, b"")

    async def test_a_decision_says_how_the_transaction_has_ended(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            await park(broker, "tx")
            for state in (COMMIT, ROLLBACK):
                answer = await decided(broker, "tx", state)
                assert (answer.code, answer.phase) == (common_pb2.SUCCESS, pb.TP_COMMITTED)
            assert await visible(broker) == [b"x"]

    async def test_what_makes_no_sense_is_rejected_with_a_sentence(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, half("t", b"x", "tx"))
            for answer, sentence in (
                (await listed(broker, max_transactions=2_001), "2001 transactions; allowed are 1 to 2000"),
                (await listed(broker, max_transactions=-1), "-1 transactions; allowed are 1 to 2000"),
                (await listed(broker, phase=pb.TP_COMMITTED), "committed are not listed"),
                (await listed(broker, phase=9), "9 is no phase"),
                (await decided(broker, "tx", 0), "COMMIT_MESSAGE or ROLLBACK_MESSAGE"),
                (await decided(broker, "tx", 7), "7 is no transaction state"),
            ):
                assert answer.code == common_pb2.MESSAGE_ILLEGAL
                assert sentence in answer.remark
            assert broker.transaction_table.phase("tx") is Phase.PREPARED

    async def test_a_transaction_that_is_not_known_is_not_found(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            for answer in (await shown(broker, "tx"), await decided(broker, "tx", COMMIT)):
                assert (answer.code, "'tx'" in answer.remark) == (common_pb2.QUERY_NOT_FOUND, True)

    async def test_a_disk_that_is_full_decides_nothing(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            await park(broker, "tx")
            full = RetentionOptions(normal_share=0, forced_share=0, reject_share=0)
            broker.reconfigure(OPTIONS, full)
            await broker.retention.round()
            answer = await decided(broker, "tx", COMMIT)
            assert (answer.code, broker.transaction_table.phase("tx")) == (common_pb2.SYSTEM_ERROR, Phase.PARKED)
            assert answer.remark
            assert await visible(broker) == []


class TestRetention:
    async def go(self, broker: Broker, disk: SimDisk, clock: SimClock) -> None:
        """Its first files go."""
        await fill(broker, 200, topic="noise")
        begin = broker.store.log_begin
        await clean(broker, clock, disk)
        assert broker.store.log_begin > begin

    @pytest.mark.parametrize("restart", [False, True])
    async def test_what_is_parked_outlives_its_file_and_can_be_decided(self, restart: bool) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            broker.reconfigure(OPTIONS, RetentionOptions())
            for id_ in ("a", "b"):
                await park(broker, id_, body=id_.encode())
            await broker.transactions.decide("b", ROLLBACK)
            before = broker.transaction_table.undecided("a")
            await self.go(broker, disk, clock)
            after = broker.transaction_table.undecided("a")
            assert before is not None
            assert after is not None
            assert after.log_offset >= broker.store.log_begin > before.log_offset
            assert (after.first_store_ms, after.check_times) == (before.first_store_ms, before.check_times)
            assert after.queue_offset == before.queue_offset
            if not restart:
                assert await broker.transactions.decide("a", COMMIT) is Phase.COMMITTED
                assert await visible(broker) == [b"a"]
        async with quiet_broker(disk, clock) as broker:
            assert await broker.transactions.decide("a", COMMIT) is Phase.COMMITTED
            assert await visible(broker) == [b"a"]

    async def test_a_damaged_one_stops_neither_the_cleaner_nor_the_others(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            broker.reconfigure(OPTIONS, RetentionOptions())
            for id_ in ("a", "b", "c"):
                await park(broker, id_, body=id_.encode())
        async with quiet_broker(disk, clock) as broker:
            lost = broker.transaction_table.undecided("b")
            assert lost is not None
            disk.open(broker.store.layout.commit_log / ("0" * 20)).pwrite(b"\xff\xff", lost.log_offset + 90)
            await self.go(broker, disk, clock)
            assert lost.log_offset in dict(broker.store.quarantine)
            for id_ in ("a", "c"):
                assert await broker.transactions.decide(id_, COMMIT) is Phase.COMMITTED
            assert broker.transaction_table.phase("b") is Phase.ROLLED_BACK
            assert await visible(broker) == [b"a", b"c"]
