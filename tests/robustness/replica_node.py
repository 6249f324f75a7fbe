"""One machine of a simulated pair: a disk that outlives its processes, and the broker there, run as app.py runs it.

A process can be killed, stopped and continued; its machine can lose its power, or its disk. Whatever wakes a process
goes through `Process.wake`: timers, frames, the disk. So one that stands still does nothing at all, as under SIGSTOP,
and one that is dead never does anything again.

Invariants: a disk has one living process at most; of a dead one no task runs on and no call reaches the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from client_tasks import ClientTasks
from replica_network import Network
from sim_process import SimProcess

from mq_broker.core.delays import DelayLevels
from mq_broker.core.replica_state import BrokerIdentity, BrokerRole, ReplicaState, ReplicationOptions
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.replication.node import REPLICA, stop
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.store.state_files import decode_document
from osenv import DiskFile, DiskUsage, SeededRng, SimClock, SimDisk
from osenv.disk import FileLock, Lane, read_file
from osenv.sim_clock import settle

P = ParamSpec("P")
T = TypeVar("T")

LAYOUT = StoreLayout(Path("/store"), 8_192, 20, IndexSize(slots=16, entries=256))
LEVELS = "1s 2s 4s"
FLUSH_INTERVAL_MS = 100
# A tenth of the defaults: what matters is how they compare with each other, and with what the test does meanwhile.
REPLICA_TIMEOUT_MS, NOT_CATCHUP_MS, BEAT_MS = 300, 1_500, 100
FOREVER_MS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What all nodes of a history have in common."""

    flush: FlushDiskType
    master_role: BrokerRole
    min_in_sync: int
    has_index: bool


class ProcessDisk:
    """The node's disk, as one process has it; slow now and then."""

    def __init__(self, process: Process, disk: SimDisk) -> None:
        self._process, self._disk = process, disk

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> DiskFile:
        return self._living().open(path, create=create, read_only=read_only)

    def exists(self, path: Path) -> bool:
        return self._living().exists(path)

    def list_dir(self, path: Path) -> list[str]:
        return self._living().list_dir(path)

    def make_dirs(self, path: Path) -> None:
        self._living().make_dirs(path)

    def replace(self, source: Path, target: Path) -> None:
        self._living().replace(source, target)

    def unlink(self, path: Path) -> None:
        self._living().unlink(path)

    def sync_dir(self, path: Path) -> None:
        self._living().sync_dir(path)

    def lock(self, path: Path) -> FileLock:
        return self._living().lock(path)

    def usage(self, path: Path) -> DiskUsage:
        return self._living().usage(path)

    def boot_id(self) -> str:
        return self._living().boot_id()

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.offload_in(Lane.WORK, lambda: call(*args, **kwargs))

    async def offload_in(self, lane: Lane, call: Callable[[], T]) -> T:
        seconds = self._process.disk_s
        if seconds:
            await self._process.clock.sleep(seconds)
        self._living()
        result = call()
        if seconds:
            await self._process.clock.sleep(seconds)  # done, and not answered yet
        return result

    def _living(self) -> SimDisk:
        if not self._process.is_alive:
            raise OSError("the process that asks is dead")
        return self._disk


class Process(SimProcess):
    """One life of the broker's process."""

    def __init__(self, node: Node, number: int) -> None:
        super().__init__(node.name, f"{node.name}#{number}", node.clock, node.skew_ms, node.rate)
        self.error: Exception | None = None
        self.disk_s = node.disk_s
        self.broker: Broker | None = None
        self.opened = 0
        self._node = node
        self._requests: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self.run(lambda: asyncio.get_running_loop().create_task(self._main(), name=self.name))

    def request(self, work: Coroutine[Any, Any, None]) -> None:
        """A call of the broker; it ends with the broker, as an RPC does with its server."""
        task = self.run(lambda: asyncio.get_running_loop().create_task(work))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _main(self) -> None:
        try:
            while await self._life():
                pass
        except Exception as error:  # whatever ends a broker is for the test to judge
            self.error = error
        self._node.ended(self)

    async def _life(self) -> bool:
        """One broker, from its start to its end; whether there is to be another one."""
        node = self._node
        broker = Broker(
            ProcessDisk(self, node.disk),
            self.clock,
            node.broker_options(),
            node.store_options(),
            SeededRng(node.rng.randrange(0, 1 << 60)),
            connect=lambda address: node.network.connect(self, address),
        )
        await broker.open()
        self.broker, self.opened = broker, self.opened + 1
        # What it had confirmed before is no news: others may have lost it since, as the fault model has it.
        node.confirmed_to = min(node.confirmed_to, broker.store.readable_end)
        node.on_open(node, broker)
        node.network.listen(node.ha_address, self, broker.replication.serve)
        try:
            await broker.run()
        finally:
            self.broker = None
        await node.before_deaf(self)
        await node.network.deaf(self)
        await stop(*self._requests)
        await broker.close()
        if broker.store.failure is not None:
            raise broker.store.failure
        return broker.replication.reopen.is_set()


class Node:
    """One machine."""

    def __init__(
        self, name: str, settings: Settings, clock: SimClock, network: Network, tasks: ClientTasks, rng: SeededRng
    ) -> None:
        self.name, self.settings, self.clock, self.network, self.tasks, self.rng = (
            name,
            settings,
            clock,
            network,
            tasks,
            rng,
        )
        self.ha_address = f"{name}:10912"
        self.role = BrokerRole.SLAVE  # that broker.conf says
        self.broker_id = 1
        self.skew_ms, self.rate, self.disk_s = rng.choice((0, 0, -700, 900)), rng.choice((1.0, 0.995, 1.004)), 0.0
        self.disk = SimDisk()
        self.process: Process | None = None
        self.state: ReplicaState | None = None  # what config/replica.json says, durably
        self.loses_tail = False  # since a power cut it may lack what it has vouched for (asynchronous flush)
        self.lives = 0
        self.confirmed_to = 0  # as a master, with all of its in-sync replicas looked at
        self.on_open: Callable[[Node, Broker], None] = lambda _node, _broker: None
        self.on_state: Callable[[Node, ReplicaState], None] = lambda _node, _state: None
        self._watch()

    # --------------------------------------------------------------------------------------------- life

    def start(self) -> None:
        self.lives += 1
        self.process = Process(self, self.lives)
        self.network.back(self.name)
        self._note_state()  # what the process before had not synced counts as long as the machine lives
        self.process.start()

    async def kill(self) -> None:
        """As by SIGKILL; what it has written stays."""
        await self._die(silently=False)

    async def lose_power(self) -> None:
        """What it has not synced stays in part, or not at all; its peers are not told that it is gone."""
        await self._die(silently=True)
        self.disk.crash(self.rng)
        self.state = None
        self._note_state()
        self.loses_tail = self.settings.flush is FlushDiskType.ASYNC_FLUSH

    async def lose_disk(self) -> None:
        """The machine burns down; what is put in its place begins with nothing, and as a replica."""
        await self._die(silently=True)
        self.disk, self.state, self.loses_tail = SimDisk(), None, False
        self.role, self.broker_id = BrokerRole.SLAVE, max(1, self.broker_id)
        self._watch()

    async def before_deaf(self, process: Process) -> None:
        """The broker has ended in order; what else the process serves ends now."""

    def ended(self, process: Process) -> None:
        """By itself."""
        process.is_alive = False
        self.network.died(process, silently=False)
        if self.process is process:
            self.disk.kill()

    async def _die(self, *, silently: bool) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        self.network.died(process, silently=silently)
        process.is_alive = False
        self.tasks.kill(process.name)
        self.disk.kill()
        await settle()

    # ----------------------------------------------------------------------------------------- what it has

    @property
    def broker(self) -> Broker | None:
        """The broker, when it is at work and can be asked."""
        process = self.process
        return process.broker if process is not None and process.is_alive and not process.is_stopped else None

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    def log(self) -> tuple[int, bytes]:
        """Where the log's first file begins, and all that is in the files, blocks in reserve among them."""
        folder = LAYOUT.commit_log
        names = self.disk.list_dir(folder)
        return int(names[0]) if names else 0, b"".join(read_file(self.disk, folder / name) for name in names)

    def read(self, begin: int, end: int) -> bytes:
        """Bytes of the log that are in one file."""
        size = LAYOUT.commit_log_file_bytes
        base = begin // size * size
        file = self.disk.open(LAYOUT.commit_log / f"{base:020d}", read_only=True)
        return file.pread(end - begin, begin - base)

    def store_options(self) -> StoreOptions:
        port = 10_911
        return StoreOptions(
            LAYOUT, self.settings.flush, FLUSH_INTERVAL_MS, "127.0.0.1", port, index_enabled=self.settings.has_index
        )

    def broker_options(self) -> BrokerOptions:
        identity = BrokerIdentity("DefaultCluster", "broker-a", self.broker_id, f"{self.name}:10911")
        return BrokerOptions(
            identity,
            DelayLevels.parse(LEVELS),
            default_topic_queue_count=2,
            transactions=TransactionOptions(check_interval_ms=5_000, immunity_ms=FOREVER_MS),
            replication=ReplicationOptions(
                role=self.role,
                ha_address=self.ha_address,
                min_in_sync_replicas=self.settings.min_in_sync,
                replica_timeout_ms=REPLICA_TIMEOUT_MS,
                replica_not_catchup_ms=NOT_CATCHUP_MS,
                beat_interval_ms=BEAT_MS,
            ),
        )

    def _watch(self) -> None:
        """Follow what becomes durable of config/replica.json."""

        def after(call: str, path: Path) -> None:
            if call == "sync_dir" and path == LAYOUT.config:
                self._note_state()

        def before(call: str, path: Path) -> None:
            if call == "unlink" and path.parent == LAYOUT.commit_log:
                self.disk.used_share = 0.0  # one file is enough

        self.disk.before, self.disk.after = before, after

    def _note_state(self) -> None:
        state = self._read_state()
        if state is not None and state != self.state:
            self.state = state
            self.on_state(self, state)

    def _read_state(self) -> ReplicaState | None:
        try:
            return ReplicaState.from_json(decode_document(read_file(self.disk, LAYOUT.config / REPLICA)))
        except FileNotFoundError:
            return None
