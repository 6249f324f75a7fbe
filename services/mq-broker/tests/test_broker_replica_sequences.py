"""What producers have numbered, on a replica: a promoted one recognises what its master would have recognised."""

from __future__ import annotations

import json

import pytest

from mq_broker.core.producer_sequences import BatchSequence, ProducerSequences
from mq_broker.core.producer_table import EXPIRY_MS, Stretch
from mq_broker.core.replica_state import BrokerRole
from mq_broker.replication import states
from mq_broker.testing import LOG_FILE_BYTES, incoming, numbered, produce
from mq_broker.testing_replication import make_pair, pair, until
from mqproto.properties import RETURNING_PRODUCERS_FROM, WRITE_PRODUCERS_FROM
from osenv import SimClock

PRODUCER = 7
EVERY_BYTES = 32 * 1024


def batch_sequence(sequence: int, first_unanswered: int = 1) -> BatchSequence:
    return BatchSequence(PRODUCER, 1, sequence, first_unanswered)


async def test_a_replica_that_joins_after_retention_recognises_what_is_sent_again() -> None:
    clock = SimClock()
    _, master, replica = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    rows = numbered("t", [b"1", b"2", b"3"], batch_sequence=batch_sequence(1))
    (first,) = await produce(master.at_work, rows)
    while master.at_work.store.log_end < 3 * LOG_FILE_BYTES:
        await produce(master.at_work, incoming("other", [b"x" * 10_000]))
    await master.at_work.store.checkpoint()
    await master.at_work.store.follow_begin(LOG_FILE_BYTES)
    await replica.start()
    await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
    await master.stop()
    await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
    (again,) = await produce(replica.at_work, rows)
    assert again.base_queue_offset == first.base_queue_offset
    assert replica.at_work.store.queue_end("t", 0) == 3
    await replica.stop()


async def test_a_replica_forgets_the_numbers_that_its_master_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "SEQUENCES_EVERY_BYTES", EVERY_BYTES)
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (_, master, replica):
        sent, size = 0, 1_000
        while master.at_work.store.log_end < 4 * EVERY_BYTES:
            sent += 1  # every second number: each is a stretch of its own, and the one before it is answered
            await produce(
                master.at_work, numbered("t", [bytes(size)], batch_sequence=batch_sequence(2 * sent, 2 * sent - 1))
            )
            await clock.advance(0.1)
        kept = sum(1 for _ in replica.at_work.producer_sequences.ends())
        assert sum(1 for _ in master.at_work.producer_sequences.ends()) == 1
        assert kept < sent / 2
        assert kept * size < 1.2 * EVERY_BYTES, "those that came since it was told"


async def test_a_replica_knows_what_its_master_knows_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "SEQUENCES_EVERY_BYTES", EVERY_BYTES)
    monkeypatch.setattr(states, "SEQUENCES_SHARE", 0)
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (_, master, replica):
        for producer in (PRODUCER, RETURNING_PRODUCERS_FROM + 1, WRITE_PRODUCERS_FROM + 1):
            for sequence in (1, 3, 5):
                await produce(
                    master.at_work, numbered("t", [b"x"], batch_sequence=BatchSequence(producer, 1, sequence, 1))
                )
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        master.at_work.producer_sequences.expire(master.at_work.time.now_ms() + 2 * EXPIRY_MS)
        known = master.at_work.producer_sequences.to_json()["producerTable"]
        assert [int(name, 16) for name in known] == [RETURNING_PRODUCERS_FROM + 1]
        await produce(master.at_work, incoming("other", [bytes(EVERY_BYTES)]))
        await until(clock, lambda: replica.at_work.store.log_end == master.at_work.store.log_end)
        await clock.advance(1)
        assert replica.at_work.producer_sequences.to_json()["producerTable"] == known


def test_what_is_taken_over_stays_the_same_when_it_is_written_down() -> None:
    master, replica = ProducerSequences(), ProducerSequences()
    for now_ms, (producer, queue_id) in enumerate([(1, 0), (2, 0), (1, 1), (RETURNING_PRODUCERS_FROM, 3), (1, 0)]):
        stretch = Stretch(now_ms + 1, 1, "t", queue_id, now_ms)
        master.stored(BatchSequence(producer, now_ms, now_ms + 1, 0), ("t", queue_id), stretch, 1_000 * now_ms)
    replica.stored(BatchSequence(9, 1, 1, 1), ("t", 0), Stretch(1, 1, "t", 0, 70), 5)
    coming = ProducerSequences()
    coming.load_json(json.loads(json.dumps(master.to_json())))
    replica.take_over(coming)
    assert replica.to_json()["producerTable"] == master.to_json()["producerTable"]
    older = {name: {**entry, "laterMs": ""} for name, entry in master.to_json()["producerTable"].items()}
    coming.load_json({"dataVersion": {"counter": 1}, "producerTable": older})  # as an older version writes it
    assert sorted(coming.ends()) == sorted(master.ends())
