"""The pump of a stream, and the end of all streams: what is being written then is written first."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from mq_broker.core.limits import CLIENT_RESPONSE_BYTES_MAX
from mq_broker.processor.long_polling import ResponseMemory
from mq_broker.rpc.calls import LINGER_S, OpenStreams, Replies, pump
from osenv import SimClock


class _SlowStream:
    """A stream whose peer sends two requests, and whose writes end only when the test says so."""

    def __init__(self) -> None:
        self.requests = ["good", "bad"]
        self.writing, self.may_write = asyncio.Event(), asyncio.Event()
        self.written: list[object] = []

    async def read(self) -> str:
        if len(self.requests) == 1:
            await self.writing.wait()
        return self.requests.pop(0)

    async def write(self, reply: object) -> None:
        self.writing.set()
        await self.may_write.wait()
        self.written.append(reply)


async def test_a_bad_request_ends_the_stream_only_after_the_write_that_is_under_way() -> None:
    # gRPC rejects a status while a message is being written, and the peer would then wait for ever.
    stream, replies = _SlowStream(), Replies(ResponseMemory(SimClock()).share("peer"))

    def handle(request: str) -> None:
        if request == "bad":
            raise ValueError("bad")
        replies.put("answer")

    ending = asyncio.create_task(pump(stream, replies, handle, asyncio.Event()))
    await stream.writing.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    stream.may_write.set()
    with pytest.raises(ValueError, match="bad"):
        await ending
    assert stream.written == ["answer"]


async def test_replies_that_were_not_written_when_the_stream_broke_are_put_away() -> None:
    stream, replies, made = (
        _SlowStream(),
        Replies(ResponseMemory(SimClock()).share("peer")),
        list[Coroutine[None, None, str]](),
    )

    async def reply() -> str:
        return "made"

    def handle(_request: str) -> None:
        made.append(reply())
        replies.put(made[-1])

    pumping = asyncio.create_task(pump(stream, replies, handle, asyncio.Event()))
    await stream.writing.wait()
    handle("one more")
    pumping.cancel()
    await asyncio.gather(pumping, return_exceptions=True)
    assert {inspect.getcoroutinestate(one) for one in made} == {inspect.CORO_CLOSED}


@dataclass(frozen=True)
class _Frame:
    body: str


class _HandingStream:
    """A stream that hands requests over in the step in which they come, as one of frames does."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.is_full = False
        self._inbox = deque[_Frame | None]()
        self._take: Callable[[_Frame | None], None] | None = None
        self._has_room = asyncio.Event()

    def come(self, *texts: str | None) -> None:
        """These requests come; None is the end."""
        self._inbox += [None if text is None else _Frame(text) for text in texts]
        self.deliver_to(self._take)

    def deliver_to(self, take: Callable[[_Frame | None], None] | None) -> None:
        self._take = take
        while self._take is not None and self._inbox:
            self._take(self._inbox.popleft())

    def parse(self, body: str) -> str:
        return body

    def write_now(self, reply: StringValue) -> bool:
        if not self.is_full:
            self.written.append(reply.value)
        return not self.is_full

    async def write(self, reply: StringValue) -> None:
        while self.is_full:
            await self._has_room.wait()
        self.written.append(reply.value)

    def read(self) -> None:
        self.is_full = False
        self._has_room.set()


@asynccontextmanager
async def pumped(
    stream: _HandingStream, handle: Callable[[Replies, str], None]
) -> AsyncIterator[tuple[Replies, asyncio.Task[None]]]:
    """The stream as the pump has it from its first moment on."""
    replies = Replies(ResponseMemory(SimClock()).share("peer"))
    pumping = asyncio.create_task(pump(stream, replies, lambda text: handle(replies, text), asyncio.Event()))
    await turns()
    yield replies, pumping
    pumping.cancel()
    await asyncio.gather(pumping, return_exceptions=True)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def echo(replies: Replies, text: str, size: int = 1_000) -> None:
    replies.put(StringValue(value=text), size)


async def test_a_reply_that_nothing_waits_before_is_written_in_the_step_of_its_request() -> None:
    stream = _HandingStream()
    async with pumped(stream, echo) as (replies, pumping):
        stream.come("a", "b")
        assert stream.written == ["a", "b"]
        assert replies.share.used == 0
        stream.come(None)
        await asyncio.wait_for(pumping, 5)


async def test_no_reply_overtakes_one_that_is_not_ready() -> None:
    stream, is_stored = _HandingStream(), asyncio.Event()

    async def later(text: str) -> StringValue:
        await is_stored.wait()
        return StringValue(value=text)

    def handle(replies: Replies, text: str) -> None:
        replies.put(later(text)) if text == "slow" else echo(replies, text)

    async with pumped(stream, handle):
        stream.come("slow", "quick")
        await turns()
        stream.come("last")
        assert stream.written == []
        is_stored.set()
        await turns()
        assert stream.written == ["slow", "quick", "last"]
        stream.come("at once")
        assert stream.written[3:] == ["at once"]


async def test_a_peer_that_does_not_read_is_not_read_from_until_it_does() -> None:
    stream, handled = _HandingStream(), list[str]()

    def handle(replies: Replies, text: str) -> None:
        handled.append(text)
        echo(replies, text, CLIENT_RESPONSE_BYTES_MAX // 16)

    texts = [str(number) for number in range(40)]
    async with pumped(stream, handle):
        stream.is_full = True
        stream.come(*texts)
        await turns()
        assert handled == texts[:16]
        assert stream.written == []
        stream.read()
        for _ in texts:
            await turns()
        assert stream.written == handled == texts


async def test_a_request_that_is_wrong_ends_the_stream_behind_the_replies_before_it() -> None:
    stream = _HandingStream()

    def handle(replies: Replies, text: str) -> None:
        if text == "bad":
            raise ValueError(text)
        echo(replies, text)

    async with pumped(stream, handle) as (_, pumping):
        stream.is_full = True
        stream.come("good", "bad", "unread")
        await turns()
        assert not pumping.done()
        stream.read()
        with pytest.raises(ValueError, match="bad"):
            await asyncio.wait_for(pumping, 5)
        assert stream.written == ["good"]


WITHIN_S = 5.0


@pytest.mark.parametrize(
    ("stream_lasts_s", "takes_s"),
    [
        (0.0, LINGER_S),  # its peer reads the last answers before the connection is closed
        (1.0, 1.0 + LINGER_S),
        (60.0, WITHIN_S),  # it is left behind
    ],
)
async def test_a_connection_outlives_the_streams_that_end_on_it(stream_lasts_s: float, takes_s: float) -> None:
    clock = SimClock()
    streams, ended_at = OpenStreams(asyncio.Event()), list[float]()

    async def stream() -> None:
        with streams.one_more():
            await streams.stopping.wait()
            await clock.sleep(stream_lasts_s)

    async def end() -> None:
        await streams.end(clock, WITHIN_S)
        ended_at.append(clock.monotonic())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stream())
        await asyncio.sleep(0)
        began = clock.monotonic()
        tasks.create_task(end())
        await clock.advance(2 * 60.0)
    assert ended_at == [pytest.approx(began + takes_s)]


async def test_without_streams_nothing_is_waited_for() -> None:
    clock, streams = SimClock(), OpenStreams(asyncio.Event())
    await streams.end(clock, WITHIN_S)  # a clock that stands still
    assert streams.stopping.is_set()
