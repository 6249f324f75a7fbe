"""Streams between two connections: windows, ends, and what breaks them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from remoting_world import ECHO, ECHO_STREAM, HELD, World, raw

from mqremoting import (
    Command,
    ConnectionConfig,
    ConnectionLostError,
    DeadlineError,
    FrameError,
    NotSentError,
    RejectedError,
    ResponseCode,
    Stream,
    encode,
)
from mqremoting.config import INITIAL_WINDOW_BYTES, MESSAGE_COST_BYTES, STREAM, WINDOW

CONFIG = ConnectionConfig()


async def test_messages_go_both_ways_and_each_side_ends_for_itself() -> None:
    world = World()
    client, server = await world.open()
    await client.write(b"up 1")
    await client.write(b"up 2", code=5, ext_fields={"a": "b"})
    client.end()
    first, second = await server.read(), await server.read()
    assert first is not None
    assert second is not None
    assert (first.body, second.body, second.code, second.ext_fields) == (b"up 1", b"up 2", 5, {"a": "b"})
    assert await server.read() is None
    with pytest.raises(RuntimeError, match=r"a message after the end of <stream 1 of code 20002>"):
        await client.write(b"up 3")

    await server.write(b"down")
    server.end()
    down = await client.read()
    assert down is not None
    assert down.body == b"down"
    assert await client.read() is None
    await world.clock.settle()
    assert (client.is_open, server.is_open) == (False, False)
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)


async def test_streams_begin_at_the_server_too() -> None:
    world = World()
    stream = world.server.open_stream(ECHO_STREAM, ext_fields={"a": "b"})
    await stream.write(b"down")
    echoed = await stream.read()
    assert echoed is not None
    assert echoed.body == b"down"
    assert world.client_side.streams[0].opening.ext_fields == {"a": "b"}


async def test_a_stream_closes_in_order_when_its_handler_ends_and_nothing_more_can_be_written() -> None:
    world = World()

    async def answer_once(stream: Stream) -> None:
        await stream.read()
        await stream.write(b"last")

    world.server_side.stream = answer_once
    stream = world.client.open_stream(HELD)
    await stream.write(b"first")
    await world.clock.settle()
    last = await stream.read()
    assert last is not None
    assert last.body == b"last"
    assert await stream.read() is None
    with pytest.raises(NotSentError, match=r"<stream 1 of code 20002> has ended"):
        await stream.write(b"more")
    stream.end()
    assert world.server.in_flight == 0


async def test_a_handler_rejects_after_what_it_has_written(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    async def reject(stream: Stream) -> None:
        await stream.write(b"last")
        raise RejectedError(13, "poll 7 is open already")

    world.server_side.stream = reject
    stream = world.client.open_stream(HELD)
    await world.clock.settle()
    assert await stream.read()
    with pytest.raises(RejectedError, match=r"code 13: poll 7 is open already"):
        await stream.read()
    with pytest.raises(RejectedError):
        await stream.write(b"more")

    async def fail(stream: Stream) -> None:
        raise LookupError("secret")

    world.server_side.stream = fail
    stream = world.client.open_stream(HELD)
    with pytest.raises(RejectedError, match=r"code 1: the stream of code 20002 failed: LookupError"):
        await stream.read()
    assert "secret" in caplog.text


async def test_a_service_rejects_a_stream_at_once() -> None:
    world = World()

    def reject(stream: Stream) -> None:
        raise RejectedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no such stream")

    world.server_side.stream = reject
    with pytest.raises(RejectedError, match=r"code 3: no such stream"):
        await world.client.open_stream(9).read()
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)


async def test_a_peer_without_streams_rejects_it_as_a_request() -> None:
    world = World()
    stream = world.client.open_stream(9)
    raw(world.client, encode(Command(3, stream.opening.opaque, 1, remark="request type 9 not supported")))
    with pytest.raises(RejectedError, match=r"code 3: request type 9 not supported"):
        await stream.read()


async def test_cancelling_ends_both_directions_here_and_the_handler_there() -> None:
    world = World()
    client, _ = await world.open(ECHO_STREAM)
    reading = asyncio.create_task(client.read())
    await world.clock.settle()
    client.cancel()
    with pytest.raises(ConnectionLostError, match=r"<stream 1 of code 20003> was given up"):
        await reading
    with pytest.raises(ConnectionLostError):
        await client.write(b"x")
    await world.clock.settle()
    assert world.server_side.cancelled == 1
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)
    assert (await world.client.request(ECHO, b"on", timeout_s=3)).body == b"on"


async def test_cancelling_a_read_loses_no_message() -> None:
    world = World()
    client, server = await world.open()
    reading = asyncio.create_task(client.read())
    await world.clock.settle()
    await server.write(b"kept")
    reading.cancel()
    await world.clock.settle()
    message = await client.read()
    assert message is not None
    assert message.body == b"kept"


async def test_a_stream_ends_at_its_deadline() -> None:
    world = World()
    stream = world.client.open_stream(ECHO_STREAM, timeout_s=5)
    reading = asyncio.create_task(stream.read())
    await world.clock.advance(5)
    with pytest.raises(DeadlineError, match=r"did not end in time"):
        await reading
    assert world.server_side.cancelled == 1


async def test_what_came_before_a_cut_is_read_and_then_the_error() -> None:
    world = World()
    client, server = await world.open()
    await server.write(b"came")
    await world.clock.settle()
    world.link.cut()
    await world.clock.settle()
    assert await client.read()
    with pytest.raises(ConnectionLostError):
        await client.read()
    with pytest.raises(ConnectionLostError):
        await server.read()
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)


async def test_a_reader_that_stops_holds_up_its_own_stream_alone() -> None:
    world = World()
    stuck, unread = await world.open()
    body, written = bytes(50_000), 0

    async def write() -> None:
        nonlocal written
        while True:
            await stuck.write(body)
            written += 1

    writing = asyncio.create_task(write())
    await world.clock.settle()
    full = written
    assert full * len(body) <= CONFIG.window_bytes + len(body)
    assert full * len(body) > CONFIG.window_bytes - len(body)
    assert not stuck.may_write

    echo, _ = await world.open(ECHO_STREAM)
    for number in range(100):  # more than the other stream's window
        await echo.write(body)
        message = await echo.read()
        assert message is not None, number
    assert (await world.client.request(ECHO, body, timeout_s=3)).body == body
    assert written == full

    for _ in range(full):
        await unread.read()
    await world.clock.settle()
    assert written >= full + full // 2
    writing.cancel()


async def test_a_message_larger_than_the_window_goes_through() -> None:
    world = World()
    client, server = await world.open()
    body = bytes(3 * CONFIG.window_bytes)
    for _ in range(3):
        writing = asyncio.create_task(client.write(body))
        message = await server.read()
        assert message is not None
        assert message.body == body
        await writing


async def test_empty_messages_count_too() -> None:
    world = World()
    client, _ = await world.open()
    count = 0
    while client.may_write:
        client.write_now(b"")
        count += 1
        if count % 100 == 0:
            await world.clock.settle()
    assert count < CONFIG.window_bytes / MESSAGE_COST_BYTES


async def test_a_peer_that_ignores_the_window_is_cut_off() -> None:
    world = World(replace(CONFIG, window_bytes=INITIAL_WINDOW_BYTES))
    _, server = await world.open()
    frame = encode(Command(0, server.opening.opaque, STREAM, bytes(100_000)))
    for _ in range(4):
        raw(world.server, frame)
    await world.clock.settle()
    assert "whose window is full by" in str(world.server.error)


@pytest.mark.parametrize("body", [b"", b"\x7f\xff\xff", bytes(5), b"\x80\x00\x00\x01"])
async def test_a_window_that_is_none_ends_the_connection(body: bytes) -> None:
    world = World()
    _, server = await world.open()
    raw(world.server, encode(Command(0, server.opening.opaque, STREAM | WINDOW, body)))
    assert isinstance(world.server.error, FrameError)
    assert "a window of" in str(world.server.error)


async def test_a_message_after_the_end_ends_the_connection() -> None:
    world = World()
    client, server = await world.open()
    client.end()
    await world.clock.settle()
    raw(world.server, encode(Command(0, server.opening.opaque, STREAM, b"x")))
    assert "a message after the end of" in str(world.server.error)


async def test_beyond_the_open_streams_one_more_is_rejected_by_either_side() -> None:
    world = World(replace(CONFIG, streams_max=1), client_config=replace(CONFIG, streams_max=2))
    first, _ = await world.open()
    second = world.client.open_stream(HELD)
    with pytest.raises(NotSentError, match=r"2 streams to server:0 are open; no more are allowed"):
        world.client.open_stream(HELD)
    with pytest.raises(RejectedError, match=r"code 2: 1 streams are open on this connection; at most as many"):
        await second.read()
    first.cancel()
    await world.clock.settle()
    await world.open()


async def test_the_transport_holds_writers_of_streams_up_too() -> None:
    world = World(replace(CONFIG, write_buffer_bytes=1_000))
    client, server = await world.open()
    world.link.to_server.hold()
    await client.write(bytes(2_000))
    writing = asyncio.create_task(client.write(b"next"))
    await world.clock.settle()
    assert not writing.done()
    world.link.to_server.release()
    await writing
    await world.clock.settle()
    assert [len(one.body) for one in [await server.read(), await server.read()] if one] == [2_000, 4]


async def test_a_write_that_waits_for_the_transport_ends_with_its_stream() -> None:
    world = World(replace(CONFIG, write_buffer_bytes=1_000))
    client, _ = await world.open()
    world.link.to_server.hold()
    await client.write(bytes(2_000))
    writing = asyncio.create_task(client.write(b"next"))
    await world.clock.settle()
    client.cancel()
    with pytest.raises(ConnectionLostError):
        await writing


async def test_two_tasks_that_read_or_write_one_stream_are_a_mistake() -> None:
    world = World()
    client, _ = await world.open()
    tasks = [asyncio.create_task(client.read()) for _ in range(2)]
    while client.may_write:
        client.write_now(bytes(100_000))
        await world.clock.settle()
    tasks += [asyncio.create_task(client.write(b"x")) for _ in range(2)]
    await world.clock.settle()
    assert [task.done() for task in tasks] == [False, True, False, True]
    for task in (tasks[1], tasks[3]):
        with pytest.raises(RuntimeError, match=r"two tasks (read from|write to) <stream 1 of code 20002>"):
            await task
    client.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_handler_that_still_works_is_in_flight_and_ends_with_the_connection() -> None:
    world = World()
    ended: list[str] = []

    async def work_on(stream: Stream) -> None:
        stream.end()
        await stream.read()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("handler")

    world.server_side.stream = work_on
    client, _ = await world.open()
    client.end()
    await world.clock.settle()
    assert await client.read() is None
    assert (world.client.in_flight, world.server.in_flight) == (0, 1)
    world.link.cut()
    await world.clock.settle()
    assert ended == ["handler"]
    assert world.server.in_flight == 0


async def test_messages_are_delivered_to_a_callback_in_the_step_in_which_they_come() -> None:
    world = World()
    got: list[bytes | None] = []
    client, server = await world.open()
    await server.write(b"before")
    await world.clock.settle()
    client.deliver_to(lambda message: got.append(None if message is None else bytes(message.body)))
    assert got == [b"before"]
    with pytest.raises(RuntimeError, match=r"is delivered to a callback"):
        await client.read()
    for _ in range(100):
        await server.write(bytes(50_000))
    server.end()
    await world.clock.settle()
    assert len(got) == 102
    assert got[-1] is None
    assert client.error is None


async def test_a_callback_that_is_taken_away_lets_the_window_fill() -> None:
    world = World()
    got: list[Command | None] = []
    client, server = await world.open()
    client.deliver_to(got.append)
    client.deliver_to(None)
    while server.may_write:
        server.write_now(bytes(100_000))
        await world.clock.settle()
    assert got == []
    client.deliver_to(got.append)
    await world.clock.settle()
    assert len(got) > 5
    await server.write(b"more")
    world.link.cut()
    await world.clock.settle()
    assert got[-1] is None
    assert isinstance(client.error, ConnectionLostError)


async def test_a_callback_that_raises_closes_its_stream() -> None:
    world = World()

    def reject(message: Command | None) -> None:
        if message is not None:
            raise RejectedError(13, "no")

    world.server_side.stream = lambda stream: stream.deliver_to(reject)
    client, server = await world.open()
    await client.write(b"x")
    with pytest.raises(RejectedError, match=r"code 13: no"):
        await client.read()
    assert isinstance(server.error, RejectedError)


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "read", "end", "cancel", "open", "request"]), st.integers(0, 3), st.booleans()),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 60_000), st.booleans(), st.integers(8, 500))
async def test_whatever_is_done_and_wherever_it_is_cut_everything_ends(
    steps: list[tuple[str, int, bool]], cut_after: int, to_server: bool, piece_bytes: int
) -> None:
    world = World(piece_bytes=piece_bytes * 100)
    (world.link.to_server if to_server else world.link.to_client).cut_after(cut_after)
    tasks: list[asyncio.Task[object]] = []
    streams: list[Stream] = []
    for what, which, here in steps:
        if what == "open" and world.client.error is None:
            streams.append(world.client.open_stream(ECHO_STREAM if here else HELD))
        elif what == "request":
            tasks.append(asyncio.create_task(world.client.request(ECHO, bytes(which * 10_000), timeout_s=3)))
        elif which < len(streams) and streams[which].is_open:
            stream = streams[which]
            if what == "write" and stream.may_write and not stream._has_ended:
                stream.write_now(bytes(which * 30_000))
            elif what == "read" and stream._reader is None:
                tasks.append(asyncio.create_task(stream.read()))
            elif what == "end":
                stream.end()
            elif what == "cancel":
                stream.cancel()
        await world.clock.settle()
    world.link.cut()
    await world.clock.settle()
    assert all(task.done() for task in tasks)
    errors = [task.exception() for task in tasks]
    assert all(error is None or isinstance(error, ConnectionLostError | NotSentError) for error in errors)
    assert (world.client.in_flight, world.server.in_flight, world.clock.timers) == (0, 0, 0)
