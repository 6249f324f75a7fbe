"""The pump of a stream, and the end of all streams: what is being written then is written first."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine

import pytest

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
    # gRPC refuses a status while a message is being written, and the peer would then wait for ever.
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
