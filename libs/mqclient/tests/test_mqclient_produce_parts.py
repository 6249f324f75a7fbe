"""The parts of a produce stream, each by itself: numbers, frames, the table of a break, the pauses between streams."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnavailableError,
    BrokerUnreachableError,
    ConnectionLostError,
    MessageQueue,
    MQClientError,
    RequestTimeoutError,
)
from mqclient.connection.frames import (
    FRAME_BATCHES_MAX,
    FRAME_MESSAGES_MIN,
    SEQUENCE_PROPERTY_BYTES_MAX,
    Batch,
    PendingSend,
    SendOptions,
    SendQueue,
    SequenceAllocator,
    failure_of,
)
from mqclient.connection.produce_stream import FRUITLESS_STREAMS_MAX, ReconnectBackoff
from mqproto.grpc_options import FRAME_BYTES_TARGET
from mqproto.properties import PRODUCER_SEQUENCE
from osenv import SeededRng

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(3)]
PLAIN, MOVABLE, IMPATIENT = (
    SendOptions(),
    SendOptions(failover=True),
    SendOptions(failover=True, failover_on_timeout=True),
)
ORDERED, ALONE = SendOptions(ordered=True), SendOptions(own_batch=True)
LOST = ConnectionLostError("the connection broke")
NO_MASTER = BrokerUnavailableError(common_pb.NOT_LEADER_FOR_QUEUE, "it is a replica", "broker-a")


def pending(sequence: int, terms: SendOptions = PLAIN, *, queue: int = 0, size: int = 10) -> PendingSend:
    one = PendingSend(QUEUES[queue], sequence, bytes(size), 1.0, terms)
    one.future = asyncio.get_running_loop().create_future()
    return one


def numbers(batches: list[Batch]) -> list[tuple[int, int, int]]:
    """Queue, first number and end of each batch."""
    return [(batch.queue.queue_id, batch.base_sequence, batch.end) for batch in batches]


class TestNumbering:
    def test_each_queue_counts_from_one_whatever_its_broker_is_called(self) -> None:
        sequences = SequenceAllocator(SeededRng(1))
        renamed = QUEUES[0]._replace(broker_name="broker-b")
        assert [sequences.next(queue) for queue in (QUEUES[0], QUEUES[0], QUEUES[1], renamed)] == [1, 2, 1, 3]

    def test_the_property_names_producer_and_epoch(self) -> None:
        sequences = SequenceAllocator(SeededRng(1))
        assert 0 < sequences.producer_id < 1 << 63
        assert sequences.property_start == f"{PRODUCER_SEQUENCE}\x01{sequences.producer_id:016x}:1:"
        sequences.next_epoch()
        assert sequences.property_start.endswith(":2:")
        longest = f"{PRODUCER_SEQUENCE}\x01{2**63 - 1:016x}:{10**9 - 1}:{10**18 - 1}\x02"
        assert len(longest) == SEQUENCE_PROPERTY_BYTES_MAX


# A batch: its terms, whether it may have reached the broker, whether that is gone, and the error of its callers.
@pytest.mark.parametrize(
    ("terms", "left", "gone", "failure"),
    [
        (PLAIN, False, False, None),
        (PLAIN, False, True, None),
        (PLAIN, True, False, None),
        (PLAIN, True, True, None),
        (ORDERED, True, True, None),
        (MOVABLE, False, False, None),
        (MOVABLE, False, True, BrokerUnreachableError),
        (MOVABLE, True, False, None),
        (MOVABLE, True, True, ConnectionLostError),
    ],
)
async def test_what_a_break_means_for_a_batch(
    terms: SendOptions, left: bool, gone: bool, failure: type[MQClientError] | None
) -> None:
    error = failure_of(Batch(pending(1, terms)), left=left, gone=gone, error=LOST)
    assert type(error) is (failure or type(None))


# The same of a broker that says that it is no master, and of which no successor is known.
@pytest.mark.parametrize(
    ("terms", "left", "failure"),
    [
        (PLAIN, False, None),
        (PLAIN, True, None),
        (ORDERED, True, None),
        (MOVABLE, False, BrokerUnavailableError),
        (MOVABLE, True, None),
    ],
)
async def test_what_a_broker_that_is_no_master_means_for_a_batch(
    terms: SendOptions, left: bool, failure: type[MQClientError] | None
) -> None:
    error = failure_of(Batch(pending(1, terms)), left=left, gone=True, error=NO_MASTER)
    assert type(error) is (failure or type(None))


@pytest.mark.parametrize("gone", [True, False])
async def test_a_batch_of_which_a_message_went_elsewhere_is_not_sent_again(gone: bool) -> None:
    batch = Batch(pending(1, IMPATIENT))
    batch.messages.append(pending(2, IMPATIENT))
    moved_before = batch.moved
    batch.messages[0].fail(RequestTimeoutError("its sender tries another broker now"))
    assert (moved_before, batch.moved, batch.given_up) == (False, True, False)
    assert isinstance(failure_of(batch, left=True, gone=gone, error=LOST), ConnectionLostError)


async def test_a_cancelled_message_has_not_gone_elsewhere_nor_has_one_whose_time_is_over() -> None:
    cancelled, late = Batch(pending(1, IMPATIENT)), Batch(pending(1, MOVABLE))
    cancelled.messages[0].future.cancel()
    late.messages[0].fail(RequestTimeoutError("over"))
    assert (cancelled.moved, late.moved) == (False, False)
    assert (cancelled.given_up, late.given_up) == (True, True)


class TestReopening:
    def test_a_broker_that_is_no_master_is_gone_and_asked_with_longer_and_longer_pauses_until_there_is_another(
        self,
    ) -> None:
        reopening = ReconnectBackoff(0.2, 2.0)
        seen = []
        for _ in range(3):
            reopening.opened()
            reopening.broke(NO_MASTER)
            seen.append((reopening.broker_is_gone, reopening.pause_s(100.0)))
        reopening.moved()
        seen.append((reopening.broker_is_gone, reopening.pause_s(100.0)))
        assert seen == [(True, 0.2), (True, 0.4), (True, 0.8), (False, 0.0)]

    def test_a_first_break_is_no_reason_to_wait_and_further_ones_are(self) -> None:
        reopening = ReconnectBackoff(0.2, 2.0)
        pauses = []
        for _ in range(4):
            reopening.opened()
            reopening.broke(LOST)
            pauses.append(reopening.pause_s(100.0))
        assert pauses == [0.0, 0.2, 0.2, 0.2]

    def test_the_pauses_double_while_nothing_listens_and_no_message_is_left_to_its_deadline(self) -> None:
        reopening = ReconnectBackoff(0.2, 2.0)
        pauses = []
        for left_s in (100.0, 100.0, 100.0, 100.0, 100.0, 3.0, 1.0, 0.1):
            reopening.opened()
            reopening.broke(BrokerUnreachableError("nothing listens"))
            pauses.append(reopening.pause_s(left_s))
        assert pauses == [0.2, 0.4, 0.8, 1.6, 2.0, 1.5, 0.5, 0.2]

    def test_a_broker_is_gone_when_nothing_listens_or_when_streams_break_and_break(self) -> None:
        reopening = ReconnectBackoff(0.2, 2.0)
        for number in range(1, FRUITLESS_STREAMS_MAX + 1):
            reopening.opened()
            reopening.broke(LOST)
            assert reopening.broker_is_gone is (number == FRUITLESS_STREAMS_MAX)
        reopening.answered()
        assert not reopening.broker_is_gone
        assert reopening.last_error is None
        reopening.opened()
        reopening.broke(BrokerUnreachableError("nothing listens"))
        assert reopening.broker_is_gone


class TestWaiting:
    async def test_a_frame_takes_a_share_and_batches_by_queue(self) -> None:
        waiting = SendQueue()
        for number in range(100):
            waiting.append(pending(number // 2 + 1, queue=number % 2))
        assert numbers(waiting.take(0)) == [(0, 1, 26), (1, 1, 26)]
        assert waiting.count == 50
        assert numbers(waiting.take(0)) == [(0, 26, 42), (1, 26, 42)]
        assert numbers(waiting.take(0)) == [(0, 42, 51), (1, 42, 51)]
        assert (waiting.count, waiting.may_send) == (0, False)
        assert FRAME_MESSAGES_MIN == 32

    async def test_a_frame_takes_so_many_bytes_or_one_message(self) -> None:
        waiting = SendQueue()
        for number, size in enumerate((400_000, 400_000, 400_000, 3_000_000, 10)):
            waiting.append(pending(number + 1, size=size))
        taken = [numbers(waiting.take(0)) for _ in range(4)]
        assert taken == [[(0, 1, 3)], [(0, 3, 4)], [(0, 4, 5)], [(0, 5, 6)]]
        assert FRAME_BYTES_TARGET == 1024 * 1024

    async def test_a_frame_takes_so_many_batches(self) -> None:
        waiting = SendQueue()
        for number in range(FRAME_BATCHES_MAX + 1):
            waiting.append(pending(number + 1, ALONE))
        assert len(waiting.take(FRAME_BATCHES_MAX)) == FRAME_BATCHES_MAX
        assert len(waiting.take(0)) == 1

    async def test_terms_do_not_mix(self) -> None:
        waiting = SendQueue()
        for number, terms in enumerate((PLAIN, PLAIN, MOVABLE, MOVABLE, ALONE, ALONE, PLAIN)):
            waiting.append(pending(number + 1, terms))
        assert numbers(waiting.take(0)) == [(0, 1, 3), (0, 3, 5), (0, 5, 6), (0, 6, 7), (0, 7, 8)]

    async def test_an_ordered_batch_closes_its_lane_until_it_is_answered(self) -> None:
        waiting = SendQueue()
        for number, terms in enumerate((ORDERED, ORDERED, PLAIN, ORDERED)):
            waiting.append(pending(number + 1, terms))
        waiting.append(pending(1, ORDERED, queue=1))
        assert numbers(waiting.take(0)) == [(0, 1, 3), (1, 1, 2)]
        assert (waiting.count, waiting.may_send) == (2, False)
        assert [one.sequence for one in waiting.followers(QUEUES[0])] == [4]
        waiting.answered(QUEUES[0])
        assert numbers(waiting.take(0)) == [(0, 3, 4), (0, 4, 5)]
        waiting.answered(QUEUES[0])
        waiting.answered(QUEUES[1])
        waiting.append(pending(5))
        assert numbers(waiting.take(0)) == [(0, 5, 6)]

    async def test_what_was_given_up_is_passed_over(self) -> None:
        waiting = SendQueue()
        sends = [pending(number + 1, ORDERED if number < 3 else PLAIN, queue=number // 3) for number in range(6)]
        for one in sends:
            waiting.append(one)
        for one in (sends[0], sends[4]):
            one.future.cancel()
        assert numbers(waiting.take(0)) == [(0, 2, 4), (1, 4, 5), (1, 6, 7)]
        assert waiting.count == 0
        waiting.append(pending(4, ORDERED))
        next(iter(waiting)).future.cancel()
        waiting.drop_given_up()
        assert list(waiting) == []
