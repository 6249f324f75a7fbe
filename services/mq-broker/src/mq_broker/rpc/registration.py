"""Registration with every name server: one stream to each, kept open; the stream is the sign of life (mechanism N2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from hourglass.mq.v1 import common_pb2
from hourglass.mq.v1 import name_service_pb2 as pb
from mq_broker.core.limits import REGISTRATION_TOPICS_MAX
from mq_broker.core.replica_state import MASTER_ID, NO_EPOCH, BrokerIdentity, Epoch
from mq_broker.core.topics import Topics, TopicsPart, TopicTable, parts
from mq_broker.rpc.name_server_wire import Wire, WireError, open_wire
from mq_broker.rpc.replication_conversions import epoch_message, epoch_of
from mq_broker.store.errors import StoreError
from mqproto.grpc_options import CHANNEL_OPTIONS, FRAME_BYTES_MAX
from mqproto.names import Address
from mqproto.values import to_message
from osenv import Clock, Rng
from osenv.clock import timeout

log = logging.getLogger(__name__)

RECONNECT_S = (0.2, 0.5, 1.0, 2.0)
ANNOUNCE_TIMEOUT_S = 3.0
UNREGISTER_TIMEOUT_S = 2.0
TOPIC_OVERHEAD_BYTES = 32  # of a topic in a request, beside its name
OTHER_FIELDS_BYTES = 64 * 1024  # of a registration, beside its topics
REPLICA_PERIOD_S_MAX = 2.0  # how soon a replica hears that there is a new master, and where it listens
SEEKING_PERIOD_S_MAX = 0.2  # while no name server knows one: master and replica are often started together

Superseded = Callable[[Epoch, str], Awaitable[None]]


async def _is_known() -> None:
    """Ignore a name server's acceptance."""


async def _not_expected(epoch: Epoch, ha_address: str) -> None:
    log.warning("unexpected answer of a name server: epoch %s has a master at %r", epoch, ha_address)


@dataclass(frozen=True, slots=True)
class HaTerms:
    """The replication state that a broker registers, and the callbacks for what name servers answer.

    `ha_address` is where it listens for replicas, "" when it does not; `epoch` the newest that it has accepted.
    `master_found` is told where a replica's master listens, with each answer; `superseded` that another master of our
    name has a higher epoch, and where that one listens, "" when that is not known. A master that `is_restored` is told
    by `accepted` and `rejected` whether a name server takes it as the master.
    """

    ha_address: str = ""
    epoch: Callable[[], Epoch] = lambda: NO_EPOCH
    master_found: Callable[[str], None] = lambda _ha_address: None
    superseded: Superseded = _not_expected
    is_restored: Callable[[], bool] = lambda: False
    accepted: Callable[[], Awaitable[None]] = _is_known
    rejected: Callable[[str], None] = lambda _remark: None


@dataclass
class Registration:
    """Our registration at all name servers.

    Invariants: each name server that can be reached hears of changed topics at once, and of us at least every period;
    one that cannot be reached delays no other; the broker unregisters at one that leaves the configuration. On each
    stream a name server is told all topics once and then what has changed, in requests of at most
    `REGISTRATION_TOPICS_MAX` topics each, so that any number of topics registers (ADR 98). What an answer says about
    the master of our name goes to the callbacks of `HaTerms`.
    """

    identity: BrokerIdentity
    topics: TopicTable
    name_servers: Sequence[Address]
    clock: Clock
    period_s: float
    ha: HaTerms = field(default_factory=HaTerms)
    frames_address: str = ""  # where clients reach this broker by frames
    _links: dict[Address, _Link] = field(default_factory=dict)
    _reconfigured: asyncio.Event = field(default_factory=asyncio.Event)
    _is_seeking: bool = False  # a replica whose master no name server knows

    async def run(self) -> None:
        """Stay registered until cancelled; then unregister everywhere, before the streams end."""
        self.topics.on_change(self._changed)
        try:
            while True:
                self._reconfigured.clear()
                await self._follow_configuration()
                reconfigured = asyncio.create_task(self._reconfigured.wait(), name="name servers")
                try:
                    tasks = {link.task for link in self._links.values()}
                    done, _ = await asyncio.wait({reconfigured, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                    for task in done & tasks:
                        task.result()  # a link ends only by an unexpected error
                finally:
                    reconfigured.cancel()
        finally:
            await asyncio.gather(*(link.leave() for link in self._links.values()))

    def reconfigure(self, name_servers: Sequence[Address], period_s: float) -> None:
        """Be registered with these from now on, and no more with others."""
        self.name_servers, self.period_s = name_servers, period_s
        self._reconfigured.set()
        self._changed()  # the next period is the new one

    async def announce(self) -> None:
        """Return when every name server that is connected knows the topics as they are now, or after 3 s."""
        version = self.topics.data_version
        try:
            async with timeout(self.clock, ANNOUNCE_TIMEOUT_S):
                await asyncio.gather(*(link.known(version) for link in self._links.values() if link.connected))
        except TimeoutError:
            log.warning("a name server has not confirmed the topics within %s s", ANNOUNCE_TIMEOUT_S)

    def request(self, part: TopicsPart, version: int) -> pb.RegisterBrokerRequest:
        """A request that tells this part of the topics, which are those of data version `version`."""
        return pb.RegisterBrokerRequest(
            broker=identity_message(self.identity),
            topics=[to_message(common_pb2.TopicConfig, one) for one in part.changed],
            deleted_topics=part.deleted,
            adds=part.adds,
            more_follows=part.more_follows,
            data_version=version,
            ha_address=self.ha.ha_address,
            epoch=epoch_message(self.ha.epoch()),
            restored=self.ha.is_restored(),
            frames_address=self.frames_address,
        )

    async def answered(self, response: pb.RegisterBrokerResponse) -> None:
        """Pass on what a name server knows of the master of our name."""
        if response.code == common_pb2.NOT_LEADER_FOR_QUEUE:
            self.ha.rejected(response.remark)
            await self._superseded(response)
        elif self.ha.is_restored():
            await self._accepted()
        elif self._is_replica:
            self._is_seeking = not response.ha_address
            if response.ha_address:
                self.ha.master_found(response.ha_address)

    @property
    def pause_s(self) -> float:
        """From one registration to the next."""
        if not self._is_replica:
            return min(self.period_s, REPLICA_PERIOD_S_MAX) if self.ha.is_restored() else self.period_s
        return min(self.period_s, SEEKING_PERIOD_S_MAX if self._is_seeking else REPLICA_PERIOD_S_MAX)

    @property
    def _is_replica(self) -> bool:
        return self.identity.broker_id != MASTER_ID

    async def _accepted(self) -> None:
        try:
            await self.ha.accepted()
        except (StoreError, OSError) as error:
            log.warning("that this broker is the master could not be written down: %s; asked again later", error)

    async def _superseded(self, response: pb.RegisterBrokerResponse) -> None:
        try:
            epoch = epoch_of(response.master_epoch)
        except ValueError as error:
            log.warning("a name server has rejected us, and its answer makes no sense: %s", error)
            return
        try:
            await self.ha.superseded(epoch, response.ha_address)
        except (StoreError, OSError) as error:
            log.warning(
                "that epoch %s has another master could not be written down: %s; asked again later", epoch, error
            )

    async def _follow_configuration(self) -> None:
        left = [self._links.pop(address) for address in [*self._links] if address not in self.name_servers]
        await asyncio.gather(*(link.leave() for link in left))
        for address in self.name_servers:
            if address not in self._links:
                self._links[address] = _Link(self, address)

    def _changed(self) -> None:
        for link in self._links.values():
            link.beat.set()


class _Link:
    """One name server: its task keeps the registration there until `leave`."""

    def __init__(self, registration: Registration, address: Address) -> None:
        self._registration = registration
        self._address = address
        self._known = asyncio.Condition()
        self._known_version = -1
        self._wire: Wire | None = None  # while there is a connection
        self._may_be_known = False  # a registration went out on the stream that is open, confirmed or not
        self._told: Topics | None = None  # the topics that the name server knows from the stream that is open
        self._takes_parts = True  # until an answer on this stream says otherwise
        self._left_out = 0
        self._rejection = ""  # the last one, if the registration is rejected
        self.beat = asyncio.Event()
        self.connected = False
        self.task = asyncio.create_task(self._run(), name=f"registration with {address}")

    async def known(self, version: int) -> None:
        """Return when this name server has confirmed `version` of the topics, or the link is gone."""
        async with self._known:
            await self._known.wait_for(lambda: self._known_version >= version or not self.connected)

    async def leave(self) -> None:
        """Unregister, if we may be registered, and end the stream."""
        if self._may_be_known and self._wire is not None:
            request = pb.UnregisterBrokerRequest(broker=identity_message(self._registration.identity))
            try:
                await self._wire.unregister(request, UNREGISTER_TIMEOUT_S)
            except WireError as error:
                log.warning("name server %s was not told that we leave: %s", self._address, error)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with open_wire(self._address, self.beat.set) as wire:
                    self._wire = wire
                    await self._register(wire)
            except WireError as error:
                failures = 0 if self.connected else failures + 1
                if failures <= 1:
                    log.warning("name server %s: %s", self._address, error)
            finally:
                self._wire = None
                await self._tell(connected=False)
            await self._registration.clock.sleep(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])

    async def _register(self, wire: Wire) -> None:
        clock = self._registration.clock
        self._told, self._takes_parts = None, True
        try:
            while True:
                self.beat.clear()
                version = self._registration.topics.data_version
                response = await self._tell_topics(wire, version)
                if response is None:
                    log.warning("name server %s has ended the registration", self._address)
                    return
                self._log(response)
                await self._tell(connected=True, version=version)
                await self._registration.answered(response)
                await self._wait_for_beat(clock)
        finally:
            self._may_be_known = False

    async def _tell_topics(self, wire: Wire, version: int) -> pb.RegisterBrokerResponse | None:
        """Register with the topics as they are now; the answer, None when the stream has ended."""
        topics = self._registration.topics.by_name()
        response = None
        for part in parts(self._told, topics) if self._takes_parts else ():
            response = await self._ask(wire, part, version)
            if response is None:
                return None
            if part.more_follows and not response.takes_parts:
                break
        if response is None or not response.takes_parts:
            self._takes_parts = False
            if response is None or len(topics) > REGISTRATION_TOPICS_MAX:
                return await self._ask(wire, self._whole(topics), version)
        self._told = None if response.topics_left_out or not response.takes_parts else topics
        return response

    async def _ask(self, wire: Wire, part: TopicsPart, version: int) -> pb.RegisterBrokerResponse | None:
        self._may_be_known = True
        return await wire.register(self._registration.request(part, version))

    def _whole(self, topics: Topics) -> TopicsPart:
        """All topics for a name server of an earlier version, as far as one request has room for them."""
        fitting, size = [], 0
        for config in map(topics.__getitem__, sorted(topics)):
            size += len(config.topic) + TOPIC_OVERHEAD_BYTES
            if size > FRAME_BYTES_MAX - OTHER_FIELDS_BYTES:
                break
            fitting.append(config)
        if (left_out := len(topics) - len(fitting)) != self._left_out:
            self._left_out = left_out
            if left_out:
                log.warning(
                    "name server %s is of an earlier version, which takes %d of %d topics; the others have no route "
                    "there until it is upgraded",
                    self._address,
                    len(fitting),
                    len(topics),
                )
        return TopicsPart(fitting, [], adds=False, more_follows=False)

    async def _wait_for_beat(self, clock: Clock) -> None:
        """Until the period is over, the topics have changed, or the stream is gone."""
        timer = clock.call_later(self._registration.pause_s, self.beat.set)
        try:
            await self.beat.wait()
        finally:
            timer.cancel()

    def _log(self, response: pb.RegisterBrokerResponse) -> None:
        if response.code != common_pb2.SUCCESS:
            if response.remark != self._rejection:
                log.warning("name server %s has rejected the registration: %s", self._address, response.remark)
            self._rejection = response.remark
            return
        self._rejection = ""
        if response.topics_left_out != self._left_out and response.takes_parts:
            self._left_out = response.topics_left_out
            if self._left_out:
                log.warning("name server %s: %s", self._address, response.remark)
        if not self.connected:
            log.info("registered with name server %s", self._address)

    async def _tell(self, *, connected: bool, version: int = -1) -> None:
        async with self._known:
            self.connected, self._known_version = connected, version
            self._known.notify_all()


def identity_message(identity: BrokerIdentity) -> pb.BrokerIdentity:
    return pb.BrokerIdentity(
        cluster_name=identity.cluster_name,
        broker_name=identity.broker_name,
        broker_id=identity.broker_id,
        address=identity.address,
    )


TIMEOUT_S = 2.0


class SelfCheck:
    """Whether the address that clients are told leads to this very process.

    The process answers health checks of a service that no other process has: its name holds a random number. A process
    that answers for it at the advertised address is this one, whatever lies between: a port mapping, a proxy, a name.
    """

    def __init__(self, rng: Rng) -> None:
        self._mark = f"hourglass.process.{rng.randbytes(16).hex()}"

    async def leave_mark(self, health_service: health.aio.HealthServicer) -> None:
        """Have the process's health service answer for the mark."""
        await health_service.set(self._mark, health_pb2.HealthCheckResponse.SERVING)

    async def problem(self, address: Address) -> str | None:
        """Why `address` does not lead here, as the end of a sentence; None when it does. Takes 2 s at most."""
        request = health_pb2.HealthCheckRequest(service=self._mark)
        async with grpc.aio.insecure_channel(str(address), options=CHANNEL_OPTIONS) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S, wait_for_ready=False)
            except grpc.aio.AioRpcError as error:
                return _sentence(error)
        return None


def _sentence(error: grpc.aio.AioRpcError) -> str:
    status = error.code()
    if status is grpc.StatusCode.NOT_FOUND:
        return "another process answers there"
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return "something else than a broker answers there"
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"nothing answers there within {TIMEOUT_S:g} s"
    return f"nothing answers there: {error.details()}"
