"""The long polls of all queues of one broker, on as few streams as take them; every answer names its request.

A stream opens at first use, and again after it broke.

Invariants: a stream has POLLS_PER_STREAM polls at most; every poll ends: with an answer, an error, or when its caller
is cancelled, and then the broker is told to forget it. An answer future belongs to exactly one opened stream; when that
stream breaks, all its unanswered futures fail with the error that broke it, and the next request opens a new stream.
Only the writer task touches a stream, so that a cancelled caller cannot break the polls of the others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.errors import ConnectionLostError, MQClientError, RequestTimeoutError
from mqclient.lifecycle import BackgroundTasks
from mqclient.message import QUEUES_PER_REQUEST_MAX
from mqclient.transport import Channel, Method, RequestT, ResponseT, Stream
from mqclient.transport.methods import POLL
from osenv import Clock

Waiter = asyncio.Future[broker_pb.PollResponse]
LeftOut = Callable[[broker_pb.GroupProgress], None]

POLLS_PER_STREAM = 8_192  # half of what a broker allows: it may not have forgotten yet what was cancelled here


class _Opened(Generic[RequestT, ResponseT]):
    """One stream and its unanswered polls."""

    def __init__(self, stream: Stream[RequestT, ResponseT]) -> None:
        self.stream = stream
        self.answers: dict[int, asyncio.Future[ResponseT]] = {}


class RequestStream(Generic[RequestT, ResponseT]):
    """Requests to `address` by `method`, matched to their answers by `answer_id`."""

    def __init__(
        self,
        address: str,
        channel: Channel,
        method: Method[RequestT, ResponseT],
        answer_id: Callable[[ResponseT], int],
        tasks: BackgroundTasks,
        *,
        told: Callable[[ResponseT], None] = lambda _: None,
    ) -> None:
        """`told` gets what comes without having been asked for, with 0 as its answer id."""
        self._told = told
        self._address = address
        self._channel = channel
        self._method = method
        self._answer_id = answer_id
        self._tasks = tasks
        self._opened: _Opened[RequestT, ResponseT] | None = None

    async def send(self, request_id: int, request: RequestT, answer: asyncio.Future[ResponseT]) -> None:
        """Write the request; `answer` gets what comes back, or what broke the stream, which is never raised here."""
        opened = self._opened or self._open()
        opened.answers[request_id] = answer
        try:
            await opened.stream.write(request)
        except MQClientError as error:
            self._break(opened, error)

    async def tell(self, request: RequestT) -> None:
        """Write a request that has no answer of its own, if the stream is open; a new stream knows nothing of it."""
        opened = self._opened
        if opened is None:
            return
        try:
            await opened.stream.write(request)
        except MQClientError as error:
            self._break(opened, error)

    def close(self) -> None:
        """Give the stream up; what is unanswered fails with ConnectionLostError."""
        if self._opened is not None:
            self._break(self._opened, ConnectionLostError(f"the client closed its stream to {self._address}"))

    def _open(self) -> _Opened[RequestT, ResponseT]:
        opened = _Opened(self._channel.stream(self._method))
        self._opened = opened
        self._tasks.start(self._read(opened), f"mqclient read {self._method.path} {self._address}")
        return opened

    async def _read(self, opened: _Opened[RequestT, ResponseT]) -> None:
        try:
            while (response := await opened.stream.read()) is not None:
                if (answer_id := self._answer_id(response)) == 0:
                    self._told(response)
                answer = opened.answers.pop(answer_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(response)
            error: MQClientError = ConnectionLostError(f"the broker at {self._address} ended the stream")
        except MQClientError as caught:
            error = caught
        self._break(opened, error)

    def _break(self, opened: _Opened[RequestT, ResponseT], error: MQClientError) -> None:
        if self._opened is opened:
            self._opened = None
        opened.stream.cancel()
        for answer in opened.answers.values():
            if not answer.done():
                answer.set_exception(error)
        opened.answers.clear()


class PollEndedError(ConnectionLostError):
    """The client has ended the poll itself, because another broker may have to serve it now: look the broker up
    again."""


class PollStreams:
    """The Poll streams to `address`: one, and a further one whenever all that are open are full."""

    def __init__(self, address: str, channel: Channel, clock: Clock, tasks: BackgroundTasks, left_out: LeftOut) -> None:
        """`left_out` hears what the broker has of queues of which it has left out a report."""
        self._open = partial(PollStream, address, channel, clock, tasks, left_out)
        self._streams = [self._open()]

    async def pull(self, request: broker_pb.PullRequest, *, suspend_s: float, guard_s: float) -> broker_pb.PullResponse:
        """The broker's answer, which it may hold back for `suspend_s`.

        Raises RequestTimeoutError after `guard_s` without an answer, or what the transport raised.
        """
        stream = next((one for one in self._streams if one.poll_count < POLLS_PER_STREAM), None)
        if stream is None:
            stream = self._open()
            self._streams.append(stream)
        return await stream.pull(request, suspend_s=suspend_s, guard_s=guard_s)

    def report(self, progress: broker_pb.GroupProgress) -> None:
        """Tell the broker what has been finished, with the next request; lost when the stream breaks before."""
        for begin in range(0, len(progress.queues), QUEUES_PER_REQUEST_MAX):
            queues = progress.queues[begin : begin + QUEUES_PER_REQUEST_MAX]
            part = broker_pb.GroupProgress(group=progress.group, client_id=progress.client_id, queues=queues)
            self._streams[0].report(part)

    def end_held(self) -> None:
        """End every poll with PollEndedError, and let the broker forget it; what comes next is taken as before."""
        for stream in self._streams:
            stream.end_held()

    def close(self) -> None:
        """End every poll with ConnectionLostError."""
        for stream in self._streams:
            stream.close()


class PollStream:
    """One Poll stream to `address`."""

    def __init__(self, address: str, channel: Channel, clock: Clock, tasks: BackgroundTasks, left_out: LeftOut) -> None:
        self._left_out = left_out
        self._address = address
        self._clock = clock
        self._tasks = tasks
        self._stream = RequestStream(address, channel, POLL, lambda response: response.poll_id, tasks, told=self._told)
        self._poll_ids = itertools.count(1)
        self._outbox: deque[tuple[broker_pb.PollRequest, Waiter | None]] = deque()
        self._reports: deque[broker_pb.GroupProgress] = deque()
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._waiters: dict[Waiter, int] = {}  # with their poll ids
        self._closed = False

    @property
    def poll_count(self) -> int:
        """How many polls have not ended."""
        return len(self._waiters)

    async def pull(self, request: broker_pb.PullRequest, *, suspend_s: float, guard_s: float) -> broker_pb.PullResponse:
        """As PollStreams."""
        poll_id = next(self._poll_ids)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        suspend_ms = int(suspend_s * 1000)
        self._put(broker_pb.PollRequest(poll_id=poll_id, pull=request, suspend_timeout_ms=suspend_ms), waiter)
        self._waiters[waiter] = poll_id
        guard = self._clock.call_later(guard_s, partial(self._give_up, poll_id, waiter, guard_s))
        try:
            return (await waiter).pull
        except asyncio.CancelledError:
            self._put(broker_pb.PollRequest(poll_id=poll_id, cancel=True), None)
            raise
        finally:
            guard.cancel()
            del self._waiters[waiter]

    def report(self, progress: broker_pb.GroupProgress) -> None:
        """As PollStreams; no more queues than fit one request."""
        if not self._closed:
            self._reports.append(progress)
            self._wake_writer()

    def _told(self, response: broker_pb.PollResponse) -> None:
        for progress in response.left_out:
            self._left_out(progress)

    def end_held(self) -> None:
        """As PollStreams."""
        for waiter, poll_id in self._waiters.items():
            if not waiter.done():
                waiter.set_exception(PollEndedError(f"{self._address} may have to leave this poll to another broker"))
                self._put(broker_pb.PollRequest(poll_id=poll_id, cancel=True), None)

    def close(self) -> None:
        """As PollStreams."""
        self._closed = True
        self._stream.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(ConnectionLostError(f"the client closed its polls to {self._address}"))

    def _put(self, request: broker_pb.PollRequest, waiter: Waiter | None) -> None:
        if self._closed:
            return
        self._outbox.append((request, waiter))
        self._wake_writer()

    def _give_up(self, poll_id: int, waiter: Waiter, guard_s: float) -> None:
        if not waiter.done():
            waiter.set_exception(RequestTimeoutError(f"{self._address} held a poll for more than {guard_s:.0f} s"))
            self._put(broker_pb.PollRequest(poll_id=poll_id, cancel=True), None)

    def _wake_writer(self) -> None:
        self._wake.set()
        if self._writer is None:
            self._writer = self._tasks.start(self._write(), f"mqclient poll {self._address}")

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox or self._reports:
                request, waiter = self._outbox.popleft() if self._outbox else (broker_pb.PollRequest(), None)
                if waiter is not None and waiter.done():
                    continue
                self._add_reports(request)
                if waiter is None:
                    await self._stream.tell(request)
                else:
                    await self._stream.send(request.poll_id, request, waiter)

    def _add_reports(self, request: broker_pb.PollRequest) -> None:
        """Let the request bring what waits to be reported, as far as it fits one request; the next one has the rest."""
        room = QUEUES_PER_REQUEST_MAX
        while self._reports and (room := room - len(self._reports[0].queues)) >= 0:
            request.progress.append(self._reports.popleft())
