"""Half messages that fail, are lost, or are sent again (mechanisms T6, P5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerRejectedError,
    IllegalStateError,
    Message,
    OutcomeUnknownError,
    ProducerConfig,
    RetryableError,
    TransactionNotBegunError,
    TransactionProducer,
)
from mqclient.testing import FakeBroker, FakeCluster, FrameFault, RecordingTransactionListener
from mqproto.properties import decode_properties
from mqproto.record import decode_record
from osenv.sim_clock import settle

CREATED = Message("orders", b"order-17", tag="created", keys="order-17", properties={"shop": "7"})


def producer_of(cluster: FakeCluster, listener: RecordingTransactionListener, **options: Any) -> TransactionProducer:
    return TransactionProducer("shop", cluster.url, transaction_listener=listener, **options)


def ends(broker: FakeBroker) -> list[str]:
    return [request.transaction_id for request in broker.transactions.requests]


class TestHalfSendFails:
    @pytest.mark.mechanism("T6")
    async def test_rejected_for_good_runs_nothing(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        broker.next_codes = [common_pb.MESSAGE_ILLEGAL]
        listener = RecordingTransactionListener()
        async with producer_of(cluster, listener) as producer:
            with pytest.raises(BrokerRejectedError):
                await producer.send_message_in_transaction(CREATED)
        assert (listener.executed, ends(broker)) == ([], [])

    async def test_each_try_has_an_id_of_its_own(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b", "broker-c")
        for broker in brokers:
            broker.next_codes = [common_pb.SYSTEM_BUSY]
        listener = RecordingTransactionListener()
        async with producer_of(
            cluster, listener, producer_config=ProducerConfig(retry_times_when_send_failed=3)
        ) as producer:
            send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
            await cluster.clock.advance(2)
            result = await send
        ids = [
            decode_properties(decode_record(frame.batches[0].records).properties)["UNIQ_KEY"]
            for broker in brokers
            for frame in broker.frames
        ]
        assert len(set(ids)) == len(ids) == 4
        assert [id_ for _, id_, _ in listener.executed] == [result.transaction_id]

    async def test_a_half_whose_answer_was_lost_is_sent_again_and_stays_the_same_half(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        listener = RecordingTransactionListener()
        broker.frame_faults = [FrameFault.BREAK_AFTER_STORE]
        async with producer_of(cluster, listener) as producer:
            result = await producer.send_message_in_transaction(CREATED)
            await settle()
            assert len(broker.frames) == 2
            assert [id_ for _, id_, _ in listener.executed] == [result.transaction_id]
            assert not broker.transactions.open
        assert broker.bodies == [b"order-17"]

    async def test_a_try_of_unknown_outcome_on_another_broker_leaves_an_orphan_that_never_commits(self) -> None:
        cluster, brokers = FakeCluster.of("broker-a", "broker-b")
        listener = RecordingTransactionListener()
        async with producer_of(cluster, listener) as producer:
            for broker in brokers:
                broker.silent = True
            send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
            await settle()
            first, second = sorted(brokers, key=lambda broker: not broker.frames)
            first.produce(first.frames[0])  # stored, and the answer is lost
            first.down, second.silent = True, False
            first.break_streams()
            result = await send
            await settle()
            (orphan,) = first.transactions.open
            assert orphan != result.transaction_id
            assert (first.bodies, second.bodies) == ([], [b"order-17"])
            first.down = first.silent = False
            await cluster.clock.advance(3)
            first.check(orphan)
            await settle()
        assert first.transactions.outcomes[orphan] == broker_pb.ROLLBACK_MESSAGE
        assert first.bodies == []

    async def test_an_unknown_outcome_in_the_end_is_safe_to_try_again_and_says_so(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        listener = RecordingTransactionListener()
        async with producer_of(cluster, listener) as producer:
            broker.silent = True
            send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
            await cluster.clock.advance(3.1)
            with pytest.raises(TransactionNotBegunError) as caught:
                await send
        assert isinstance(caught.value, RetryableError)
        assert isinstance(caught.value.__cause__, OutcomeUnknownError)
        assert listener.executed == []

    async def test_a_cancelled_half_is_an_orphan_that_runs_nothing(self) -> None:
        cluster, (broker,) = FakeCluster.of("broker-a")
        listener = RecordingTransactionListener()
        async with producer_of(cluster, listener) as producer:
            broker.silent = True
            send = asyncio.create_task(producer.send_message_in_transaction(CREATED))
            await settle()
            send.cancel()
            await settle()
            broker.answer_frame(broker.frames[0])
            (orphan,) = broker.transactions.open
            broker.check(orphan)
            await settle()
        assert (listener.executed, broker.bodies) == ([], [])
        assert broker.transactions.outcomes[orphan] == broker_pb.ROLLBACK_MESSAGE

    async def test_a_producer_that_does_not_run_rejects(self) -> None:
        producer = producer_of(FakeCluster(), RecordingTransactionListener())
        with pytest.raises(IllegalStateError, match="CREATE_JUST"):
            await producer.send_message_in_transaction(CREATED)
