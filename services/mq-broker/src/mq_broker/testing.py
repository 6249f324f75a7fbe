"""Ready-made parts for tests: batches as a client would send them, and a broker on a simulated disk and clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.life import NO_SPANS, LifeEvent, Spans
from mq_broker.core.members import ClientGroups, Consumer, Subscription
from mq_broker.core.producer_sequences import BatchSequence
from mq_broker.core.pulling import PullQuery
from mq_broker.core.replica_state import BrokerIdentity
from mq_broker.core.transactions import Phase, TransactionOptions, TransactionState
from mq_broker.processor.backup import BackupFile, BackupPart
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.producing import BatchOutcome, IncomingBatch
from mq_broker.processor.recalling import RecallAnswer
from mq_broker.processor.transactions import Ended
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mqproto.codes import ExpressionType, RecallOutcome, ResponseCode
from mqproto.properties import (
    DELAY,
    KEYS,
    PGROUP,
    PRODUCER_SEQUENCE,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    encode_properties,
    producer_sequence_start,
)
from mqproto.record import FLAG_TRANSACTION_PREPARED, Record, decode_record, encode_record, iter_records, pack_ip
from osenv import Disk, SimClock, SimDisk
from osenv.sim_clock import settle

if TYPE_CHECKING:
    import pytest


STORE_ROOT = Path("/store")
LOG_FILE_BYTES = 64 * 1024
QUEUE_FILE_ENTRIES = 100
INDEX_SIZE = IndexSize(slots=64, entries=512)
BORN_IP = pack_ip("127.0.0.1")
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


def producer_record(
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    tag: str = "",
    key: str = "",
    delay_level: int = 0,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> bytes:
    """One record as a producer sends it."""
    values = {UNIQ_KEY: f"id-{key}", KEYS: key, TAGS: tag, DELAY: str(delay_level) if delay_level else ""}
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties({name: value for name, value in values.items() if value} | dict(properties)),
        queue_id=queue_id,
        born_timestamp_ms=1,
        born_ip=BORN_IP,
    )


def incoming(
    topic: str, bodies: Sequence[bytes], *, queue_id: int = 0, tag: str = "", delay_level: int = 0
) -> IncomingBatch:
    """A batch of messages that differ in their bodies."""
    records = [producer_record(topic, body, queue_id=queue_id, tag=tag, delay_level=delay_level) for body in bodies]
    return IncomingBatch(topic, queue_id, len(records), b"".join(records))


def timed(
    topic: str,
    body: bytes,
    *,
    delay_ms: int | None = None,
    deliver_ms: int | None = None,
    queue_id: int = 0,
    key: str = "",
    unique_id: str = "m",
) -> IncomingBatch:
    """One message that waits for a time of its own: so long from now, or until then (ms since 1970)."""
    asked = {TIMER_DELAY_MS: delay_ms, TIMER_DELIVER_MS: deliver_ms}
    properties = {UNIQ_KEY: unique_id} | {name: str(value) for name, value in asked.items() if value is not None}
    record = producer_record(topic, body, queue_id=queue_id, key=key, properties=properties)
    return IncomingBatch(topic, queue_id, 1, record)


def keyed(
    topic: str = "t", *, key: str = "k", unique_id: str = "m", delay_level: int = 0, queue_id: int = 0
) -> IncomingBatch:
    """One message that can be found again by its key and by its unique id."""
    properties = {UNIQ_KEY: unique_id}
    record = producer_record(topic, b"x", queue_id=queue_id, key=key, delay_level=delay_level, properties=properties)
    return IncomingBatch(topic, queue_id, 1, record)


def numbered(
    topic: str,
    bodies: Sequence[bytes],
    batch_sequence: BatchSequence,
    *,
    queue_id: int = 0,
    delay_level: int = 0,
) -> IncomingBatch:
    """A batch whose records are numbered; each carries its own number."""
    producer_id, epoch, base, _ = batch_sequence
    records = [
        producer_record(
            topic,
            body,
            queue_id=queue_id,
            delay_level=delay_level,
            properties={PRODUCER_SEQUENCE: f"{producer_sequence_start(producer_id, epoch)}{sequence}"},
        )
        for sequence, body in enumerate(bodies, base)
    ]
    return IncomingBatch(topic, queue_id, len(records), b"".join(records), batch_sequence)


def half(
    topic: str,
    body: bytes,
    transaction_id: str,
    *,
    group: str = "shop",
    queue_id: int = 0,
    batch_sequence: BatchSequence | None = None,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> IncomingBatch:
    """A half message as a transaction producer sends it."""
    own = {UNIQ_KEY: transaction_id, TRAN_MSG: "true", PGROUP: group, TAGS: "created"}
    record = encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties(own | dict(properties)),
        queue_id=queue_id,
        born_timestamp_ms=1,
        born_ip=BORN_IP,
        sys_flag=FLAG_TRANSACTION_PREPARED,
    )
    return IncomingBatch(topic, queue_id, 1, record, batch_sequence)


@dataclass(eq=False)
class RecordingSession:
    """A client that remembers what it was told."""

    changed: list[str] = field(default_factory=list)
    checks: list[tuple[str, str, Record]] = field(default_factory=list)
    resets: list[tuple[str, list[tuple[str, int, Progress]]]] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)  # topics
    commands: list[tuple[int, str, bytes]] = field(default_factory=list)  # id, group, record

    def consumer_ids_changed(self, group: str) -> None:
        self.changed.append(group)

    def topic_route_changed(self, topics: Sequence[str]) -> None:
        self.routes += topics

    def check_transaction(self, producer_group: str, transaction_id: str, record: bytes) -> None:
        self.checks.append((producer_group, transaction_id, decode_record(record)))

    def reset_consumer_offset(self, group: str, queues: Sequence[tuple[str, int, Progress]]) -> None:
        self.resets.append((group, list(queues)))

    def get_running_info(self, command_id: int, group: str) -> None:
        self.commands.append((command_id, group, b""))

    def consume_directly(self, command_id: int, group: str, record: bytes) -> None:
        self.commands.append((command_id, group, record))


def client(
    client_id: str,
    *groups: str,
    producer: str = "",
    topics: Mapping[str, str] = NO_PROPERTIES,
    broadcasting: bool = False,
    orderly: bool = False,
) -> ClientGroups:
    """The heartbeat of a client that consumes in these groups, in all with the same tag expressions by topic."""
    subscriptions = tuple(Subscription(topic, expression) for topic, expression in topics.items())
    consumers = tuple(Consumer(group, subscriptions, broadcasting=broadcasting, orderly=orderly) for group in groups)
    return ClientGroups(client_id, frozenset({producer} - {""}), consumers)


def store_options(
    *, flush: FlushDiskType = FlushDiskType.SYNC_FLUSH, root: Path = STORE_ROOT, log_file_bytes: int = LOG_FILE_BYTES
) -> StoreOptions:
    """Files small enough to be crossed by a test."""
    return StoreOptions(
        StoreLayout(root, log_file_bytes, QUEUE_FILE_ENTRIES, INDEX_SIZE), flush, 200, "127.0.0.1", 10_911
    )


def broker_options(delay_levels: str = DEFAULT_DELAY_LEVELS) -> BrokerOptions:
    """A broker that creates what is missing."""
    identity = BrokerIdentity("DefaultCluster", "broker-a", 0, "127.0.0.1:10911")
    return BrokerOptions(identity, DelayLevels.parse(delay_levels))


@asynccontextmanager
async def running_broker(
    disk: Disk,
    clock: SimClock,
    *,
    options: BrokerOptions | None = None,
    store: StoreOptions | None = None,
    clean_stop: bool = True,
    work: Callable[[Broker], Coroutine[Any, Any, None]] = Broker.run,
    spans: Spans = NO_SPANS,
) -> AsyncIterator[Broker]:
    """A broker at work; without `clean_stop` it dies as by SIGKILL, and what it had open is for the disk to take.

    `work` is what it does by itself.
    """
    broker = Broker(disk, clock, options or broker_options(), store or store_options(), spans=spans)
    await broker.open()
    running = asyncio.create_task(work(broker))
    try:
        yield broker
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if clean_stop:
            await broker.close()


def flush_and_index(broker: Broker) -> Coroutine[Any, Any, None]:
    """The `work` of a broker whose delays, checks and rounds are the test's."""
    return broker.store.run()


async def flush_and_deliver(broker: Broker) -> None:
    """The `work` of a broker whose rounds of the cleaner are the test's."""
    await asyncio.gather(broker.store.run(), broker.delay.run())


async def produce(broker: Broker, *batches: IncomingBatch) -> list[BatchOutcome]:
    """Store and acknowledge, as the Produce stream does."""
    outcomes = broker.producing.put(batches)
    return await broker.producing.acknowledge(outcomes, broker.store.log_end)


async def read_all(
    broker: Broker, topic: str, queue_id: int = 0, expression: str = "*", expression_type: str = ExpressionType.TAG
) -> list[Record]:
    """Everything that a consumer can read of one queue, by pulls."""
    records: list[Record] = []
    offset, _ = broker.store.queue_bounds(topic, queue_id)
    while True:
        query = PullQuery("test-group", topic, queue_id, offset, 32, 1 << 20, expression, expression_type)
        result = broker.pulling.pull_hot(query) or await broker.pulling.pull(query)
        if result.next_begin_offset == offset:
            return records
        records += iter_records(result.records)
        offset = result.next_begin_offset


def life_in_words(events: Sequence[LifeEvent], start_ms: int) -> list[str]:
    """A line for each event: seconds since the start, what, where, and what else is known."""
    return [
        f"{(event.timestamp_ms - start_ms) / 1000:g}s " * bool(event.timestamp_ms)
        + f"{event.kind.name} {event.topic}:{event.queue_id}#{event.queue_offset}"
        + f" group {event.group}" * bool(event.group)
        + f" due {(event.due_timestamp_ms - start_ms) / 1000:g}s" * bool(event.due_timestamp_ms)
        + f" try {event.reconsume_times}" * bool(event.reconsume_times)
        for event in events
    ]


# Ready-made parts for tests of backups: a copy of a running broker's store, and the store that is made of it.


async def copied(broker: Broker) -> list[BackupPart]:
    """All parts of a copy."""
    async with aclosing(broker.backup.parts()) as parts:
        return [part async for part in parts]


def restored(parts: Sequence[BackupPart]) -> SimDisk:
    """The store that the parts make, as `mqadmin restore` writes it."""
    disk, path, at = SimDisk(), Path(), 0
    for part in parts:
        if isinstance(part, BackupFile):
            path, at = STORE_ROOT / part.path, 0
            disk.make_dirs(path.parent)
            disk.open(path, create=True).truncate(part.full_size)
        elif isinstance(part, bytes):
            disk.open(path).pwrite(part, at)
            at += len(part)
    return disk


# A broker whose log is deleted file by file, for tests: small files, and a cleaner that works when it is told.

FILE_BYTES = 4_096  # seven messages of `numbered_bodies`
IN_FILE = 7
ENTRIES = 10  # of a consume-queue file
FORCED = 0.85


def options() -> StoreOptions:
    store = store_options(log_file_bytes=FILE_BYTES)
    return replace(store, layout=replace(store.layout, consume_queue_file_entries=ENTRIES))


LAYOUT = options().layout


def numbered_bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number + bytes(434) for number in range(first, first + count)]


async def fill(broker: Broker, count: int, topic: str = "t", first: int = 0) -> list[int]:
    """Queue offsets of the new messages. Raises ValueError when one is rejected."""
    offsets = []
    for body in numbered_bodies(count, first):
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
    strange = [record for record in records if record.body != numbered_bodies(1, int(record.body[:6]))[0]]
    if strange:
        raise ValueError(f"{strange[0].body!r} was never sent")
    return [record.queue_offset for record in records]


# A broker with messages that wait, for tests in which days pass: it delivers, and does nothing else by itself.


@asynccontextmanager
async def delivering_broker(
    disk: Disk,
    clock: SimClock,
    *,
    options: BrokerOptions | None = None,
    store: StoreOptions | None = None,
    clean_stop: bool = True,
) -> AsyncIterator[Broker]:
    """Without checkpoints and cleaning, nothing happens while nothing is due."""
    async with running_broker(
        disk, clock, options=options, store=store, clean_stop=clean_stop, work=_deliver
    ) as broker:
        yield broker


async def bodies(broker: Broker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    """What a consumer has got of the queue."""
    return [record.body for record in await read_all(broker, topic, queue_id)]


async def _deliver(broker: Broker) -> None:
    await asyncio.gather(broker.store.run(), broker.delay.run(), broker.delay.keep_index())


def in_ten_seconds(kind: str, unique_id: str = "m", key: str = "k") -> IncomingBatch:
    """One message of `t` that waits so long: in the queue of a "level", or in that of the "timer"."""
    if kind == "level":
        return keyed("t", key=key, unique_id=unique_id, delay_level=3)
    return timed("t", b"x", key=key, unique_id=unique_id, delay_ms=10_000)


def waiting(broker: Broker) -> dict[int, int]:
    """How many messages wait, by the number of the queue."""
    return {queue.level: queue.waiting for queue in broker.delay.queues if queue.waiting}


def outcomes(answer: RecallAnswer) -> dict[str, RecallOutcome]:
    """What a recall was told of each message. Raises ValueError when it was told of one twice."""
    found = {one.message_id: one.outcome for one in answer.messages}
    if len(found) < len(answer.messages):
        raise ValueError(f"one message, two answers: {answer.messages}")
    return found


# Ready-made parts for tests of transactions: members that are asked and answer, and a broker that asks at once.

COMMIT, ROLLBACK, UNKNOW = (
    TransactionState.COMMIT_MESSAGE,
    TransactionState.ROLLBACK_MESSAGE,
    TransactionState.UNKNOW,
)


def asking_at_once(**changes: int) -> BrokerOptions:
    """A broker whose halves have no immunity."""
    return replace(broker_options(), transactions=replace(TransactionOptions(immunity_ms=0), **changes))


async def end(
    broker: Broker, id_: str, state: TransactionState, *, from_check: bool = False, group: str = "shop"
) -> Ended:
    """What a member of the group says."""
    return await broker.transactions.end(group, id_, state, from_check=from_check)


async def visible(broker: Broker, topic: str = "t") -> list[bytes]:
    """The bodies that consumers can read."""
    return [record.body for record in await read_all(broker, topic)]


def beat(broker: Broker, session: RecordingSession, group: str = "shop", client_id: str = "client") -> None:
    """Add a member to the producer group, with this session."""
    broker.sessions.heartbeat(session, client(client_id, producer=group))


def join(broker: Broker, group: str = "shop", client_id: str = "client") -> RecordingSession:
    """A new member of the producer group."""
    session = RecordingSession()
    beat(broker, session, group, client_id)
    return session


def let_others_in(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, other tasks run while a record is read, as on a real disk."""
    read = broker.store.reader.read_record

    async def read_slowly(log_offset: int) -> Record:
        await asyncio.sleep(0)
        return await read(log_offset)

    monkeypatch.setattr(broker.store.reader, "read_record", read_slowly)


async def check_and_answer(broker: Broker, id_: str, state: TransactionState = UNKNOW) -> Ended:
    """One round of checks, and the answer of the member that was asked for this transaction."""
    await broker.transactions.checks.check_all()
    return await end(broker, id_, state, from_check=True)


async def park(broker: Broker, id_: str, *, body: bytes = b"x", properties: Mapping[str, str] = NO_PROPERTIES) -> None:
    """A parked transaction, of a broker that checks at once."""
    session = join(broker)
    await produce(broker, half("t", body, id_, properties=properties))
    while broker.transaction_table.phase(id_) is Phase.PREPARED:
        await check_and_answer(broker, id_)
    broker.sessions.ended(session, "client")
