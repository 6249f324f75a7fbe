"""A broker whose log is deleted file by file, for tests: small files, and a cleaner that works when it is told."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from mq_broker.processor.broker import Broker
from mq_broker.store.message_store import StoreOptions
from mq_broker.testing import flush_and_index, incoming, produce, read_all, running_broker, store_options
from mqproto.codes import ResponseCode
from osenv import SimClock, SimDisk
from osenv.sim_clock import settle

FILE_BYTES = 4_096  # seven messages of `bodies`
IN_FILE = 7
ENTRIES = 10  # of a consume-queue file
FORCED = 0.85


def options() -> StoreOptions:
    store = store_options(log_file_bytes=FILE_BYTES)
    return replace(store, layout=replace(store.layout, consume_queue_file_entries=ENTRIES))


LAYOUT = options().layout


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number + bytes(434) for number in range(first, first + count)]


async def fill(broker: Broker, count: int, topic: str = "t", first: int = 0) -> list[int]:
    """Queue offsets of the new messages. Raises ValueError when one is refused."""
    offsets = []
    for body in bodies(count, first):
        (outcome,) = await produce(broker, incoming(topic, [body]))
        if outcome.code is not ResponseCode.SUCCESS:
            raise ValueError(outcome.remark)
        offsets.append(outcome.base_queue_offset)
    return offsets


def quiet_broker(disk: SimDisk, clock: SimClock, *, clean_stop: bool = True) -> AbstractAsyncContextManager[Broker]:
    """A broker that does nothing by itself but flush and index; rounds are the test's."""
    return running_broker(disk, clock, store=options(), clean_stop=clean_stop, work=flush_and_index)


async def clean(broker: Broker, clock: SimClock, disk: SimDisk, used: float = FORCED) -> None:
    """One round of the cleaner on a disk that is so full."""
    disk.used_share = used
    cleaning = asyncio.create_task(broker.retention.round())
    await settle()
    while not cleaning.done():  # it waits for the clock, or for a thread
        await (clock.advance(0.1) if clock.timers else asyncio.sleep(0))
    await cleaning
    disk.used_share = 0.0


async def numbers(broker: Broker, topic: str = "t") -> list[int]:
    """Queue offsets of what can be read. Raises ValueError for a body that `fill` did not send."""
    records = await read_all(broker, topic)
    strange = [record for record in records if record.body != bodies(1, int(record.body[:6]))[0]]
    if strange:
        raise ValueError(f"{strange[0].body!r} was never sent")
    return [record.queue_offset for record in records]
