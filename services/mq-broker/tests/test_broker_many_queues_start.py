"""A start does not touch what a clean stop has left in order, however many queues there are."""

from __future__ import annotations

from pathlib import Path

from mq_broker.processor.broker import Broker
from mq_broker.testing import STORE_ROOT, broker_options, incoming, produce, read_all, running_broker, store_options
from osenv import SeededRng, SimClock, SimDisk

CHANGES = {"pwrite", "truncate", "allocate", "sync_data", "unlink", "sync_dir"}
QUEUES = STORE_ROOT / "consumequeue"


async def test_a_start_after_a_clean_stop_changes_and_syncs_no_queue() -> None:
    disk, changed = SimDisk(), list[Path]()
    async with running_broker(disk, SimClock()) as broker:
        for queue_id in range(4):
            await produce(broker, incoming("t", [b"a", b"b"], queue_id=queue_id))

    def note(call: str, path: Path) -> None:
        if call in CHANGES and QUEUES in path.parents:
            changed.append(path)

    disk.before = note
    broker = Broker(disk, SimClock(), broker_options(), store_options())
    await broker.open()
    assert changed == []
    await produce_and_read(broker)
    await broker.close()
    disk.before = lambda call, path: None
    disk.crash(SeededRng(1))
    async with running_broker(disk, SimClock()) as broker:
        assert [record.body for record in await read_all(broker, "t", 3)] == [b"a", b"b", b"c"]


async def produce_and_read(broker: Broker) -> None:
    broker.producing.put([incoming("t", [b"c"], queue_id=3)])
    assert broker.store.queue_end("t", 3) == 3
