"""What producers have numbered, on a slave: a promoted one recognises what its master would have recognised."""

from __future__ import annotations

import pytest

from mq_broker.core.producer_sequences import Numbering, ProducerSequences, Stretch
from mq_broker.core.replication.roles import BrokerRole
from mq_broker.ha import states
from mq_broker.testing import LOG_FILE_BYTES, incoming, numbered, produce
from mq_broker.testing_replication import make_pair, pair, until
from osenv import SimClock

PRODUCER = 7
EVERY_BYTES = 32 * 1024


def numbering(sequence: int, first_unanswered: int = 1) -> Numbering:
    return Numbering(PRODUCER, 1, sequence, first_unanswered)


async def test_a_slave_that_joins_after_retention_recognises_what_is_sent_again() -> None:
    clock = SimClock()
    _, master, slave = make_pair(clock, role=BrokerRole.ASYNC_MASTER)
    await master.start()
    rows = numbered("t", [b"1", b"2", b"3"], numbering=numbering(1))
    (first,) = await produce(master.at_work, rows)
    while master.at_work.store.log_end < 3 * LOG_FILE_BYTES:
        await produce(master.at_work, incoming("other", [b"x" * 10_000]))
    await master.at_work.store.checkpoint()
    await master.at_work.store.follow_begin(LOG_FILE_BYTES)
    await slave.start()
    await until(clock, lambda: slave.at_work.store.log_end == master.at_work.store.log_end)
    await master.stop()
    await slave.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await until(clock, lambda: slave.broker is not None and slave.at_work.is_master)
    (again,) = await produce(slave.at_work, rows)
    assert again.base_queue_offset == first.base_queue_offset
    assert slave.at_work.store.queue_end("t", 0) == 3
    await slave.stop()


async def test_a_slave_forgets_the_numbers_that_its_master_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "SEQUENCES_EVERY_BYTES", EVERY_BYTES)
    clock = SimClock()
    async with pair(clock, role=BrokerRole.ASYNC_MASTER) as (_, master, slave):
        sent, size = 0, 1_000
        while master.at_work.store.log_end < 4 * EVERY_BYTES:
            sent += 1  # every second number: each is a stretch of its own, and the one before it is answered
            await produce(master.at_work, numbered("t", [bytes(size)], numbering=numbering(2 * sent, 2 * sent - 1)))
            await clock.advance(0.1)
        kept = sum(1 for _ in slave.at_work.producer_sequences.ends())
        assert sum(1 for _ in master.at_work.producer_sequences.ends()) == 1
        assert kept < sent / 2
        assert kept * size < 1.2 * EVERY_BYTES, "those that came since it was told"


def test_a_merge_adds_what_is_missing_and_forgets_what_is_answered() -> None:
    mine, theirs = ProducerSequences(), ProducerSequences()
    for sequences, stretches in ((mine, [(1, 2), (5, 1), (8, 2)]), (theirs, [(1, 6), (9, 3)])):
        for begin, count in stretches:
            sequences.stored(numbering(begin), ("t", 0), Stretch(begin, count, "t", 0, 100 + begin), 1)
    theirs.stored(numbering(20, first_unanswered=4), ("t", 0), Stretch(20, 1, "t", 0, 120), 2)
    mine.merge(theirs)
    found = mine.stored_before(numbering(4, 4), "t", 0, 20)
    known = {one.base_sequence + at: one.base_queue_offset + at for one in found for at in range(one.count)}
    assert known == {sequence: 100 + sequence for sequence in (4, 5, 6, 8, 9, 10, 11, 20)}
    again = mine.to_json()["producerTable"]
    mine.merge(theirs)
    assert mine.to_json()["producerTable"] == again
