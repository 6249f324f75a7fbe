"""Ready-made parts for tests of copies: stores without a broker around them, and all kinds of records for a master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from mq_broker.core.batches import Batch, check_batch
from mq_broker.core.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.replication.replica_state import Cut
from mq_broker.core.rewrite import schedule_batch, single_record_batch
from mq_broker.store.message_store import MessageStore, StoreOptions
from mq_broker.store.state_files import State
from mq_broker.testing import BORN_IP, producer_record, store_options
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC
from mqproto.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TRAN_MSG,
    UNIQ_KEY,
    encode_properties,
    java_string_hash,
)
from mqproto.record import BODY_BYTES_MAX, FLAG_TRANSACTION_PREPARED, Record, encode_record
from osenv import Disk, Rng, SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
TOPICS = ("orders", "payments", "%RETRY%readers")
DELAY_LEVELS = (1, 2, 5)
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
OP_TAG = java_string_hash("d")


@asynccontextmanager
async def running_store(
    disk: Disk,
    *,
    options: StoreOptions | None = None,
    states: Mapping[str, State] | None = None,
    told_by_log: frozenset[str] = frozenset(),
    clean_stop: bool = True,
    cut: Cut | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> AsyncIterator[MessageStore]:
    """A store that flushes and keeps its index; without `clean_stop` it dies as by SIGKILL."""
    store = MessageStore(disk, SimClock(START_MS), options or store_options(), states or {}, told_by_log=told_by_log)
    store.open(on_record, cut)
    await store.flusher.flush()
    running = asyncio.create_task(store.run())
    try:
        yield store
        await asyncio.sleep(0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if clean_stop:
            await store.close()


async def copy_all(master: MessageStore, slave: MessageStore, rng: Rng, *, chunk_bytes_max: int = 20_000) -> int:
    """Everything that the slave lacks, in chunks of any size; returns how many there were."""
    chunks = 0
    while slave.log_end < master.log_end:
        chunk = await master.log_feed.read(slave.log_end, rng.randrange(1, chunk_bytes_max))
        slave.append_copy(slave.log_end, chunk.data)
        if slave.log_end != chunk.end:
            raise AssertionError(f"the slave's log ends at {slave.log_end}, what was sent at {chunk.end}")
        chunks += 1
    return chunks


def some_batch(rng: Rng, number: int) -> Batch:
    """A batch of any kind that a broker may store; plain messages have the keys `k0` to `k9`."""
    topic, queue_id, kind = rng.choice(TOPICS), rng.randrange(0, 3), rng.randrange(0, 8)
    if kind == 0:
        batch = _checked(topic, queue_id, rng.randbytes(rng.randrange(1, 200)), delay_level=rng.choice(DELAY_LEVELS))
        return schedule_batch(batch, LEVELS, START_MS)
    if kind == 1:
        return schedule_batch(_checked(topic, queue_id, b"timed", delay_ms=rng.randrange(1, 10**6)), LEVELS, START_MS)
    if kind == 2:
        return single_record_batch(HALF_TOPIC, 0, _half(topic, queue_id, number), 0)
    if kind == 3:
        return single_record_batch(OP_HALF_TOPIC, 0, producer_record(OP_HALF_TOPIC, b"%d" % number, tag="d"), OP_TAG)
    if kind == 4:
        return _checked(topic, queue_id, rng.randbytes(rng.randrange(5_000, 40_000)))
    bodies = [rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 8))]
    return _checked(topic, queue_id, *bodies, tag=rng.choice(("red", "blue", "")), key=f"k{number % 10}")


def write_some(store: MessageStore, rng: Rng, count: int, first: int = 0) -> None:
    """So many puts of one to three batches."""
    for number in range(first, first + count):
        batches = [some_batch(rng, number) for _ in range(rng.randrange(1, 4))]
        store.put_in_runs(batches, START_MS + number)


def _checked(
    topic: str, queue_id: int, *bodies: bytes, tag: str = "", key: str = "", delay_level: int = 0, delay_ms: int = 0
) -> Batch:
    timer = {TIMER_DELAY_MS: str(delay_ms)} if delay_ms else {}
    records = [
        producer_record(topic, body, queue_id=queue_id, tag=tag, key=key, delay_level=delay_level, properties=timer)
        for body in bodies
    ]
    return check_batch(topic, queue_id, len(records), b"".join(records), BODY_BYTES_MAX)


def _half(topic: str, queue_id: int, number: int) -> bytes:
    properties = {UNIQ_KEY: f"h{number}", REAL_TOPIC: topic, REAL_QID: str(queue_id), TRAN_MSG: "true"}
    return encode_record(
        topic=HALF_TOPIC.encode(),
        body=b"half",
        properties=encode_properties(properties),
        queue_id=0,
        born_timestamp_ms=1,
        born_ip=BORN_IP,
        sys_flag=FLAG_TRANSACTION_PREPARED,
    )


def log_bytes(store: MessageStore) -> bytes:
    """Every byte of the log."""
    return store.log.files.read(store.log_end - store.log_begin, store.log_begin)


def entries(store: MessageStore) -> dict[tuple[str, int], tuple[int, bytes]]:
    """The number of its first entry and all entries, by queue."""
    return {
        (queue.topic, queue.queue_id): (
            queue.first_offset,
            queue.read(queue.first_offset, queue.max_offset - queue.first_offset),
        )
        for queue in store.queues
        if queue.max_offset
    }


async def found_by_key(store: MessageStore, topic: str, key: str) -> list[int]:
    """Log offsets of what the index has under this key."""
    while store.index.indexed_end < store.log_end:
        await settle()
    return sorted({at for at in store.index.find(topic, key, 0, 1 << 60) if at is not None})


def fork_of(disk: SimDisk) -> SimDisk:
    """The disk as another process would find it, if this one died now."""
    fork = disk.fork()
    fork.kill()
    return fork
