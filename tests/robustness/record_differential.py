"""One definition of a record: whatever takes, reads, copies, rewrites or recovers one has to agree with all the others.

Random batches (`record_samples.py`) go to the broker's check, whose verdict has to be that of a second definition
(`record_oracle.py`). What was accepted is stored, with every copy that a broker may make of it; then memory, disk, a
replica, a start after kill -9, `dump_log` and the client have to tell the same of each record.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from quiet import quiet
from record_oracle import Accepted, judge_batch, keys_of
from record_samples import BODY_BYTES_MAX, Sample, sample
from simulation import few_collections
from sweep import Outcome

from mq_broker.core.batches import Batch, BatchError, check_batch, index_keys, message_keys, record_index_keys
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.halves import HalfError, committed_batch, half_batch, parked_batch, recheck_batch
from mq_broker.core.rewrite import (
    deliver_record,
    entry_tags_code,
    recalled_batch,
    retry_batch,
    schedule_batch,
    waiting_copy,
)
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, MessageStore
from mq_broker.store.reader import all_proven
from mq_broker.testing import STORE_ROOT, store_options
from mq_broker.testing_replication import copy_all, entries, log_bytes, running_store
from mq_broker.tools.dump_log import RecordView
from mq_broker.tools.stored_files import StoredFiles, read_log
from mqclient.message import MessageExt
from mqproto.properties import RESERVED, EncodedProperties, decode_properties, java_string_hash
from mqproto.record import Record, decode_record, encoded_properties, iter_sealed_records
from osenv import SeededRng, SimDisk

RECORDS = 20_000  # of one seed
RECORDS_IN_LIFE = 1_000  # sent to one store before it is killed
COPIED_SHARE = 0.3  # of the accepted records are written again on every way
LOG_FILE_BYTES = 1024 * 1024
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
START_MS = 1_700_000_000_000
POSITION = (16, (1 << 40) + 7)
READABLE_BY_ROCKETMQ = 32_767
_OPTIONS = store_options(flush=FlushDiskType.ASYNC_FLUSH)
OPTIONS = replace(
    _OPTIONS,
    layout=StoreLayout(STORE_ROOT, LOG_FILE_BYTES, 10_000, IndexSize(slots=1_024, entries=100_000)),
    index_enabled=False,
)


class DisagreementError(Exception):
    """Two parts of the program say different things of one record."""


@dataclass
class Life:
    """A store, and what is in its log: for each record the code that its entry has to have, and the record itself."""

    store: MessageStore
    rng: SeededRng
    counts: Counter[str]
    expected: list[tuple[int, Record]] = field(default_factory=list)

    def send(self, sent: Sample) -> None:
        """Have the batch checked; store it, and copies of it, if it is accepted."""
        wanted = judge_batch(sent.records, sent.topic, sent.queue_id, sent.count, BODY_BYTES_MAX)
        try:
            batch = check_batch(sent.topic, sent.queue_id, sent.count, sent.records, BODY_BYTES_MAX)
        except BatchError as error:
            _require(wanted is None, "an acceptable batch is rejected", sent, str(error))
            self.counts["rejected"] += 1
            return
        if wanted is None:
            raise DisagreementError(f"an unacceptable batch is accepted: {sent}")
        self.counts["accepted"] += 1
        _require_accepted(batch, wanted)
        for stored in self._placed(batch):
            self._put(stored)
            if batch.count == 1 and self.rng.random() < COPIED_SHARE:
                self._copy(decode_record(bytes(stored.buffer)))

    def _placed(self, batch: Batch) -> Iterator[Batch]:
        """The batch as it goes into the log, if its delay and its transaction are as they have to be."""
        try:
            if batch.prepared:
                yield half_batch(batch, START_MS)
            else:
                yield schedule_batch(batch, LEVELS, START_MS) if batch.delayed else batch
        except (HalfError, BatchError):
            self.counts["rejected later"] += 1

    def _put(self, batch: Batch) -> None:
        self.store.put([batch], START_MS)
        data, at = bytes(batch.buffer), 0
        for size, code in zip(batch.sizes, batch.tags_codes, strict=True):
            self.expected.append((code, decode_record(data, at)))
            at += size

    def _copy(self, record: Record) -> None:
        """Write the record again on every way that there is from where it stands."""
        for copy in every_copy(record):
            size = len(encoded_properties(bytes(copy.buffer), 0, len(copy.buffer)))
            _require(size <= READABLE_BY_ROCKETMQ, "a copy has too long properties", size, record)
            self._put(copy)
            again = self.expected[-1][1]
            _require(again.body == record.body or copy.tags_codes == [0], "a copy has another body", again, record)
            if again.body == record.body:
                _require(_user_s(again) == _user_s(record), "a copy has other properties", again, record)
            self.counts["copies"] += 1


def every_copy(record: Record) -> Iterator[Batch]:
    """What a broker may write of this record, each from the one before, up to its dead letter."""
    properties = decode_properties(record.properties)
    if "TRAN_MSG" in properties and "REAL_TOPIC" in properties:
        checked = recheck_batch(record, 3)
        half = decode_record(bytes(checked.buffer))
        committed = committed_batch(half, record.queue_offset)
        yield from (checked, parked_batch(half, record.queue_offset, 4))
        if not committed.delayed:
            yield committed
            yield from _retries(decode_record(bytes(committed.buffer)))
            return
        waiting = schedule_batch(committed, LEVELS, START_MS)
        yield waiting
        record = decode_record(bytes(waiting.buffer))
    elif "REAL_TOPIC" not in properties:
        yield from _retries(record)
        return
    carried = waiting_copy(record, POSITION, START_MS + 5)
    waiting_record = decode_record(bytes(carried.buffer))
    delivered = deliver_record(waiting_record, POSITION)
    yield from (carried, recalled_batch(waiting_record, POSITION), delivered)
    yield from _retries(decode_record(bytes(delivered.buffer)))


def _retries(record: Record) -> Iterator[Batch]:
    for _ in range(2):
        waiting = schedule_batch(retry_batch(record, "g", delay_level=0, reconsume_times_max=1 << 31), LEVELS, START_MS)
        delivered = deliver_record(decode_record(bytes(waiting.buffer)), POSITION)
        yield from (waiting, delivered)
        record = decode_record(bytes(delivered.buffer))
    yield retry_batch(record, "g", delay_level=-1, reconsume_times_max=16)


def _user_s(record: Record) -> dict[str, str]:
    return {name: value for name, value in decode_properties(record.properties).items() if name not in RESERVED}


def _require(holds: object, sentence: str, *shown: object) -> None:
    if not holds:
        raise DisagreementError(f"{sentence}: {', '.join(repr(one)[:600] for one in shown)}")


def _require_accepted(batch: Batch, wanted: list[Accepted]) -> None:
    """The batch has to be what the second definition says."""
    _require(batch.sizes == [one.size for one in wanted], "other sizes", batch.sizes, wanted)
    _require(batch.tags_codes == [java_string_hash(one.tag) for one in wanted], "other tags", batch, wanted)
    wait = "timed" if batch.timed else batch.delay_level
    _require(wait == wanted[0].wait, "another delay", wait, wanted)
    _require(batch.prepared == any(one.prepared for one in wanted), "another half", batch, wanted)
    _require(batch.waits == any(one.properties.get("WAIT") != "false" for one in wanted), "another WAIT", wanted)
    at = 0
    for one in wanted:
        record = decode_record(bytes(batch.buffer), at)
        _require((record.size, record.body) == (one.size, one.body), "another record is decoded", record, one)
        _require(decode_properties(record.properties) == one.properties, "other properties", record, one)
        at += one.size


# ------------------------------------------------------------------------------------------------------- readers


def require_record(code: int, record: Record, data: bytes) -> None:
    """Dispatch, index, filter, client and export have to agree about one record, which is `data` as it stands."""
    properties = decode_properties(record.properties)
    _require(entry_tags_code(record) == code, "dispatch has another code", code, record)
    _require(message_keys(record) == keys_of(properties), "the index has other keys", record)
    hot, size = index_keys(data, 0, record.log_offset, records_max=9, keys_max=1_000)
    _require((hot, size) == (record_index_keys(record), len(data)), "memory and disk index differently", record)
    for name in ("TAGS", "UNIQ_KEY", "KEYS", "own"):
        found = EncodedProperties(record.properties).get(name)
        _require(found == properties.get(name), "a condition sees another property", name, record)
    (sealed,) = iter_sealed_records(data)
    message = MessageExt(sealed, "broker-a")
    _require(message.properties == properties and message.tag == properties.get("TAGS"), "a client sees", record)
    view = RecordView.of(record)
    _require((view.tag, view.keys) == (properties.get("TAGS", ""), properties.get("KEYS", "")), "an export has", view)


async def require_queues(store: MessageStore, life: Life) -> None:
    """What is read of each queue, in memory or from disk, is what was stored, and proves itself."""
    wanted: dict[tuple[str, int], list[tuple[int, Record]]] = {}
    for code, record in life.expected:
        wanted.setdefault((record.topic, record.queue_id), []).append((code, record))
    found = {key for key, (_, data) in entries(store).items() if data}
    _require(found == wanted.keys(), "other queues", found ^ wanted.keys())
    for (topic, queue_id), records in wanted.items():
        queue = store.queue(topic, queue_id)
        if queue is None:
            raise DisagreementError(f"queue {queue_id} of {topic} is missing")
        offset, read = 0, list[Record]()
        while offset < queue.max_offset:
            some, scanned = await store.reader.read_queue(queue, offset, 500)
            _require(scanned, "a queue cannot be read on", topic, queue_id, offset)
            read += some
            offset += scanned
        _require(read == [record for _, record in records], "a queue has other records", topic, queue_id)
        stored = queue.read(0, queue.max_offset)
        data = b"".join(store.log.read(record.log_offset, record.size) for record in read)
        _require(all_proven(queue, 0, stored, data), "what was read is not proven", topic, queue_id)


def require_log(disk: SimDisk, life: Life) -> None:
    """What the operator's tool reads of the files."""
    files = StoredFiles(disk, OPTIONS.layout.commit_log, LOG_FILE_BYTES)
    records = [found for found in read_log(files, 0, 0) if isinstance(found, Record)]
    _require(records == [record for _, record in life.expected], "dump_log reads other records", len(records))
    for code, record in life.expected:
        require_record(code, record, files.read(record.size, record.log_offset))
    files.close()


# --------------------------------------------------------------------------------------------------------- lives


async def _live(rng: SeededRng, count: int, counts: Counter[str]) -> int:
    """Send at least so many records to a new store, and look at them from all sides; returns how many were sent."""
    disk, sent = SimDisk(), 0
    async with running_store(disk, options=OPTIONS, clean_stop=False) as store:
        life = Life(store, rng, counts)
        while sent < count:
            one = sample(rng)
            life.send(one)
            sent += max(1, one.count)
        await store.wait_stored(store.log_end)
        await require_queues(store, life)
        async with running_store(SimDisk(), options=OPTIONS) as replica:
            await copy_all(store, replica, rng, chunk_bytes_max=200_000)
            _require(log_bytes(replica) == log_bytes(store), "a replica has other bytes")
            _require(entries(replica) == entries(store), "a replica has other entries")
        before = entries(store)
    disk.kill()
    require_log(disk, life)
    recovered: list[Record] = []
    async with running_store(disk, options=OPTIONS, on_record=recovered.append) as store:
        _require(recovered == [record for _, record in life.expected], "recovery sees other records", len(recovered))
        _require(entries(store) == before, "recovery makes other entries")
        await require_queues(store, life)
    return sent


def run_records(seed: int, count: int, deadline: float = float("inf")) -> Outcome:
    """So many records from a seed, or as many as there is time for; ends at the first disagreement."""
    rng, counts, sent = SeededRng(seed), Counter[str](), 0
    with quiet(), few_collections():
        while sent < count and time.monotonic() < deadline:
            try:
                sent += asyncio.run(_live(rng, min(RECORDS_IN_LIFE, count - sent), counts))
            except Exception as error:
                return Outcome(sent, (f"seed {seed}: {type(error).__name__}: {error}",), dict(counts))
    return Outcome(sent, (), dict(counts))


class RecordSweep:
    """The records of `make robustness`; a seed is RECORDS of them."""

    name, figure, unit, goal, share = "records", "G12", "records judged by all who read them", 1_000_000, 5

    def run(self, seed: int, deadline: float) -> Outcome:
        return run_records(seed, RECORDS, deadline)
