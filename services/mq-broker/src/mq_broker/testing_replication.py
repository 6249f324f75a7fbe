"""Ready-made parts for tests of replication: brokers of one name, each on a disk of its own, and links between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from mq_broker.core.batches import Batch, check_batch
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.replica_state import BrokerIdentity, BrokerRole, Cut, ReplicationOptions
from mq_broker.core.rewrite import schedule_batch, single_record_batch
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import BatchOutcome
from mq_broker.replication.frames import LinkError
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_feed import LogChunk
from mq_broker.store.message_store import FlushDiskType, MessageStore, StoreOptions
from mq_broker.store.state_files import State
from mq_broker.testing import BORN_IP, STORE_ROOT, broker_options, incoming, produce, producer_record, store_options
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
from osenv import Clock, Disk, Rng, SeededRng, SimClock, SimDisk
from osenv.disk import read_file
from osenv.sim_clock import settle

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class MemoryLink:
    """One end of a link: what is sent arrives at the other end, in order, at once."""

    peer: str
    other: MemoryLink | None = None
    is_broken: bool = False
    _frames: deque[Any] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, frame: Any) -> None:
        """Give the frame to the other end."""
        if self.is_broken or self.other is None:
            raise LinkError("the link is broken")
        self.other.put(frame)
        await asyncio.sleep(0)

    def put(self, frame: Any) -> None:
        """A frame has arrived; None is the end of the stream."""
        self._frames.append(frame)
        self._arrived.set()

    async def receive(self) -> Any:
        """The next frame; None at the end."""
        while not self._frames:
            if self.is_broken:
                raise LinkError("the link is broken")
            self._arrived.clear()
            await self._arrived.wait()
        return self._frames.popleft()

    @property
    def arrived(self) -> int:
        """How many frames wait to be received; the end of the stream is none."""
        return sum(frame is not None for frame in self._frames)

    def break_now(self) -> None:
        """Break both ends; what has not been received is lost."""
        for end in (self, self.other):
            if end is not None and not end.is_broken:
                end.is_broken = True
                end._frames.clear()
                end._arrived.set()


class HeldDisk(SimDisk):
    """A disk whose threads can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Event()
        self._free.set()

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._free.wait()
        return await super().offload(call, *args, **kwargs)

    def hold(self) -> Callable[[], None]:
        """Nothing that runs in a thread ends, no sync above all, until what is returned is called."""
        self._free.clear()
        return self._free.set


class WrongClock:
    """A machine's clock whose wall clock is ahead by `ahead_ms`, or behind; `clock` is the right one."""

    def __init__(self, clock: SimClock, ahead_ms: int) -> None:
        self._clock, self._ahead_ms = clock, ahead_ms
        self.monotonic, self.sleep = clock.monotonic, clock.sleep
        self.call_later, self.watch_wall, self.alarm = clock.call_later, clock.watch_wall, clock.alarm

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._ahead_ms

    def wall_us(self) -> int:
        return self._clock.wall_us() + self._ahead_ms * 1_000

    def step_to(self, ahead_ms: int) -> None:
        """Set the clock."""
        self._ahead_ms = ahead_ms
        self._clock.set_wall_ms(self._clock.wall_ms())


@dataclass
class Member:
    """One broker process of the set: it is opened, runs, and is opened anew when its role changes."""

    name: str
    clock: Clock
    network: Network
    role: BrokerRole
    broker_id: int
    options: ReplicationOptions
    flush: FlushDiskType = FlushDiskType.SYNC_FLUSH
    disk: SimDisk = field(default_factory=HeldDisk)
    broker_name: str = "broker-a"
    broker: Broker | None = None
    opened: int = 0
    _life: asyncio.Task[None] | None = None

    @property
    def at_work(self) -> Broker:
        """The broker. Raises ValueError while it is down."""
        if self.broker is None:
            raise ValueError(f"{self.name} is down")
        return self.broker

    @property
    def log_bytes(self) -> bytes:
        """What the files of the log hold, up to the log's end."""
        folder = StoreLayout(STORE_ROOT).commit_log
        begin = self.at_work.store.log_begin
        data = b"".join(read_file(self.disk, folder / name) for name in sorted(self.disk.list_dir(folder)))
        return data[: self.at_work.store.log_end - begin]

    async def start(self) -> None:
        """Open the broker and let it run."""
        await self._open()
        self._life = asyncio.create_task(self._live(), name=self.name)

    async def stop(self, *, clean: bool = True) -> None:
        """Stop it, or kill it."""
        broker, self.broker = self.broker, None
        if not clean:
            self.network.break_links(self)
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        if broker is not None and clean:
            await broker.close()
        elif not clean:
            self.disk.kill()

    async def _open(self) -> None:
        options = replace(
            broker_options(),
            identity=BrokerIdentity("DefaultCluster", self.broker_name, self.broker_id, self.name),
            replication=replace(self.options, role=self.role, ha_address=self.name),
        )
        rng = SeededRng(self.opened * 1_000 + sum(self.name.encode()))
        store = store_options(flush=self.flush)
        broker = Broker(self.disk, self.clock, options, store, rng, connect=lambda to: self.network.connect(self, to))
        await broker.open()
        self.broker = broker
        self.opened += 1

    async def _live(self) -> None:
        while True:
            broker = self.at_work
            await broker.run()
            if not broker.replication.reopen.is_set():
                return
            self.network.break_links(self)
            self.broker = None
            await broker.close()
            await self._open()


class Network:
    """The members, and the links between them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.cut_off: set[str] = set()
        self._links: list[tuple[Member, Member | None, MemoryLink]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._server: Callable[[MemoryLink], Awaitable[None]] | None = None

    def serve_with(self, server: Callable[[MemoryLink], Awaitable[None]]) -> None:
        """From now on this answers at every address."""
        self._server = server

    @asynccontextmanager
    async def connect(self, replica: Member, address: str) -> AsyncIterator[MemoryLink]:
        """A link from a replica to the member that listens there."""
        master = self.members.get(address)
        if self._server is not None:
            serve = self._server
        elif master is not None and master.broker is not None and not {replica.name, address} & self.cut_off:
            serve = master.broker.replication.serve
        else:
            raise LinkError(f"nothing answers at {address}")
        near, far = MemoryLink(address), MemoryLink(replica.name)
        near.other, far.other = far, near
        self._links.append((replica, master, near))
        task = asyncio.create_task(self._serve(serve, far), name=f"{replica.name} at {address}")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            yield near
        finally:
            far.put(None)
            self._links = [link for link in self._links if link[2] is not near]

    async def _serve(self, serve: Callable[[MemoryLink], Awaitable[None]], far: MemoryLink) -> None:
        with contextlib.suppress(LinkError):
            await serve(far)
        if far.other is not None:
            far.other.put(None)

    def break_links(self, member: Member) -> None:
        """Break every link of this member."""
        for replica, master, link in self._links:
            if member in (replica, master):
                link.break_now()

    def cut(self, member: Member) -> None:
        """No other member reaches this one any more, until `heal`."""
        self.cut_off.add(member.name)
        self.break_links(member)

    def heal(self) -> None:
        """All members reach each other again."""
        self.cut_off.clear()


def make_pair(
    clock: SimClock,
    *,
    role: BrokerRole = BrokerRole.SYNC_MASTER,
    flush: FlushDiskType = FlushDiskType.SYNC_FLUSH,
    min_in_sync: int = 1,
) -> tuple[Network, Member, Member]:
    """A master and a replica that looks for it, neither of them started."""
    network, options = Network(), ReplicationOptions(min_in_sync_replicas=min_in_sync)
    master = Member("a:10912", clock, network, role, 0, options, flush)
    replica = Member(
        "b:10912", clock, network, BrokerRole.SLAVE, 1, replace(options, master_ha_address="a:10912"), flush
    )
    network.members = {member.name: member for member in (master, replica)}
    return network, master, replica


@asynccontextmanager
async def pair(clock: SimClock, **options: Any) -> AsyncIterator[tuple[Network, Member, Member]]:
    """Both at work, the replica in sync; `options` are those of `make_pair`."""
    network, master, replica = make_pair(clock, **options)
    await master.start()
    await replica.start()
    await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
    try:
        yield network, master, replica
    finally:
        for member in (replica, master):
            if member.broker is not None:
                await member.stop()


async def until(clock: SimClock, holds: Callable[[], bool], *, seconds: float = 60) -> None:
    """Let time pass until this holds. Raises TimeoutError."""
    await clock.until(holds, within_s=seconds, step_s=0.1)


async def send(clock: SimClock, member: Member, *bodies: bytes) -> list[BatchOutcome]:
    """Messages of one batch for topic `t`, acknowledged after a while if need be."""
    sending = asyncio.ensure_future(produce(member.at_work, incoming("t", bodies)))
    await until(clock, sending.done)
    return sending.result()


async def result_of(clock: SimClock, call: Coroutine[Any, Any, T]) -> T:
    """What the call returns or raises after a while."""
    task = asyncio.ensure_future(call)
    await until(clock, task.done)
    return task.result()


async def promoted(clock: SimClock, network: Network, master: Member, replica: Member) -> Broker:
    """The master is lost, and the replica is the master, alone."""
    network.cut(master)
    await replica.at_work.replication.promote(2, 0, BrokerRole.ASYNC_MASTER)
    await until(clock, lambda: replica.broker is not None and replica.at_work.is_master)
    return replica.at_work


def hold_log(master: Member) -> Callable[[], None]:
    """The master sends its log as over a slow link: one chunk for each call of what is returned."""
    feed, allowed = master.at_work.store.log_feed, asyncio.Semaphore(0)
    read = feed.read

    async def held(offset: int, bytes_max: int) -> LogChunk:
        await allowed.acquire()
        return await read(offset, bytes_max)

    feed.read = held  # type: ignore[method-assign]
    return allowed.release


# Ready-made parts for tests of copies: stores without a broker around them, and all kinds of records for a master.

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
    rebuilt_from_log: frozenset[str] = frozenset(),
    clean_stop: bool = True,
    cut: Cut | None = None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> AsyncIterator[MessageStore]:
    """A store that flushes and keeps its index; without `clean_stop` it dies as by SIGKILL."""
    store = MessageStore(
        disk, SimClock(START_MS), options or store_options(), states or {}, rebuilt_from_log=rebuilt_from_log
    )
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


async def copy_all(master: MessageStore, replica: MessageStore, rng: Rng, *, chunk_bytes_max: int = 20_000) -> int:
    """Everything that the replica lacks, in chunks of any size; returns how many there were."""
    chunks = 0
    while replica.log_end < master.log_end:
        chunk = await master.log_feed.read(replica.log_end, rng.randrange(1, chunk_bytes_max))
        replica.append_copy(replica.log_end, chunk.data)
        if replica.log_end != chunk.end:
            raise AssertionError(f"the replica's log ends at {replica.log_end}, what was sent at {chunk.end}")
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
