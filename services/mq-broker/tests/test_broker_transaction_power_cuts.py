"""A power cut tears the write that ends a transaction: whatever survives of it, the message is delivered once."""

from __future__ import annotations

import pytest

from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.testing import half, incoming, produce, read_all, running_broker
from osenv import SeededRng, SimClock, SimDisk

COMMIT = TransactionState.COMMIT_MESSAGE
BODY = b"m" * 100
PADDINGS = range(0, 512, 64)  # so that some writes have a border of sectors between message and op message
STATES = 60


async def visible(broker: Broker) -> list[bytes]:
    return [record.body for record in await read_all(broker, "t")]


async def torn_disks(clock: SimClock, padding: int) -> list[SimDisk]:
    """What a power cut may leave between the write that commits a transaction and its sync."""
    disk, found = SimDisk(), list[SimDisk]()
    async with running_broker(disk, clock, clean_stop=False) as broker:
        await produce(broker, incoming("other", [b"p" * (1 + padding)]))
        await produce(broker, half("t", BODY, "tx"))

        def take(call: str, path: object) -> None:
            if call == "sync_data" and "commitlog" in str(path) and not found:
                found.extend(disk.lost_states(SeededRng(1), exhaustive_units_max=5, samples=STATES))

        disk.before = take
        assert (await broker.transactions.end("shop", "tx", COMMIT, from_check=False)).outcome is COMMIT
    return found


@pytest.mark.mechanism("T1")
async def test_a_torn_commit_is_delivered_once_when_it_is_told_again() -> None:
    clock = SimClock()
    counts = set()
    for disk in [disk for padding in PADDINGS for disk in await torn_disks(clock, padding)]:
        disk.locks.clear()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            counts.add(len(await visible(broker)))
            assert (await broker.transactions.end("shop", "tx", COMMIT, from_check=True)).outcome is COMMIT
            assert await visible(broker) == [BODY]
            assert broker.transaction_table.all_open() == []
        disk.kill()
        async with running_broker(disk, clock) as broker:
            assert await visible(broker) == [BODY]
            assert broker.transaction_table.all_open() == []
    assert counts == {0, 1}  # the message was torn off, or it was not


async def test_a_transaction_whose_commit_survived_without_its_op_message_cannot_be_rolled_back() -> None:
    clock = SimClock()
    outcomes = set()
    for disk in [disk for padding in PADDINGS for disk in await torn_disks(clock, padding)]:
        disk.locks.clear()
        async with running_broker(disk, clock) as broker:
            before = await visible(broker)
            ended = await broker.transactions.end("shop", "tx", TransactionState.ROLLBACK_MESSAGE, from_check=True)
            assert ended.outcome is (COMMIT if before else TransactionState.ROLLBACK_MESSAGE)
            assert await visible(broker) == before
            outcomes.add(ended.outcome)
    assert outcomes == {COMMIT, TransactionState.ROLLBACK_MESSAGE}
