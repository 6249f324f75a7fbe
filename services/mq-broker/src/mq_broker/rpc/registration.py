"""Registration with every name server: one stream to each, kept open; the stream is the sign of life (MISSION N2).

Invariants: each name server that can be reached hears of changed topics at once, and of us at least every period; one
that cannot be reached troubles nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from hourglass.mq.v1 import name_service_pb2 as pb
from hourglass.mq.v1 import name_service_pb2_grpc
from mq_broker.core.identity import BrokerIdentity
from mq_broker.core.topics import TopicTable
from mq_broker.rpc.conversions import topic_config_message
from mqproto.address import Address
from mqproto.grpc_options import CHANNEL_OPTIONS
from osenv import Clock
from osenv.clock import timeout

log = logging.getLogger(__name__)

RECONNECT_S = (0.2, 0.5, 1.0, 2.0)
ANNOUNCE_TIMEOUT_S = 3.0
UNREGISTER_TIMEOUT_S = 1.0


@dataclass
class Registration:
    """Our registration at all name servers."""

    identity: BrokerIdentity
    topics: TopicTable
    name_servers: Sequence[Address]
    clock: Clock
    period_s: float
    _links: list[_Link] = field(default_factory=list)

    async def run(self) -> None:
        """Stay registered until cancelled; then say good-bye."""
        self._links = [_Link(self, address) for address in self.name_servers]
        self.topics.on_change(self._changed)
        try:
            await asyncio.gather(*(link.run() for link in self._links))
        finally:
            await asyncio.gather(*(link.unregister() for link in self._links), return_exceptions=True)

    async def announce(self) -> None:
        """Return when every name server that is connected knows the topics as they are now, or after 3 s."""
        version = self.topics.data_version
        try:
            async with timeout(self.clock, ANNOUNCE_TIMEOUT_S):
                await asyncio.gather(*(link.known(version) for link in self._links if link.connected))
        except TimeoutError:
            log.warning("a name server has not confirmed the topics within %s s", ANNOUNCE_TIMEOUT_S)

    def request(self) -> pb.RegisterBrokerRequest:
        """The whole registration."""
        return pb.RegisterBrokerRequest(
            broker=identity_message(self.identity),
            topics=[topic_config_message(config) for config in self.topics.all()],
            data_version=self.topics.data_version,
        )

    def _changed(self) -> None:
        for link in self._links:
            link.beat.set()


class _Link:
    """One name server."""

    def __init__(self, registration: Registration, address: Address) -> None:
        self._registration = registration
        self._address = address
        self._known = asyncio.Condition()
        self._known_version = -1
        self.beat = asyncio.Event()
        self.connected = False

    async def known(self, version: int) -> None:
        """Return when this name server has confirmed `version` of the topics, or the link is gone."""
        async with self._known:
            await self._known.wait_for(lambda: self._known_version >= version or not self.connected)

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                async with grpc.aio.insecure_channel(str(self._address), options=CHANNEL_OPTIONS) as channel:
                    await self._register(name_service_pb2_grpc.NameServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                failures = 0 if self.connected else failures + 1
                if failures <= 1:
                    log.warning("name server %s: %s", self._address, error.details())
            finally:
                await self._tell(connected=False)
            await self._registration.clock.sleep(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])

    async def unregister(self) -> None:
        """The polite way out."""
        if not self.connected and self._known_version < 0:
            return
        async with grpc.aio.insecure_channel(str(self._address), options=CHANNEL_OPTIONS) as channel:
            await name_service_pb2_grpc.NameServiceStub(channel).UnregisterBroker(
                pb.UnregisterBrokerRequest(broker=identity_message(self._registration.identity)),
                timeout=UNREGISTER_TIMEOUT_S,
            )

    async def _register(self, stub: Any) -> None:
        clock, call = self._registration.clock, stub.RegisterBroker()
        call.add_done_callback(lambda _call: self.beat.set())
        try:
            while True:
                request = self._registration.request()
                self.beat.clear()
                with contextlib.suppress(asyncio.InvalidStateError):  # the stream has ended; the read says how
                    await call.write(request)
                response = await call.read()
                if response is grpc.aio.EOF:
                    log.warning("name server %s has ended the registration", self._address)
                    return
                if not self.connected:
                    log.info("registered with name server %s", self._address)
                await self._tell(connected=True, version=request.data_version)
                await self._wait_for_beat(clock)
        finally:
            call.cancel()

    async def _wait_for_beat(self, clock: Clock) -> None:
        """Until the period is over, the topics have changed, or the stream is gone."""
        timer = clock.call_later(self._registration.period_s, self.beat.set)
        try:
            await self.beat.wait()
        finally:
            timer.cancel()

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
