"""Clients' calls on the simulated network of replica_network.py: the production services, reached by mqclient.

A call is a link of its own, from the process that calls to the one that serves, so that whatever happens to links of
replication happens to calls, too: cuts, slow ways, deaths, processes that stand still. Keepalive is as gRPC's.

Invariants: a call whose link ends before its answer has an unknown outcome; one whose link never began was not sent;
what a process serves ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from client_tasks import CLIENT
from replica_network import Link, Network
from sim_process import SimProcess

from mq_broker.embedded.embedded_broker import AbortedCallError
from mq_broker.replication.frames import LinkError, MasterLink
from mq_broker.rpc.name_server_wire import WireError
from mqclient.errors import BrokerUnreachableError, ConnectionLostError, MQClientError, RequestTimeoutError
from mqclient.transport import Method
from osenv import Rng, SeededRng, SimClock
from osenv.clock import timeout

KEEPALIVE_S = 25.0  # docs/guides/guarantees.md: so long a peer may give no answer
LOOK_S = 1.0
ANSWER_END = object()  # the servicer's method has returned


@dataclass(frozen=True, slots=True)
class Call:
    """The first frame of a link; a stream has no request."""

    path: str
    request: Any
    peer: str


class _Context:
    """What a servicer sees of its caller."""

    def __init__(self, link: MasterLink, peer: str) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self._link, self._peer = link, peer
        self._callbacks: list[Callable[[Any], None]] = []

    async def read(self) -> Any:
        return await self.requests.get()

    async def write(self, response: Any) -> None:
        try:
            await self._link.send(response)
        except LinkError:
            raise asyncio.CancelledError from None  # as gRPC does to a call whose peer is gone

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        while self._callbacks:
            self._callbacks.pop()(self)

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedCallError(code, details)


class Services:
    """What one process serves at one address: services by their names. `failed` hears what no call may raise."""

    def __init__(self, services: Mapping[str, Any], failed: Callable[[Exception], None]) -> None:
        self._services, self._failed = services, failed

    async def serve(self, link: Any) -> None:
        """One call, from its first frame to its end."""
        call = await link.receive()
        if not isinstance(call, Call):
            return
        service, _, name = call.path.rpartition("/")
        method = getattr(self._services[service.rpartition(".")[2]], name)
        context = _Context(link, call.peer)
        work = asyncio.create_task(method(call.request, context), name=call.path)
        reading = asyncio.create_task(_read_all(link, context.requests), name=f"requests of {call.path}")
        try:
            await asyncio.wait((work, reading), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not reading.exception():
                await asyncio.wait((work,))
            if work.done() and not work.cancelled():
                await self._answer(link, call, work)
        finally:
            for task in (work, reading):
                task.cancel()
            await asyncio.gather(work, reading, return_exceptions=True)
            context.end()

    async def _answer(self, link: Any, call: Call, work: asyncio.Task[Any]) -> None:
        error = work.exception()
        if error is None:
            await link.send(ANSWER_END if call.request is None else work.result())
        elif isinstance(error, AbortedCallError):
            await link.send(error.as_client_error())
        elif isinstance(error, Exception):
            self._failed(error)


async def _read_all(link: Any, requests: asyncio.Queue[Any]) -> None:
    """Hand on what comes; returns at an orderly end. Raises LinkError."""
    while (request := await link.receive()) is not None:
        requests.put_nowait(request)
    requests.put_nowait(grpc.aio.EOF)


class Channel:
    """Implements `mqclient.transport.Channel`."""

    def __init__(self, network: RpcNetwork, process: SimProcess, address: str) -> None:
        self._network, self._process, self._address = network, process, address
        self._streams: list[RpcStream] = []

    async def unary(self, method: Method[Any, Any], request: Any, timeout_s: float) -> Any:
        try:
            async with timeout(self._process.clock, timeout_s):
                return await self._ask(method.path, request)
        except TimeoutError as error:
            raise RequestTimeoutError(f"{method.path}: no answer within {timeout_s:g} s") from error

    async def _ask(self, path: str, request: Any) -> Any:
        link: Any = await self._network.begin(self._process, self._address)
        reason = "the call was given up"
        try:
            await link.up.send(Call(path, request, self._process.name))
            answer: Any = await link.down.receive()
            reason = ""
        except LinkError as error:
            raise ConnectionLostError(f"{self._address}: {error}") from error
        finally:
            if self._process.is_alive:
                link.end(self._process, reason)
        if answer is None:
            raise ConnectionLostError(f"{self._address} has ended the call")
        if isinstance(answer, MQClientError):
            raise answer
        return answer

    def stream(self, method: Method[Any, Any]) -> RpcStream:
        self._streams = [one for one in self._streams if not one.is_over]
        stream = RpcStream(self._network, self._process, self._address, method.path)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        for stream in self._streams:
            stream.cancel()


class RpcStream:
    """Implements `mqclient.transport.Stream`."""

    def __init__(self, network: RpcNetwork, process: SimProcess, address: str, path: str) -> None:
        self._process, self._address = process, address
        self._opened = asyncio.ensure_future(self._open(network, path))
        self._opened.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._link: Link | None = None
        self._end: MQClientError | object | None = ANSWER_END
        self.is_over = False

    async def _open(self, network: RpcNetwork, path: str) -> Any:
        link: Any = await network.begin(self._process, self._address)
        self._link = link
        await link.up.send(Call(path, None, self._process.name))
        return link

    async def write(self, request: Any) -> None:
        link = await self._opened_link()
        try:
            await link.up.send(request)
        except LinkError as error:
            raise ConnectionLostError(f"{self._address}: {error}") from error

    async def read(self) -> Any:
        link = await self._opened_link()
        if self.is_over and self._end is not ANSWER_END:
            return self._ended()
        try:
            answer: Any = await link.down.receive()
        except LinkError as error:
            answer = ConnectionLostError(f"{self._address}: {error}")
        if answer is None:
            answer = ConnectionLostError(f"{self._address} is gone")
        if answer is ANSWER_END or isinstance(answer, MQClientError):
            self._end = None if answer is ANSWER_END else answer
            self._leave("")
            return self._ended()
        return answer

    def _ended(self) -> None:
        if isinstance(self._end, MQClientError):
            raise self._end

    async def _opened_link(self) -> Any:
        try:
            return await asyncio.shield(self._opened)
        except LinkError as error:
            raise ConnectionLostError(f"{self._address}: {error}") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionLostError("the stream was given up") from None

    async def done_writing(self) -> None:
        if self._link is not None:
            self._link.up.close()

    def cancel(self) -> None:
        self._opened.cancel()
        self._leave("the stream was given up")

    def _leave(self, reason: str) -> None:
        if not self.is_over and self._link is not None and self._process.is_alive:
            self._link.end(self._process, reason)
        self.is_over = True


class Transport:
    """Implements `mqclient.transport.Transport`: the network as one process sees it."""

    def __init__(self, network: RpcNetwork, process: SimProcess, name_servers: tuple[str, ...], rng: Rng) -> None:
        self.clock, self.rng = process.clock, rng
        self.local_ip = "127.0.0.1"
        self.name_servers = name_servers
        self.name_server_source, self.uses_frames = None, False
        self._network, self._process = network, process

    def open_channel(self, address: str) -> Channel:
        return Channel(self._network, self._process, address)


class RpcNetwork(Network):
    """All machines of one storm."""

    def __init__(self, clock: SimClock, rng: SeededRng) -> None:
        super().__init__(clock, rng)
        self.processes: dict[str, SimProcess] = {}  # those that call, by name
        self._silent_since: dict[Link, float] = {}
        self._look_at = 0.0

    async def begin(self, process: SimProcess, address: str) -> Link:
        """A link for one call. Raises BrokerUnreachableError."""
        try:
            return await self.open(process, address)
        except LinkError as error:
            raise BrokerUnreachableError(str(error)) from error

    def keep_alive(self) -> None:
        """End what has been silent for too long, for both ends."""
        if self.now < self._look_at:
            return
        self._look_at = self.now + LOOK_S
        silent = {link for link in self.links if not link.is_over and not self._answers(link)}
        self._silent_since = {link: self._silent_since.get(link, self.now) for link in self.links if link in silent}
        for link, since in self._silent_since.items():
            if self.now - since >= KEEPALIVE_S:
                for process in (link.replica, link.master):
                    if process.is_alive and process.node not in link.ended_by:
                        process.wake(lambda link=link, process=process: link.end(process, "no answer to pings"))  # type: ignore[misc]

    def _answers(self, link: Link) -> bool:
        processes = (link.replica, link.master)
        return (
            all(process.is_alive and not getattr(process, "is_stopped", False) for process in processes)
            and not any(self.is_cut(pipe.way) or pipe.is_lost for pipe in (link.up, link.down))
        )  # fmt: skip

    @asynccontextmanager
    async def open_wire(self, address: object, ended: Callable[[], None]) -> AsyncIterator[NameServerWire]:
        """Takes the place of `mq_broker.rpc.name_server_wire.open_wire`."""
        channel = Channel(self, self.processes[CLIENT.get()], str(address))
        wire = NameServerWire(channel, ended)
        try:
            yield wire
        finally:
            wire.close()
            await channel.close()


NAME_SERVICE = "/hourglass.mq.v1.NameService"


class NameServerWire:
    """Implements `mq_broker.rpc.name_server_wire.Wire`."""

    def __init__(self, channel: Channel, ended: Callable[[], None]) -> None:
        self._channel = channel
        self._stream = channel.stream(Method(f"{NAME_SERVICE}/RegisterBroker", Any, Any))
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read())
        self._reading.add_done_callback(lambda _reading: ended())

    async def _read(self) -> None:
        try:
            while (answer := await self._stream.read()) is not None:
                self._answers.put_nowait(answer)
            self._answers.put_nowait(None)
        except MQClientError as error:
            self._answers.put_nowait(WireError(str(error)))

    async def register(self, request: Any) -> Any:
        try:
            await self._stream.write(request)
        except MQClientError as error:
            raise WireError(str(error)) from error
        answer = await self._answers.get()
        if isinstance(answer, WireError):
            raise answer
        return answer

    async def unregister(self, request: Any, timeout_s: float) -> None:
        method: Any = Method(f"{NAME_SERVICE}/UnregisterBroker", Any, Any)
        try:
            await self._channel.unary(method, request, timeout_s)
        except MQClientError as error:
            raise WireError(str(error)) from error

    def close(self) -> None:
        self._reading.cancel()
        self._stream.cancel()
