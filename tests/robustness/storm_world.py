"""A pair of brokers, two name servers, members, producers and an operator, all on simulated machines.

Everything is the production code: brokers and name servers behind their services, mqclient before them, mqadmin's calls
for the operator. Simulated are disks (SimDisk), clocks (NodeClock) and the network (storm_network.py). What must stay
true is in storm_model.py; what happens is in storm_operator.py and storm_clients.py, how it ends in storm_end.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from client_tasks import ClientTasks
from replica_node import Settings
from storm_clients import GROUPS, ORDERED, ORDERED_QUEUES, PLAIN, SHORT, Client, Member, Sender
from storm_excuses import NOT_FLUSHED_S, Again, Loss, LossEvent
from storm_machines import NAME_SERVERS, PACE, STEP_S, NameServer, StormNode
from storm_model import Answer, Message, StormModel
from storm_network import RpcNetwork, Transport

from mq_broker.core.replica_state import BrokerRole
from mq_broker.processor.broker import Broker
from mq_broker.rpc import registration
from mq_broker.store.message_store import FlushDiskType
from mqclient import Admin, MQClientError
from mqclient import message as client_message
from mqclient import transport as client_transport
from mqclient.admin.replicas import BrokerRole as AdminRole
from osenv import SeededRng, SimClock, SimDisk

START_S_MAX = 60.0
MET_S = 1.0  # by then a replica that is connected has heard of its master's clocks


class Machine(StormNode):
    """One of the pair, of which the world hears."""

    world: StormWorld
    power_cut_at: float | None = None  # since it was a master last
    follows_clock: bool = False  # of a master before it, since its machine has started
    connected_since: float = 0.0
    log_generation: int = 1  # of the newest master whose log it has
    has_met: bool = False  # a master, since its machine has started: it knows that one's clocks

    async def lose_power(self) -> None:
        await super().lose_power()
        self.has_met = False

    def start_again(self) -> None:
        """Unless it has been started meanwhile."""
        if not self.is_up:
            self.start()

    def has_opened(self, broker: Broker) -> None:
        self.world.opened(self, broker)

    def set_clock(self, skew_ms: int) -> None:
        """Its wall clock is wrong by so much from now on."""
        before, self.skew_ms = self.skew_ms, skew_ms
        if self.process is not None:
            self.process.clock.step_wall_to(skew_ms)
            self.world.clock_was_set(self, before)


class StormWorld:
    """One history's machines."""

    def __init__(self, rng: SeededRng, settings: Settings) -> None:
        self.rng, self.settings = rng, settings
        self.clock = SimClock()
        self.epoch_s = self.clock.wall_ms() / 1_000
        self.network = RpcNetwork(self.clock, self._new_rng())
        self.tasks = ClientTasks()
        self.model = StormModel(GROUPS)
        self.counts = self.model.counts
        self.nodes = [
            Machine(name, settings, self.clock, self.network, self.tasks, self._new_rng()) for name in ("a", "b")
        ]
        for number, node in enumerate(self.nodes):
            node.world, node.broker_id, node.skew_ms = self, number, 0
        self._draw_clocks()
        self.nodes[0].role = settings.master_role
        self.name_servers = [NameServer(address, self.clock, self.network, self.tasks) for address in NAME_SERVERS]
        self.master = self.nodes[0]  # the newest that there is, or is to be
        self.generation = 1
        self.stints: dict[str, list[tuple[float, int]]] = {"a": [(0.0, 1)], "b": []}
        self.members: list[Member] = []
        self.waiting: list[Message] = []
        self.violations: list[BaseException] = []
        self.is_quiet, self.pace, self.next_number = False, PACE, 1
        self.promoting: Machine | None = None  # without its master
        self.restored: tuple[float, int] | None = None  # since when the copy that comes back may lack anything; its log
        self.term = 1  # of the newest master
        self.clocks_step = False
        self.time_ahead_s = 0.0  # of broker time, as the newest master has it at the least
        self.queues: list[tuple[int, Answer | None]] = [(4, None)]  # of PLAIN for writers; without an answer perhaps
        self._names = 0
        self.sender: Sender
        self.operator: Client
        self.admin: Admin

    def _draw_clocks(self) -> None:
        """Right ones, two that differ for good, or one that is set now and then."""
        kind = self.rng.choice(("right", "right", "differ", "step"))
        self.clocks_step = kind == "step"
        if kind == "differ":
            for node in self.nodes:
                node.skew_ms = self.rng.choice((-30_000, 0, 30_000))
        self.counts[f"storms whose clocks are {kind}"] += 1
        self.time_ahead_s = self.nodes[0].skew_ms / 1_000
        self.model.walls = [(0.0, self.time_ahead_s)]

    def _new_rng(self) -> SeededRng:
        return SeededRng(self.rng.randrange(0, 1 << 60))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The network takes the place of the real one for brokers and clients."""
        storm = SimpleNamespace(load=lambda: self._open_transport)
        with (
            patch.object(registration, "open_wire", self.network.open_wire),
            patch.object(client_transport, "_installed", lambda: {"storm": storm}),
            patch.object(client_message, "os", SimpleNamespace(getpid=lambda: 1)),
        ):
            yield

    def _open_transport(self, name: str) -> Transport:
        addresses = tuple(map(str, NAME_SERVERS))
        return Transport(self.network, self.network.processes[name], addresses, self._new_rng())

    # ------------------------------------------------------------------------------------------------- beginning

    async def open(self) -> None:
        self.tasks.install()
        for server in self.name_servers:
            server.start()
        for node in self.nodes:
            node.start()
        self.operator = Client(self, "op")
        self.admin = Admin(self.operator.url, client_config=self.operator.config)
        await self.finished(self.operator.run(self._prepare()))
        for group in GROUPS:
            for host in ("c1", "c2") if group.strict else ("c2",):
                self.join(group, host)
        self.sender = Sender(self, "p")
        self.sender.start()

    async def _prepare(self) -> None:
        await self.admin.start()
        missing = {PLAIN: 4, ORDERED: ORDERED_QUEUES, SHORT: 2}
        while missing:
            topic, queues = next(iter(missing.items()))
            try:
                await self.admin.update_topic(topic, read_queue_count=queues, write_queue_count=queues)
                del missing[topic]
            except MQClientError:  # they are still starting
                await self.clock.sleep(0.5)

    def join(self, group: Any, host: str) -> Member:
        member = Member(self, host, group)
        self.members.append(member)
        member.start()
        return member

    async def close(self) -> None:
        for client in (*self.members, self.sender, self.operator):
            client.die()
        for node in self.nodes:
            await node.kill()
        for server in self.name_servers:
            server.kill()
        self.tasks.uninstall()

    def new_name(self, host: str) -> str:
        self._names += 1
        return f"{host}#{self._names}"

    # ---------------------------------------------------------------------------------------------- what is so

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def wall_s(self) -> float:
        """Of the right clock."""
        return self.clock.wall_ms() / 1_000

    @property
    def is_synchronous(self) -> bool:
        return self.settings.master_role is BrokerRole.SYNC_MASTER

    @property
    def is_alone(self) -> bool:
        """Whether the master's word does not count as strong: no other replica has to have what it answers for."""
        state = self.master.state
        return not self.is_synchronous or state is None or len(state.in_sync.replicas) < len(self.nodes)

    @property
    def replica(self) -> Machine:
        return next(node for node in self.nodes if node is not self.master)

    def node_at(self, address: str) -> Machine:
        return next(node for node in self.nodes if node.address == address)

    def generation_of(self, address: str, since: float) -> int:
        """What a master's answer belongs to, when it was asked for at that time: the earliest that is possible."""
        stints = self.stints[address.partition(":")[0]]
        known = [generation for at, generation in stints if at <= since]
        return known[-1] if known else stints[0][1]

    def answer_of_master(self, since: float, *, weak: bool) -> Answer:
        """What a master has answered now: it stands somewhere below the end of its log."""
        answers = [
            (node, node.process.broker) for node in self.nodes if node.process is not None and node.process.broker
        ]
        end = max((broker.store.log_end for _, broker in answers if broker.is_master), default=0)
        generation = min(self.generation_of(node.address, since) for node in self.nodes if self.stints[node.name])
        return Answer(self.now, end - 1, generation, strong=not weak)

    @property
    def wanted_role(self) -> AdminRole:
        return AdminRole[self.settings.master_role.name]

    def _note_meetings(self) -> None:
        """A replica that has been connected for a while has had a beat, which tells its master's clocks."""
        for node in self.nodes:
            status = node.broker.replication.status() if node.broker is not None else None
            if status is None or status.role is not BrokerRole.SLAVE or not status.connected:
                node.connected_since = self.now
            else:
                node.log_generation = next(one for one in self.nodes if one is not node).log_generation
            node.has_met |= self.now - node.connected_since >= MET_S

    def opened(self, node: Machine, broker: Broker) -> None:
        """A broker is at work anew: does the history go on with it, and without what?"""
        self.counts["brokers opened"] += 1
        if not broker.is_master:
            return
        self.model.disturbed(Again.HANDED_OVER, self.now, self.now)
        term = broker.replication.epoch.term
        if term < self.term:
            self.counts["stale masters that came back"] += 1
            # What it answers until it follows stands in no other log; it may have lost its tail with its power.
            end, generation = broker.store.log_end, self.generation
            stale = LossEvent(Loss.ASYNC_MASTER, self.now, generation, end, spares_strong=True, since=self.now)
            self.model.losses.append(stale)
            return
        self.counts["masters opened"] += 1
        is_same = node is self.master and term == self.term
        lost_power, node.power_cut_at = node.power_cut_at, None
        if self.restored is not None:
            since, end = self.restored
            self._lose(Loss.RESTORED, end, since=since)
        elif not is_same and node is self.promoting:
            self.counts["promotions without the old master"] += 1
            end = self.model.common_end(node.log_generation, broker.store.log_end)
            self._lose(Loss.ASYNC_MASTER, end, spares_strong=True)
        elif is_same and lost_power is not None and self.settings.flush is FlushDiskType.ASYNC_FLUSH:
            self._lose(Loss.NOT_FLUSHED, broker.store.log_end, since=lost_power - NOT_FLUSHED_S)
        self._note_clock(node, is_promoted=not is_same and self.restored is None, lost_power=lost_power is not None)
        self.counts["planned switches"] += not is_same and node is not self.promoting and self.restored is None
        self.restored = self.promoting = None
        self.master, self.term, node.loses_tail = node, term, False
        node.log_generation = self.generation
        self.stints[node.name].append((self.now, self.generation))

    def _lose(self, why: Loss, log_end: int, *, since: float = 0.0, spares_strong: bool = False) -> None:
        self.generation += 1
        event = LossEvent(why, self.now, self.generation, log_end, spares_strong, since)
        self.model.losses.append(event)

    def has_all(self, node: Machine) -> bool:
        """Whether everything that was answered SEND_OK is there: on a stale master, or a replica that lags, it is
        not.
        """
        if node is self.master or node.state is None or self.master.state is None:
            return node is self.master
        return self.is_synchronous and node.state.replica_id in self.master.state.in_sync.replicas

    def restores(self, node: Machine, disk: SimDisk, since: float, log_end: int) -> None:
        """The node is to begin with this disk, as the master; it has all that was acknowledged before `since`."""
        node.disk, node.role, node.broker_id = disk, self.settings.master_role, 0
        self.restored, self.term = (since, log_end), 0

    def _note_clock(self, node: Machine, *, is_promoted: bool, lost_power: bool) -> None:
        """A promoted replica goes on with its master's clocks, if its machine has met it since it was started."""
        if is_promoted and node.has_met:
            node.follows_clock = True
            return
        if node.follows_clock and not lost_power and not is_promoted and self.restored is None:
            return
        own_s = node.skew_ms / 1_000
        node.follows_clock = is_promoted  # with its own ones, or what it has heard in the last moment
        wall_s = max(own_s, self.model.walls[-1][1]) if is_promoted else own_s
        self.model.walls.append((self.now, wall_s))
        if own_s > self.time_ahead_s:
            self.model.jumps.append((self.now, own_s - self.time_ahead_s))
        self.time_ahead_s = own_s

    def clock_was_set(self, node: Machine, before_ms: int) -> None:
        """The wall clock that counts is that of the master's machine, once it is set, or a replica shows the same."""
        if node is self.master or self.nodes[0].skew_ms == self.nodes[1].skew_ms:
            if node is self.master:
                node.follows_clock = False
            ahead_ms = max(before_ms, self.master.skew_ms)
            self.model.walls.append((self.now, ahead_ms / 1_000))

    # ---------------------------------------------------------------------------------------------------- time

    def note_failure(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violations.append(error)

    async def finished(self, work: asyncio.Task[Any]) -> Any:
        """What the work returns or raises, with time passing meanwhile."""
        while not work.done():
            await self.advance(STEP_S)
        return work.result()

    async def advance(self, seconds: float) -> None:
        """Time passes; then everything is looked at."""
        await self.clock.advance(seconds)
        self.network.keep_alive()
        self._note_meetings()
        for error in (*self.violations, *self.network.errors):
            raise error
        for node in self.nodes:
            if node.process is not None and node.process.error is not None:
                raise node.process.error
            if node.loses_tail and node is not self.master and node.broker is not None:
                leader = self.master.broker
                node.loses_tail = leader is None or node.broker.store.log_end < leader.store.log_end
