"""Two or three brokers that replicate, and what the world around them knows.

The brokers are the production code on simulated disks, clocks and a simulated network (replica_network.py,
replica_node.py); what must stay true is in replica_model.py. What happens to them is in replica_faults.py,
replica_operator.py and replica_clients.py, how it ends in replica_end.py. Clients and operator speak with a broker as
if they stood beside it: their calls are made in its process, and end with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from client_tasks import ClientTasks
from replica_clients import QUEUES, TOPIC, Consumers, Producers
from replica_model import EVIDENCE_BYTES, InvariantError, Log, Promise, ReplicaModel
from replica_network import Network
from replica_node import LAYOUT, LEVELS, Node, Process, Settings
from replica_operator import Leader

from mq_broker.core.delays import DelayLevels
from mq_broker.core.limits import RejectedError
from mq_broker.core.replica_state import NO_EPOCH, BrokerRole, Epoch, ReplicaState
from mq_broker.processor.broker import Broker
from mq_broker.store.errors import StoreError
from mq_broker.store.message_store import FlushDiskType
from osenv import SeededRng, SimClock
from osenv.sim_clock import settle

OPERATION_S = 2.0  # so long the operator waits for one answer
NEWS_S = 0.25  # how often the name servers hear from every broker


class ReplicaWorld:
    """One history's brokers."""

    def __init__(self, rng: SeededRng, settings: Settings, nodes: int) -> None:
        self.rng, self.settings = rng, settings
        self.clock = SimClock()
        self.network = Network(self.clock, SeededRng(rng.randrange(0, 1 << 60)))
        self.tasks = ClientTasks()
        self.model = ReplicaModel(DelayLevels.parse(LEVELS).delays_ms)
        self.counts = self.model.counts
        self.nodes = [
            Node(name, settings, self.clock, self.network, self.tasks, SeededRng(rng.randrange(0, 1 << 60)))
            for name in ("a", "b", "c")[:nodes]
        ]
        for number, node in enumerate(self.nodes):
            node.broker_id = number
            node.on_open, node.on_state = self._opened, self._remembers
        self.nodes[0].role = settings.master_role
        self.leader = Leader(self.nodes[0], 1)
        self.coming: list[Leader] = []  # each once that is on its disk
        self.lossy_terms: set[int] = set()  # begun by force
        self.registered: tuple[Epoch, str] = (NO_EPOCH, "")  # the newest master that the name servers know
        self.isolated: dict[str, float] = {}  # nodes that no name server hears, until when
        self.reached: dict[str, int] = {}  # where the log of each replica ended at the most, since it was opened
        self._news_at = 0.0
        self._violations: list[BaseException] = []
        self.producers, self.consumers = Producers(self), Consumers(self)

    async def open(self) -> None:
        self.tasks.install()
        for node in self.nodes:
            node.start()
        await self.advance(0.05)
        await self.advance(NEWS_S)

    async def close(self) -> None:
        for node in self.nodes:
            await node.kill()
        self.tasks.uninstall()

    # -------------------------------------------------------------------------------------------------- calls

    def ask(self, process: Process, work: Awaitable[Any], done: Callable[[Any], None] | None = None) -> None:
        """Have this done in the process; `done` hears what came of it, or not when the process dies over it."""

        async def asked() -> None:
            try:
                result = await work
            except (RejectedError, StoreError, OSError) as error:
                result = error
            except Exception as error:  # the history ends with it
                self._violations.append(error)
                return
            if done is not None:
                try:
                    done(result)
                except Exception as error:  # the same
                    self._violations.append(error)

        process.request(asked())

    async def answer(self, process: Process, work: Awaitable[Any], seconds: float = OPERATION_S) -> Any:
        """What came of it; None when nothing came in time."""
        answers: list[Any] = []
        self.ask(process, work, answers.append)
        end = self.clock.monotonic() + seconds
        await self.advance(0.0)
        while not answers and process.is_alive and self.clock.monotonic() < end:
            await self.advance(0.02)
        return answers[0] if answers else None

    def route(self) -> Node | None:
        """The master, as a client knows it from the name servers."""
        address = self.registered[1]
        return next((node for node in self.nodes if node.ha_address == address), None)

    # ------------------------------------------------------------------------------------------------ promises

    def promise(
        self, what: str, node: Node, broker: Broker, end: int, *, confirmed: bool, numbers: Any = ()
    ) -> Promise:
        """This broker has told a client so: it has to be there in the end."""
        epoch: Epoch = broker.replication.epoch
        made = Promise(what, end, self.evidence(node, end), confirmed, node.name, epoch, tuple(numbers))
        if epoch.term < self.leader.term or (self.leader.is_open and epoch < self.leader.epoch):
            self._check_stale(made)
        return made

    def evidence(self, node: Node, end: int) -> bytes:
        """The log's last bytes before `end`, as far as they are in one file; b"" when that file is deleted by now.

        Retention may delete a file while a pull that has read from it is under way.
        """
        size = LAYOUT.commit_log_file_bytes
        begin = max((end - 1) // size * size, end - EVIDENCE_BYTES)
        return node.read(begin, end) if end and begin >= self._log_begin(node) else b""

    def check_confirmed(self, node: Node, end: int) -> None:
        """Every replica that the durable in-sync set names has everything below `end`."""
        state = node.state
        if state is None or self.settings.master_role is not BrokerRole.SYNC_MASTER:
            return
        for other in self.nodes:
            theirs = other.state
            if other is node or theirs is None or theirs.replica_id not in state.in_sync.replicas:
                continue
            self.measure(other)
            reached = self.reached.get(other.name, 0)
            if reached < end:
                raise InvariantError(
                    f"{node.name} confirms up to {end} in epoch {state.epoch}; its durable in-sync set "
                    f"{state.in_sync.version} names {other.name}, which had {reached} at the most"
                )
        self.counts["confirmations alone" if len(state.in_sync.replicas) == 1 else "confirmations in sync"] += 1

    def _check_stale(self, promise: Promise) -> None:
        """A broker of a past epoch makes promises still: only what the newest master has can be kept."""
        promise.holds = self._keeps(self.leader.node, promise)
        is_disk_lost = not self.leader.node.disk.list_dir(LAYOUT.commit_log)
        has_lost = (
            is_disk_lost
            or promise.end <= self._log_begin(self.leader.node)
            or self.settings.flush is FlushDiskType.ASYNC_FLUSH
        )
        may_lose = has_lost or any(term > promise.epoch.term for term in self.lossy_terms)
        if not promise.holds and not may_lose:
            raise InvariantError(f"{promise} was made after {promise.node} had handed over to {self.leader.node.name}")
        self.counts["promises from a past epoch"] += 1

    @staticmethod
    def _log_begin(node: Node) -> int:
        return int((node.disk.list_dir(LAYOUT.commit_log) or ["0"])[0])

    def _keeps(self, node: Node, promise: Promise) -> bool:
        """Whether this node's log has, for certain, the same up to there."""
        broker = node.process.broker if node.process else None
        if broker is not None and broker.store.log_end < promise.end:
            return False
        try:
            return node.read(promise.end - len(promise.evidence), promise.end) == promise.evidence
        except FileNotFoundError:
            return False

    def log_of(self, node: Node) -> Log:
        begin, data = node.log()
        broker = node.process.broker if node.process else None
        return Log(begin, broker.store.log_end if broker else begin + len(data), data)

    def _opened(self, node: Node, broker: Broker) -> None:
        """A broker is at work anew: does the master have what was promised?"""
        self.counts["brokers opened"] += 1
        self.reached[node.name] = broker.store.log_end
        if broker.replication.role is BrokerRole.SLAVE:
            return
        epoch, leader = broker.replication.epoch, self.leader
        if node is not leader.node or epoch.term < leader.term:
            self.counts["stale masters that came back"] += 1
            return
        log = self.log_of(node)
        if leader.is_open:
            lost = self.model.kept_by(node.name, log, "a restart", may_lose="all" if node.loses_tail else "")
        else:
            lost = self.model.kept_by(node.name, log, "a promotion", may_lose=leader.may_lose, until=leader.until)
            self.counts["promotions"] += 1
        leader.is_open, leader.epoch = True, epoch
        node.loses_tail = False
        self.model.queues_end_at({queue: broker.store.queue_end(TOPIC, queue) for queue in range(QUEUES)})
        self.counts["openings that let promises go"] += lost > 0

    def _remembers(self, node: Node, state: ReplicaState) -> None:
        """A broker has written down something else; perhaps that it is the master now."""
        for coming in self.coming:
            if (node, state.epoch.term) == (coming.node, coming.term) and state.role.is_master:
                if coming.term > self.leader.term:
                    before = self.leader.node.state
                    if coming.may_lose and before is not None and state.replica_id not in before.in_sync.replicas:
                        coming.may_lose = "all"  # put out while it was being promoted, by a master that is cut off
                    coming.until = len(self.model.promises) if coming.may_lose else None
                    self.leader = coming
                if coming.may_lose:
                    self.lossy_terms.add(coming.term)

    def measure(self, node: Node) -> None:
        broker = node.process.broker if node.process else None
        if broker is not None:
            store = broker.store
            self.reached[node.name] = max(self.reached.get(node.name, 0), store.stored_end)

    # ---------------------------------------------------------------------------------------------------- time

    async def advance(self, seconds: float) -> None:
        """Time passes; then everything is looked at."""
        await self.clock.advance(seconds)
        now = self.clock.monotonic()
        if now >= self._news_at:
            self._news_at = now + NEWS_S
            self._tell_news()
            await settle()
        self.look()

    def look(self) -> None:
        """What has to be true at any moment."""
        for error in (*self._violations, *self.network.errors):
            raise error
        for node in self.nodes:
            process = node.process
            if process is None:
                continue
            if process.error is not None:
                raise process.error
            if process.broker is not None:
                broker = process.broker
                self.measure(node)
                replication = broker.replication
                end = broker.store.readable_end
                self.model.confirms(node.name, node.lives * 1_000 + process.opened, replication.epoch, end)
                if replication.role is not BrokerRole.SLAVE and end > node.confirmed_to:
                    node.confirmed_to = end
                    self.check_confirmed(node, end)
                if node.loses_tail and node is not self.leader.node:
                    leader = self.leader.node.broker
                    node.loses_tail = leader is None or broker.store.log_end < leader.store.log_end

    def _tell_news(self) -> None:
        """Brokers register, and hear of their master."""
        now = self.clock.monotonic()
        self.isolated = {name: until for name, until in self.isolated.items() if until > now}
        for node in self.nodes:
            broker = node.broker
            if broker is None or node.name in self.isolated or node.process is None:
                continue
            replication = broker.replication
            if replication.role is not BrokerRole.SLAVE and replication.epoch > self.registered[0]:
                self.registered = replication.epoch, node.ha_address
            epoch, address = self.registered
            if replication.role is BrokerRole.SLAVE:
                node.process.run(lambda: replication.master_found(address))  # noqa: B023 - called at once
            elif replication.epoch < epoch:
                self.counts["masters told that they are superseded"] += 1
                self.ask(node.process, replication.superseded(epoch, address))
