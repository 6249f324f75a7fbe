"""Hourglass's own broker at work on a folder: it stores some of everything that it can store, and reads it all back."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from store_content import KeyName, QueueName, StoreContent, StoredMessage, StoreSizes

from hourglass_local.waiting import eventually
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.testing import broker_options, half, produce, read_all, running_broker
from mqproto.codes import ResponseCode
from mqproto.names import SCHEDULE_TOPIC
from mqproto.properties import DELAY, KEYS, TAGS, UNIQ_KEY, decode_properties, encode_properties
from mqproto.record import decode_record, encode_record, pack_ip
from osenv import RealDisk, SeededRng, SimClock

BORN_IP = "10.1.2.3"
BODY_BYTES_MAX = 3_000
ROUNDS = 60
FOUND_MAX = 1_000
FIVE_SECONDS_LEVEL, HALF_HOUR_LEVEL = 2, 16
GROUP = "readers"


@asynccontextmanager
async def open_broker(
    store: Path, sizes: StoreSizes, *, clean_stop: bool = True
) -> AsyncIterator[tuple[Broker, SimClock]]:
    """The broker on this folder, with its own clock; without `clean_stop` it ends as by SIGKILL."""
    disk, clock = RealDisk(), SimClock(time.time_ns() // 1_000_000)
    index_size = IndexSize(sizes.index_hash_slots, sizes.index_entries)
    layout = StoreLayout(store, sizes.commit_log_file_bytes, sizes.consume_queue_file_entries, index_size)
    options = StoreOptions(layout, FlushDiskType.SYNC_FLUSH, 200, "127.0.0.1", 10_911)
    try:
        async with running_broker(
            disk, clock, options=broker_options(), store=options, clean_stop=clean_stop
        ) as broker:
            yield broker, clock
        if not clean_stop:
            broker.store.release()  # what the system does for a process that died
    finally:
        disk.close()


async def store_some_of_everything(broker: Broker, clock: SimClock, seed: int) -> None:
    """Plain, tagged, keyed, delayed, half, committed, rolled-back and sent-back messages, and an operator's changes."""
    rng, numbers = SeededRng(seed), itertools.count()
    await broker.topic_administration.update(TopicConfig("made", 2, 2))
    await broker.topic_administration.delete("made")
    last: list[int] = []
    for round_number in range(ROUNDS):
        batches = [
            _batch(rng, "plain", rng.randrange(4), [{}] * rng.randrange(1, 5)),
            _batch(rng, "tagged", rng.randrange(4), [{TAGS: rng.choice(["red", "grün", "AaBB"])}]),
            _batch(rng, "keyed", 0, [_keys(seed, next(numbers)) for _ in range(2)]),
        ]
        if round_number % 6 == 0:
            level = FIVE_SECONDS_LEVEL if round_number % 12 else HALF_HOUR_LEVEL
            batches.append(_batch(rng, "delayed", 1, [_keys(seed, next(numbers)) | {DELAY: str(level)}]))
        outcomes = await produce(broker, *batches)
        assert {outcome.code for outcome in outcomes} == {ResponseCode.SUCCESS}
        last.append(outcomes[2].base_log_offset)
        if round_number % 20 == 0:
            await _transactions(broker, seed, round_number)
            await _send_back(broker, last.pop())
    await clock.advance(5)
    await eventually(lambda: _is_settled(broker), 5, "delayed messages delivered and on disk")


def store_keyed_at_once(broker: Broker, count: int, seed: int) -> None:
    """Keyed messages without a moment in between in which anything else could run."""
    rng = SeededRng(seed)
    for number in range(count):
        (outcome,) = broker.producing.put([_batch(rng, "keyed", 0, [_keys(seed, number)])])
        assert outcome.code is ResponseCode.SUCCESS


async def read_store(broker: Broker, store: Path) -> StoreContent:
    """Everything, through the consume queues; the queues that can be pulled are pulled as well."""
    queues: dict[QueueName, tuple[int, int]] = {}
    messages: list[StoredMessage] = []
    for folder in sorted((store / "consumequeue").glob("*/*")):
        name = folder.parent.name, int(folder.name)
        queues[name] = broker.store.queue_bounds(*name)
        found = [await _read(broker, name, offset) for offset in range(*queues[name])]
        if broker.topics.get(name[0]) is not None and name[0] != SCHEDULE_TOPIC:
            assert [one.body for one in found] == [record.body for record in await read_all(broker, *name)], name
        messages += found
    return StoreContent.collect(broker.store.log_end, queues, messages)


async def find_keys(broker: Broker, keys: Iterable[KeyName]) -> dict[KeyName, list[int]]:
    """Log offsets of the messages that the broker finds by each of the keys."""
    await eventually(lambda: broker.store.index.indexed_end == broker.store.log_end, 10, "the index has followed")
    found: dict[KeyName, list[int]] = {}
    for topic, key in keys:
        answer = await broker.querying.by_key(topic, key, max_messages=FOUND_MAX, begin_ms=0, end_ms=0)
        found[topic, key] = sorted(decode_record(data).log_offset for data in answer.records)
    return found


def _is_settled(broker: Broker) -> bool:
    return broker.delay.waiting(FIVE_SECONDS_LEVEL) == 0 and broker.store.readable_end == broker.store.log_end


def _batch(rng: SeededRng, topic: str, queue_id: int, properties: list[dict[str, str]]) -> IncomingBatch:
    records = [
        encode_record(
            topic=topic.encode(),
            body=rng.randbytes(rng.randrange(1, BODY_BYTES_MAX)),
            properties=encode_properties(own),
            queue_id=queue_id,
            born_timestamp_ms=1_700_000_000_000 + rng.randrange(1_000_000),
            born_ip=pack_ip(BORN_IP),
            born_port=50_000,
            flag=rng.randrange(1 << 31),
        )
        for own in properties
    ]
    return IncomingBatch(topic, queue_id, len(records), b"".join(records))


def _keys(seed: int, number: int) -> dict[str, str]:
    """A unique key, and two keys, one of which others share; and a property with every width of UTF-8."""
    unique = f"7F0000010001{seed:04X}{number:016X}"
    return {UNIQ_KEY: unique, KEYS: f"order-{seed}-{number} buyer-{number % 40}", "note": "aé€😀"}


async def _transactions(broker: Broker, seed: int, round_number: int) -> None:
    """One is committed, one rolled back, one left open."""
    ids = [f"tx-{seed}-{round_number}-{number}" for number in range(3)]
    for id_ in ids:
        await produce(broker, half("sold", f"sold by {id_}".encode(), id_))
    for id_, state in zip(ids, (TransactionState.COMMIT_MESSAGE, TransactionState.ROLLBACK_MESSAGE), strict=False):
        ended = await broker.transactions.end("shop", id_, state, from_check=False)
        assert ended.code is ResponseCode.SUCCESS


async def _send_back(broker: Broker, log_offset: int) -> None:
    code, remark, _ = await broker.send_back.send_back(GROUP, log_offset, delay_level=1, max_reconsume_times=16)
    assert code is ResponseCode.SUCCESS, remark


async def _read(broker: Broker, name: QueueName, offset: int) -> StoredMessage:
    queue = broker.store.queue(*name)
    assert queue is not None
    entry = queue.entry(offset)
    record = await broker.store.reader.read_record(entry[0])
    return StoredMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        size=record.size,
        body=record.body,
        body_crc=record.body_crc,
        properties=decode_properties(record.properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_ip=record.born_host[0],
        store_timestamp_ms=record.store_timestamp_ms,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        entry=entry,
    )
