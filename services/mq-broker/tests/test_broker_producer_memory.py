"""How much is remembered of producers' numbers: which are forgotten when there is no room, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from mq_broker.core import producer_sequences, producer_table
from mq_broker.core.limits import PRODUCER_LIVE_MS, RETURNING_PRODUCERS_BYTES_MAX
from mq_broker.core.producer_sequences import BatchSequence, ProducerSequences
from mq_broker.core.producer_table import KINDS, Kind, Numbers, ProducersFullError, ProducerTable, Stretch
from mq_broker.embedded import EmbeddedBroker
from mq_broker.store.state_files import encode_document
from mq_broker.testing import numbered, produce, running_broker
from mqclient import Message, Producer
from mqproto.codes import ResponseCode
from mqproto.properties import RETURNING_PRODUCERS_FROM, WRITE_PRODUCERS_FROM
from osenv import SimClock, SimDisk

SINK = RETURNING_PRODUCERS_FROM + 1_000
WRITES = WRITE_PRODUCERS_FROM
PAIRS = 8  # that have room in a small table
SIZE = producer_table.PRODUCER_BYTES + producer_table.PAIR_BYTES + 2 * len("t") + 40


def store(
    sequences: ProducerSequences, producer: int, now_ms: int, *, sequence: int = 1, queue_id: int = 0, topic: str = "t"
) -> None:
    batch_sequence, queue = BatchSequence(producer, 1, sequence, 1), (topic, queue_id)
    sequences.make_room(batch_sequence, queue, now_ms)
    sequences.stored(batch_sequence, queue, Stretch(sequence, 1, *queue, 3 * sequence), now_ms)


def known(sequences: ProducerSequences, producers: Iterable[int]) -> list[int]:
    return [one for one in producers if sequences.stored_before(BatchSequence(one, 1, 1, 1), "t", 0, 1)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ProducerSequences:
    """Every kind has room for PAIRS producers."""
    kinds = tuple(replace(kind, bytes_max=PAIRS * SIZE) for kind in KINDS)
    monkeypatch.setattr(producer_sequences, "KINDS", kinds)
    return ProducerSequences()


@pytest.mark.parametrize("fresh", [SINK, WRITES], ids=["named writes", "other writes"])
def test_producers_of_a_sink_evict_no_live_ones_and_no_ordinary_ones(fresh: int) -> None:
    sequences, rejected = ProducerSequences(), 0
    live, silent = range(1, 81), range(81, 161)
    for producer in silent:
        store(sequences, producer, 0)
    for number in range(70_000):  # 60 s
        now_ms = PRODUCER_LIVE_MS + number * 60_000 // 70_000
        if number % 10_000 == 0:
            for producer in live:
                store(sequences, producer, now_ms)
        try:
            store(sequences, fresh + number, now_ms)
        except ProducersFullError:
            rejected += 1
    assert known(sequences, live) == list(live)
    assert known(sequences, silent) == list(silent)
    assert rejected > 0, "live ones alone exceed the bound"
    assert len(encode_document(sequences.to_json(), 0)) < 1.1 * RETURNING_PRODUCERS_BYTES_MAX


def test_of_returning_producers_the_one_that_was_silent_longest_goes_first(small: ProducerSequences) -> None:
    sinks = range(SINK, SINK + PAIRS + 3)
    for number, producer in enumerate(sinks[:PAIRS]):
        store(small, producer, number)
    store(small, SINK, 500)
    for producer in sinks[PAIRS:]:
        store(small, producer, 500 + PRODUCER_LIVE_MS - 1)
    assert known(small, sinks) == [SINK, *sinks[4:]]


def test_writes_evict_no_query(small: ProducerSequences) -> None:
    store(small, SINK, 0)
    for number in range(10 * PAIRS):
        store(small, WRITES + number, number * PRODUCER_LIVE_MS)
    assert known(small, [SINK]) == [SINK]
    assert len(known(small, range(WRITES, WRITES + 10 * PAIRS))) == PAIRS


class TestOnlyLiveOnesAreLeft:
    def test_one_that_has_to_be_recognised_is_rejected_with_a_reason(self, small: ProducerSequences) -> None:
        sinks = range(SINK, SINK + PAIRS + 1)
        for producer in sinks[:PAIRS]:
            store(small, producer, 1_000)
        with pytest.raises(ProducersFullError, match=rf"{PAIRS * SIZE} of {PAIRS * SIZE} bytes.*send it again later"):
            store(small, sinks[PAIRS], 1_000 + PRODUCER_LIVE_MS - 1)
        assert known(small, sinks) == list(sinks[:PAIRS])
        store(small, sinks[PAIRS], 1_000 + PRODUCER_LIVE_MS)
        assert known(small, sinks) == list(sinks[1:])

    def test_an_ordinary_one_is_not_remembered_and_the_log_tells_nothing_else(self, small: ProducerSequences) -> None:
        for producer in range(1, PAIRS + 2):
            store(small, producer, 1_000)
        assert known(small, range(1, PAIRS + 2)) == list(range(1, PAIRS + 1))

    def test_one_producer_has_at_most_a_quarter(self, small: ProducerSequences) -> None:
        for queue_id in range(PAIRS):
            store(small, 1, queue_id, queue_id=queue_id)
        store(small, 2, 9)
        queues = [queue for queue in range(PAIRS) if small.stored_before(BatchSequence(1, 1, 1, 1), "t", queue, 1)]
        assert queues == [0, 1, 2]
        assert known(small, range(2, 3)) == [2]

    async def test_a_sink_is_told_to_come_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds = tuple(replace(kind, bytes_max=4 * SIZE) for kind in KINDS)
        monkeypatch.setattr(producer_sequences, "KINDS", kinds)
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            codes = []
            for number in range(6):
                batch_sequence = BatchSequence(SINK + number, 1, 1, 1)
                (outcome,) = await produce(broker, numbered("t", [b"x"], batch_sequence=batch_sequence))
                codes.append(outcome.code)
            assert codes == 4 * [ResponseCode.SUCCESS] + 2 * [ResponseCode.SYSTEM_BUSY]
            assert broker.store.queue_end("t", 0) == 4
            await clock.advance(PRODUCER_LIVE_MS / 1_000)
            (outcome,) = await produce(broker, numbered("t", [b"x"], batch_sequence=batch_sequence))
            assert outcome.code is ResponseCode.SUCCESS


class TestOpenStreams:
    def test_a_producer_with_an_open_stream_stays_however_long_it_is_silent(self, small: ProducerSequences) -> None:
        stream = small.stream()
        stream.of(1)
        for number in range(5 * PAIRS):
            store(small, number + 1, number * PRODUCER_LIVE_MS)
        assert known(small, range(1, 5 * PAIRS + 1)) == [1, *range(4 * PAIRS + 2, 5 * PAIRS + 1)]
        stream.close()
        for number in range(5 * PAIRS, 7 * PAIRS):
            store(small, number + 1, number * PRODUCER_LIVE_MS)
        assert known(small, range(1, 2)) == []

    def test_a_stream_belongs_to_the_last_producer_that_it_named(self, small: ProducerSequences) -> None:
        stream, other = small.stream(), small.stream()
        for producer in (1, 2, 3):
            stream.of(producer)
        other.of(3)
        other.close()
        for number in range(3 * PAIRS):
            store(small, number + 1, number * PRODUCER_LIVE_MS)
        assert known(small, range(1, 4)) == [3]


class TestCost:
    @pytest.mark.parametrize("open_count", [0, PAIRS // 2])
    def test_a_new_pair_examines_a_few_others_however_many_there_are(
        self, monkeypatch: pytest.MonkeyPatch, open_count: int
    ) -> None:
        examined, is_live = 0, ProducerTable._is_live

        def counting(numbers: Numbers, now_ms: int) -> bool:
            nonlocal examined
            examined += 1
            return is_live(numbers, now_ms)

        monkeypatch.setattr(ProducerTable, "_is_live", staticmethod(counting))
        for pairs in (100, 1_000):
            kind = Kind("some", 0, 10**12, pairs * SIZE, must_be_known=False)
            table, examined = ProducerTable(kind, range(1, open_count + 1)), 0
            for number in range(3 * pairs):
                assert table.used((number + 1, "t", 0), 1, number * PRODUCER_LIVE_MS // pairs * 4) is not None
            assert examined <= 2 * pairs + 12 * open_count


class TestGapsInNumbers:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds = tuple(replace(kind, bytes_max=100_000) for kind in KINDS)
        monkeypatch.setattr(producer_sequences, "KINDS", kinds)

    def test_together_they_have_a_limit_in_bytes_and_a_producer_with_few_loses_none(self) -> None:
        sequences = ProducerSequences()
        for sequence in (1, 3, 5, 7):
            store(sequences, 99, 1_000, sequence=sequence, topic="honest")
        for producer in range(1, 9):
            for sequence in range(1, 2_000, 2):
                store(sequences, producer, 1_000, sequence=sequence)
        assert len(encode_document(sequences.to_json(), 0)) < 60_000
        found = sequences.stored_before(BatchSequence(99, 1, 1, 1), "honest", 0, 8)
        assert [stretch.base_sequence for stretch in found] == [1, 3, 5, 7]
        newest = sequences.stored_before(BatchSequence(8, 1, 1_999, 1), "t", 0, 1)
        assert [stretch.base_sequence for stretch in newest] == [1_999]

    def test_those_of_silent_producers_go_before_those_of_live_ones(self) -> None:
        sequences = ProducerSequences()
        for producer, now_ms in ((1, 0), (2, PRODUCER_LIVE_MS), (3, PRODUCER_LIVE_MS)):
            for sequence in range(1, 1_000, 2):
                store(sequences, producer, now_ms, sequence=sequence)
        left = {
            producer: len(sequences.stored_before(BatchSequence(producer, 1, 1, 1), "t", 0, 1_000))
            for producer in (1, 2, 3)
        }
        assert left == {1: 1, 2: 500, 3: 500}

    def test_what_is_forgotten_or_answered_counts_no_more(self) -> None:
        sequences = ProducerSequences()
        for producer in range(1, 50):
            for sequence in range(1, 200, 2):
                store(sequences, producer, 1_000, sequence=sequence)
            batch_sequence = BatchSequence(producer, 1, 300, 300)
            sequences.stored(batch_sequence, ("t", 0), Stretch(300, 1, "t", 0, 9_000), 1_000)
        for sequence in range(1, 1_000, 2):
            store(sequences, 77, 1_000, sequence=sequence)
        sequences.expire(10**12)
        for sequence in range(1, 2_000, 2):
            store(sequences, 88, 1_000, sequence=sequence)
        found = sequences.stored_before(BatchSequence(88, 1, 1, 1), "t", 0, 2_000)
        assert len(found) == 1_000, "nothing was cut: what others left is not counted any more"

    def test_the_limit_holds_after_a_restart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sequences = ProducerSequences()
        for sequence in range(1, 2_000, 2):
            store(sequences, 1, 1_000, sequence=sequence)
        document = sequences.to_json()
        monkeypatch.setattr(producer_sequences, "KINDS", tuple(replace(kind, bytes_max=20_000) for kind in KINDS))
        again = ProducerSequences()
        again.load_json(document)
        store(again, 1, 1_000, sequence=2_001)
        assert len(encode_document(again.to_json(), 0)) < 10_000


async def test_a_client_with_an_open_stream_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = tuple(replace(kind, bytes_max=PAIRS * SIZE) for kind in KINDS)
    monkeypatch.setattr(producer_sequences, "KINDS", kinds)
    clock = SimClock()
    async with EmbeddedBroker("streams", clock=clock) as embedded, Producer("writers", embedded.url) as producer:
        await producer.send(Message("t", b"x"))
        sequences = embedded.broker.producer_sequences
        await clock.advance(3 * PRODUCER_LIVE_MS / 1_000)
        for number in range(2 * PAIRS):
            store(sequences, number + 1, embedded.broker.time.now_ms() + number * PRODUCER_LIVE_MS)
        assert [one for one in sequences.to_json()["producerTable"] if int(one, 16) > 2 * PAIRS]
