"""Name servers and brokers under one name, reached by `fake://name`."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Iterable
from typing import Any

from hourglass.mq.v1 import common_pb2 as common_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.errors import IllegalArgumentError, RequestTimeoutError
from mqclient.testing.fake_broker import FakeBroker
from mqclient.testing.fake_channel import FakeChannel, FakeServer, FakeStream
from mqclient.transport import NameServerSource, methods
from mqproto.names import DEFAULT_TOPIC
from osenv import Clock, Rng, SeededRng, SimClock

_clusters: dict[str, FakeCluster] = {}


class FakeNameServer:
    """Knows the brokers of its cluster that are not down; after `cut_off` what it knew then, for ever."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.down = False
        self.knows_nothing = False  # as after a restart, before the brokers have registered again
        self.silent = False  # takes every request and answers none
        self.uncertain = False  # says so in its answers
        self.away: list[str] = []
        self.asked: list[str] = []
        self.listed = 0  # how often it was asked for all brokers
        self._cluster = cluster
        self._last_known: list[FakeBroker] | None = None  # copies
        self._forgotten: set[str] = set()

    def cut_off(self) -> None:
        """From now on no broker reaches it, and it does not notice."""
        self._last_known = [copy.copy(broker) for broker in self._cluster.brokers.values()]

    def forget(self, broker_name: str) -> None:
        """From now on know no broker of this name."""
        self._forgotten.add(broker_name)

    async def unary(self, path: str, request: Any) -> Any:
        await asyncio.sleep(0)
        if self.silent:
            await asyncio.Event().wait()
        known = [] if self.knows_nothing else self._last_known or list(self._cluster.brokers.values())
        known = [broker for broker in known if broker.name not in self._forgotten]
        living = [broker for broker in known if broker.registered and not broker.down]
        if path == methods.LIST_CLUSTERS.path:
            self.listed += 1
            return name_pb.ListClustersResponse(brokers=_brokers_data(living), uncertain=self.uncertain)
        if path == methods.LIST_TOPICS.path:
            return name_pb.ListTopicsResponse(topics=sorted({topic for broker in living for topic in broker.topics}))
        self.asked.append(request.topic)
        leaders = [siblings[0] for siblings in _by_name(living) if request.topic in siblings[0].topics]
        if not leaders:
            return name_pb.QueryRouteResponse(
                code=common_pb.TOPIC_NOT_EXIST, remark="no such topic", uncertain=self.uncertain, away_brokers=self.away
            )
        names = {leader.name for leader in leaders}
        route = name_pb.TopicRoute(brokers=_brokers_data(broker for broker in living if broker.name in names))
        for leader in leaders:
            config = leader.topics[request.topic]
            route.queues.add(
                broker_name=leader.name,
                read_queue_count=config.read_queue_count,
                write_queue_count=config.write_queue_count,
                perm=config.perm,
            )
        return name_pb.QueryRouteResponse(route=route, uncertain=self.uncertain, away_brokers=self.away)

    def stream_request(self, stream: FakeStream, request: Any) -> None:
        raise RequestTimeoutError(f"a name server has no stream for {stream.path}: {request}")

    def stream_ended(self, stream: FakeStream) -> None:
        """Nothing to forget."""


class FakeCluster:
    """Made by a test; a later one of the same name takes its place."""

    def __init__(self, name: str = "test", *, name_servers: int = 1) -> None:
        self.clock = SimClock()
        self.url = f"fake://{name}"
        self.brokers: dict[str, FakeBroker] = {}
        self.name_servers = {f"name-server-{number}": FakeNameServer(self) for number in range(name_servers)}
        self.name_server_source: NameServerSource | None = None  # when set, clients ask it for the addresses
        self.channels: list[FakeChannel] = []
        self.seeds = itertools.count(1)  # one for each client: producer ids have to differ
        _clusters[name] = self

    @classmethod
    def of(
        cls, *names: str, topic: str | None = "orders", queue_count: int = 4
    ) -> tuple[FakeCluster, list[FakeBroker]]:
        """A cluster with these brokers, which have `topic` unless it is None."""
        cluster = cls()
        brokers = [cluster.add_broker(name) for name in names]
        for broker in brokers if topic else []:
            broker.create_topic(topic or "", queue_count)
        return cluster, brokers

    def add_broker(self, name: str, *, auto_create: bool = True) -> FakeBroker:
        """A broker at `127.0.0.1:<port>`, with the default topic if it creates topics by itself."""
        broker = FakeBroker(name, f"127.0.0.1:{10911 + len(self.brokers)}", self.clock, auto_create=auto_create)
        if auto_create:
            broker.create_topic(DEFAULT_TOPIC, 8)
        self.brokers[broker.address] = broker
        return broker

    def add_replica(self, master: FakeBroker, broker_id: int = 1) -> FakeBroker:
        """A replica of this master, which has what the master has now."""
        replica = self.add_broker(master.name, auto_create=False)
        replica.broker_id = broker_id
        replica.copy_from(master)
        return replica

    def switch(self, master: FakeBroker, replica: FakeBroker) -> None:
        """Let the two change roles: the replica has caught up, and both have started anew in their new roles."""
        replica.copy_from(master)
        self.promote(replica)
        master.broker_id, master.stepped_down = 1, False
        master.break_streams()

    def promote(self, replica: FakeBroker) -> None:
        """Let the replica be the master; the old one is gone, or becomes something else."""
        replica.broker_id, replica.term = 0, 1 + max(broker.term for broker in self.brokers.values())
        replica.break_streams()

    def server(self, address: str) -> FakeServer | None:
        return self.brokers.get(address) or self.name_servers.get(address)


class FakeTransport:
    """Implements `Transport`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.clock: Clock = cluster.clock
        self.rng: Rng = SeededRng(next(cluster.seeds))
        self.local_ip = "10.0.0.1"
        self.name_server_source = cluster.name_server_source
        self.uses_frames = False
        self.name_servers = () if cluster.name_server_source else tuple(cluster.name_servers)
        self._cluster = cluster

    def open_channel(self, address: str) -> FakeChannel:
        channel = FakeChannel(address, self._cluster.server(address), self._cluster.clock)
        self._cluster.channels.append(channel)
        return channel


def open_transport(rest: str) -> FakeTransport:
    """The entry point: `rest` is the name that a test gave its cluster."""
    cluster = _clusters.get(rest)
    if cluster is None:
        raise IllegalArgumentError(f"there is no FakeCluster with the name {rest!r}")
    return FakeTransport(cluster)


def _addresses(broker: FakeBroker) -> dict[int, str]:
    return broker.addresses or {broker.broker_id: broker.address}


def _by_name(brokers: Iterable[FakeBroker]) -> list[list[FakeBroker]]:
    """The brokers of each name, the one with the lowest id first."""
    siblings: dict[str, list[FakeBroker]] = {}
    for broker in sorted(brokers, key=lambda broker: min(_addresses(broker))):
        siblings.setdefault(broker.name, []).append(broker)
    return list(siblings.values())


def _brokers_data(brokers: Iterable[FakeBroker]) -> list[name_pb.BrokerData]:
    """One for each name, with the addresses of all its brokers; and one for each further broker that claims an id."""
    told: list[name_pb.BrokerData] = []
    for siblings in _by_name(brokers):
        own: list[name_pb.BrokerData] = []
        for broker in siblings:
            addresses = _addresses(broker)
            free = next((data for data in own if data.addresses.keys().isdisjoint(addresses)), None)
            if free is None:
                own.append(name_pb.BrokerData(cluster_name="fake", broker_name=broker.name, addresses=addresses))
                own[-1].master_epoch.term = max(sibling.term for sibling in siblings)
            else:
                free.addresses.update(addresses)
        told += own
    return told
