"""Producers' numbers: what is known of them, for how long, and how it is written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq_broker.core import producer_table
from mq_broker.core.producer_sequences import BatchSequence, ProducerSequences, SequenceError
from mq_broker.core.producer_table import EXPIRY_MS, RETURNING_EXPIRY_MS, Stretch
from mq_broker.testing import producer_record
from mqproto.properties import PRODUCER_SEQUENCE, REAL_QID, REAL_TOPIC, RETURNING_PRODUCERS_FROM, WRITE_PRODUCERS_FROM
from mqproto.record import Record, decode_record

PRODUCER = 0xABC
QUEUE = ("t", 0)


def batch_sequence(base: int, *, first_unanswered: int = 1, epoch: int = 1, producer: int = PRODUCER) -> BatchSequence:
    return BatchSequence(producer, epoch, base, min(first_unanswered, base))


def store(
    sequences: ProducerSequences, base: int, count: int, offset: int, *, first_unanswered: int = 1, now_ms: int = 0
) -> Stretch:
    stretch = Stretch(base, count, *QUEUE, offset)
    sequences.stored(batch_sequence(base, first_unanswered=first_unanswered), QUEUE, stretch, now_ms)
    return stretch


def record(sequence: int, offset: int, *, topic: str = "t", properties: dict[str, str] | None = None) -> Record:
    own = {PRODUCER_SEQUENCE: f"{PRODUCER:016x}:1:{sequence}"} | (properties or {})
    return replace(decode_record(producer_record(topic, b"x", properties=own)), queue_offset=offset)


def reloaded(sequences: ProducerSequences) -> ProducerSequences:
    """What a restart finds in the file."""
    loaded = ProducerSequences()
    loaded.load_json(json.loads(json.dumps(sequences.to_json())))
    return loaded


class TestRecognition:
    def test_what_was_stored_is_known_and_what_follows_is_not(self) -> None:
        sequences = ProducerSequences()
        stretch = store(sequences, 1, 3, 70)
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 3) == [stretch]
        assert sequences.stored_before(batch_sequence(4), *QUEUE, 3) == []

    def test_another_queue_and_another_producer_count_for_themselves(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 1, 3, 70)
        assert sequences.stored_before(batch_sequence(1), "t", 1, 3) == []
        assert sequences.stored_before(batch_sequence(1), "u", 0, 3) == []
        assert sequences.stored_before(batch_sequence(1, producer=7), *QUEUE, 3) == []

    def test_of_a_batch_that_is_there_in_part_the_parts_are_told(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 5, 2, 70)
        store(sequences, 9, 2, 90)
        assert sequences.stored_before(batch_sequence(4), *QUEUE, 6) == [
            Stretch(5, 2, *QUEUE, 70),
            Stretch(9, 1, *QUEUE, 90),
        ]

    def test_batches_that_follow_each_other_become_one_stretch(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 1, 2, 70)
        store(sequences, 3, 2, 72)
        assert sequences.stored_before(batch_sequence(2), *QUEUE, 2) == [Stretch(2, 2, *QUEUE, 71)]

    def test_a_number_that_was_rejected_at_first_is_stored_later_and_then_known(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 6, 2, 70)
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 5) == []
        late = store(sequences, 1, 5, 72)
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 7) == [late, Stretch(6, 2, *QUEUE, 70)]

    def test_an_older_epoch_comes_too_late(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 1, 1, 70)
        assert sequences.stored_before(batch_sequence(2, epoch=3), *QUEUE, 1) == []
        with pytest.raises(SequenceError, match="newer stream, with epoch 3"):
            sequences.stored_before(batch_sequence(2, epoch=2), *QUEUE, 1)

    def test_what_the_producer_has_an_answer_for_is_forgotten_and_comes_too_late(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 1, 4, 70)
        store(sequences, 5, 1, 90, first_unanswered=5)
        with pytest.raises(SequenceError, match="no answer below 5"):
            sequences.stored_before(batch_sequence(4), *QUEUE, 1)

    @pytest.mark.parametrize(
        "bad",
        [
            BatchSequence(0, 1, 1, 1),
            BatchSequence(PRODUCER, -1, 1, 1),
            BatchSequence(PRODUCER, 1, -1, -1),
            BatchSequence(PRODUCER, 1, 3, 4),
            BatchSequence(PRODUCER, 1, 3, -1),
        ],
    )
    def test_numbers_that_make_no_sense_are_rejected(self, bad: BatchSequence) -> None:
        with pytest.raises(SequenceError, match="sequences count from 1"):
            ProducerSequences().stored_before(bad, *QUEUE, 1)


class TestMemory:
    def test_a_producer_is_forgotten_after_an_hour_of_silence(self) -> None:
        sequences = ProducerSequences()
        stretch = store(sequences, 1, 1, 70, now_ms=1_000)
        sequences.expire(1_000 + EXPIRY_MS)
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 1) == [stretch]
        sequences.expire(1_001 + EXPIRY_MS)
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 1) == []

    def test_a_producer_of_one_write_is_forgotten_after_an_hour_of_silence(self) -> None:
        sequences = ProducerSequences()
        one = batch_sequence(1, producer=WRITE_PRODUCERS_FROM + 7)
        sequences.stored(one, QUEUE, Stretch(1, 1, *QUEUE, 70), 1_000)
        sequences.expire(1_001 + EXPIRY_MS)
        assert sequences.stored_before(one, *QUEUE, 1) == []

    def test_a_producer_that_comes_back_is_forgotten_after_a_week_of_silence(self) -> None:
        sequences = ProducerSequences()
        one = batch_sequence(1, producer=RETURNING_PRODUCERS_FROM + 7)
        stretch = Stretch(1, 1, *QUEUE, 70)
        sequences.stored(one, QUEUE, stretch, 1_000)
        store(sequences, 1, 1, 71, now_ms=2_000)
        sequences.expire(1_000 + RETURNING_EXPIRY_MS)
        assert sequences.stored_before(one, *QUEUE, 1) == [stretch]
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 1) == []
        sequences.expire(1_001 + RETURNING_EXPIRY_MS)
        assert sequences.stored_before(one, *QUEUE, 1) == []

    def test_a_producer_that_never_says_what_it_has_an_answer_for_fills_no_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(producer_table, "QUEUE_STRETCHES_MAX", 3)
        sequences = ProducerSequences()
        for base in range(1, 20, 2):  # with gaps, so that nothing becomes one
            store(sequences, base, 1, base)
        assert [one.base_sequence for one in sequences.stored_before(batch_sequence(1), *QUEUE, 99)] == [15, 17, 19]


class TestRecovery:
    def test_records_tell_their_numbers(self) -> None:
        sequences = ProducerSequences()
        for sequence in (1, 2, 3):
            sequences.recovered(record(sequence, 69 + sequence))
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 3) == [Stretch(1, 3, *QUEUE, 70)]

    def test_a_record_that_waits_elsewhere_counts_for_the_queue_that_it_was_sent_to(self) -> None:
        sequences = ProducerSequences()
        waiting = record(1, 5, topic="SCHEDULE_TOPIC_XXXX", properties={REAL_TOPIC: "t", REAL_QID: "2"})
        sequences.recovered(waiting)
        assert sequences.stored_before(batch_sequence(1), "t", 2, 1) == [Stretch(1, 1, "SCHEDULE_TOPIC_XXXX", 0, 5)]

    def test_what_is_known_or_answered_is_not_changed_by_reading_the_log_again(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 1, 4, 70)
        store(sequences, 5, 2, 74, first_unanswered=5)
        before = sequences.to_json()
        for sequence in range(1, 7):
            sequences.recovered(record(sequence, 500 + sequence))
        assert sequences.to_json()["producerTable"] == before["producerTable"]

    @pytest.mark.parametrize("value", ["", "nonsense", "abc:1:2", f"{PRODUCER:016x}:1:", f"{PRODUCER:016x}:1:x"])
    def test_other_records_tell_nothing(self, value: str) -> None:
        sequences = ProducerSequences()
        sequences.recovered(record(1, 5, properties={PRODUCER_SEQUENCE: value}))
        assert sequences.to_json()["producerTable"] == {}

    def test_what_stands_behind_the_end_of_a_queue_is_lost(self) -> None:
        sequences = ProducerSequences()
        store(sequences, 1, 4, 70)
        store(sequences, 9, 2, 80)
        sequences.clamp(lambda topic, queue_id: 72)
        assert sequences.stored_before(batch_sequence(1), *QUEUE, 99) == [Stretch(1, 2, *QUEUE, 70)]

    @pytest.mark.parametrize(
        "queues", ["t:0", "t:0 x", "t:0 1 5+3", "t:0 1 5+3@t:0", "t:0 1 5+3@t:0:7 ", "t:0 1;t:1 1", "t 0 1"]
    )
    def test_a_file_of_another_form_is_rejected(self, queues: str) -> None:
        entry = {"epoch": 1, "lastTimestamp": 2, "queues": queues}
        document = {"dataVersion": {"counter": 1}, "producerTable": {f"{PRODUCER:016x}": entry}}
        with pytest.raises(ValueError, match="is not the numbers of a queue"):
            ProducerSequences().load_json(document)


@st.composite
def histories(draw: st.DrawFn) -> Iterator[tuple[int, int, int, bool]]:
    """Batches as a producer may send them: (first number, count, first unanswered, whether the broker takes it)."""
    batches, following, first_unanswered = [], 1, 1
    for _ in range(draw(st.integers(1, 12))):
        following += draw(st.integers(0, 2))  # numbers that were given and never sent
        count = draw(st.integers(1, 4))
        first_unanswered = draw(st.integers(first_unanswered, following))
        batches.append((following, count, first_unanswered, draw(st.booleans())))
        following += count
    return iter(batches)


@settings(max_examples=300)
@given(histories(), st.data())
def test_every_number_from_the_first_unanswered_one_on_is_known_if_and_only_if_it_was_stored(
    history: Iterator[tuple[int, int, int, bool]], data: st.DataObject
) -> None:
    sequences, stored, offset, floor = ProducerSequences(), dict[int, int](), 0, 0
    for base, count, first_unanswered, taken in history:
        assert sequences.stored_before(batch_sequence(base, first_unanswered=first_unanswered), *QUEUE, count) == []
        if taken:
            store(sequences, base, count, offset, first_unanswered=first_unanswered)
            stored |= {base + index: offset + index for index in range(count)}
            offset, floor = offset + count + data.draw(st.integers(0, 1)), first_unanswered
        if data.draw(st.booleans()):
            sequences = reloaded(sequences)
    for first in range(max(1, floor), max(stored, default=0) + 2):
        count = data.draw(st.integers(1, 6))
        found = sequences.stored_before(batch_sequence(first, first_unanswered=floor), *QUEUE, count)
        numbers = {
            one.base_sequence + index: one.base_queue_offset + index for one in found for index in range(one.count)
        }
        assert numbers == {number: stored[number] for number in range(first, first + count) if number in stored}
