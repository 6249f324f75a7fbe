"""Channels and streams that end in a Python object instead of a network, and the sessions of a fake broker."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.errors import BrokerUnreachableError, ConnectionLostError, MQClientError, RequestTimeoutError
from mqclient.transport import Method, RequestT, ResponseT
from osenv import Clock
from osenv.clock import timeout


class FakeServer(Protocol):
    """What stands at an address."""

    down: bool

    async def unary(self, path: str, request: Any) -> Any: ...

    def stream_request(self, stream: FakeStream, request: Any) -> None: ...

    def stream_ended(self, stream: FakeStream) -> None: ...


class FakeChannel:
    """Implements `Channel`. `server` serves the address; None when nothing listens there."""

    def __init__(self, address: str, server: FakeServer | None, clock: Clock) -> None:
        self.closed = False
        self.address = address
        self._server = server
        self._clock = clock
        self._streams: list[FakeStream] = []

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        await asyncio.sleep(0)
        server = self._server
        if server is None or server.down:
            raise BrokerUnreachableError(f"{self.address}: nothing listens")
        try:
            async with timeout(self._clock, timeout_s):
                response: ResponseT = await server.unary(method.path, request)
                return response
        except TimeoutError:
            raise RequestTimeoutError(f"{self.address} did not answer within {timeout_s:g} s") from None

    def stream(self, method: Method[RequestT, ResponseT]) -> FakeStream:
        stream = FakeStream(self.address, method.path, self._server)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        self.closed = True
        for stream in self._streams:
            stream.cancel()


class FakeStream:
    """Implements `Stream`; the server puts its answers in with `answer`."""

    def __init__(self, address: str, path: str, server: FakeServer | None) -> None:
        self.path = path
        self._address = address
        self._server = server
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._end: MQClientError | None = None
        self._ended = False
        if server is None or server.down:
            self._finish(BrokerUnreachableError(f"{address}: nothing listens"))

    async def write(self, request: Any) -> None:
        await asyncio.sleep(0)
        if self._ended or self._server is None:
            raise self._end or ConnectionLostError(f"{self._address}: the stream has ended")
        self._server.stream_request(self, request)

    async def read(self) -> Any:
        if self._ended and self._answers.empty():
            if self._end is not None:
                raise self._end
            return None
        answer = await self._answers.get()
        if isinstance(answer, MQClientError):
            raise answer
        return answer

    async def done_writing(self) -> None:
        self._finish(None)

    def cancel(self) -> None:
        self._finish(ConnectionLostError(f"{self._address}: the stream was given up"))

    def answer(self, response: Any) -> None:
        """From the server: the next answer."""
        if not self._ended:
            self._answers.put_nowait(response)

    def break_off(self) -> None:
        """From the test: the connection is gone."""
        self._finish(ConnectionLostError(f"{self._address}: the connection broke"))

    def _finish(self, error: MQClientError | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._end = error
        self._answers.put_nowait(error)
        if self._server is not None:
            self._server.stream_ended(self)


class FakeSessions:
    """By stream. The attributes without underscore are the test's to read and to set."""

    def __init__(self) -> None:
        self.heartbeats: list[broker_pb.Heartbeat] = []
        self.answer = broker_pb.HeartbeatAck()  # to a heartbeat that names a consumer, and success to others
        self.command_answers: list[broker_pb.CommandAnswer] = []
        self._members: dict[FakeStream, broker_pb.Heartbeat] = {}

    def request(self, stream: FakeStream, request: broker_pb.SessionRequest, *, silent: bool) -> None:
        """What comes up a session: a heartbeat, or the answer to a command."""
        if request.WhichOneof("event") == "command_answer":
            self.command_answers.append(request.command_answer)
        else:
            self._heartbeat(stream, request.heartbeat, silent=silent)

    def tell(self, command: broker_pb.SessionResponse) -> None:
        """Send the command down every session that is open."""
        for stream in list(self._members):
            stream.answer(command)

    def _heartbeat(self, stream: FakeStream, heartbeat: broker_pb.Heartbeat, *, silent: bool) -> None:
        """Take the client's word, unless `answer` rejects it; tell the members of every group that has changed."""
        self.heartbeats.append(heartbeat)
        if heartbeat.consumers and self.answer.code != common_pb.SUCCESS:
            stream.answer(broker_pb.SessionResponse(heartbeat_ack=self.answer))
            return
        before = _groups(self._members.get(stream))
        self._members[stream] = heartbeat
        if not silent:
            stream.answer(broker_pb.SessionResponse(heartbeat_ack=broker_pb.HeartbeatAck()))
            self.notify(before ^ _groups(heartbeat))

    def ended(self, stream: FakeStream) -> None:
        """The client has left, or its connection is gone."""
        self.notify(_groups(self._members.pop(stream, None)))

    def consumers(self, group: str) -> list[str]:
        """The client ids of the group's members, sorted."""
        return sorted(heartbeat.client_id for heartbeat in self._members.values() if group in _groups(heartbeat))

    def connections(self, group: str) -> list[tuple[str, broker_pb.ConsumerData]]:
        """The members of the group, sorted, each with what it last said of itself."""
        return sorted(
            (
                (heartbeat.client_id, data)
                for heartbeat in self._members.values()
                for data in heartbeat.consumers
                if data.group == group
            ),
            key=lambda member: member[0],
        )

    def producer_groups(self) -> list[str]:
        """Of all members, sorted."""
        return sorted(producer.group for heartbeat in self._members.values() for producer in heartbeat.producers)

    def producer_streams(self, group: str) -> list[FakeStream]:
        """The ways down to the members of the producer group."""
        return [
            stream
            for stream, heartbeat in self._members.items()
            if any(producer.group == group for producer in heartbeat.producers)
        ]

    def notify(self, groups: set[str]) -> None:
        """Tell the members that a member came or went, or gave queues back."""
        for stream, heartbeat in list(self._members.items()):
            for group in sorted(groups & _groups(heartbeat)):
                changed = broker_pb.ConsumerIdsChanged(group=group)
                stream.answer(broker_pb.SessionResponse(consumer_ids_changed=changed))


def _groups(heartbeat: broker_pb.Heartbeat | None) -> set[str]:
    return {consumer.group for consumer in heartbeat.consumers} if heartbeat is not None else set()
