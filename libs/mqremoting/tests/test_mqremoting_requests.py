"""Requests and responses between two connections."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from remoting_world import ECHO, HELD, World, raw

from mqremoting import (
    Call,
    Command,
    ConnectionConfig,
    ConnectionLostError,
    DeadlineError,
    FrameError,
    FrameLimits,
    NotSentError,
    RejectedError,
    ResponseCode,
    Serialization,
    encode,
)
from mqremoting.command import ONE_WAY
from mqremoting.config import OPEN, STREAM
from osenv.clock import until

CONFIG = ConnectionConfig()


async def test_responses_find_their_requests_in_any_order() -> None:
    world = World()
    tasks = [await world.begin(HELD, b"%d" % number) for number in range(3)]
    for call in reversed(world.server_side.held):
        call.respond(b"to " + call.command.body)
    assert [bytes((await task).body) for task in tasks] == [b"to 0", b"to 1", b"to 2"]
    await world.clock.settle()
    assert world.client.in_flight == 0


async def test_a_response_carries_code_remark_and_fields_and_is_no_error() -> None:
    world = World()
    task = await world.begin(HELD)
    world.server_side.held[0].respond(b"x", code=17, remark="no such topic", ext_fields={"a": "b"})
    response = await task
    assert (response.code, response.remark, response.ext_fields) == (17, "no such topic", {"a": "b"})


async def test_the_server_asks_the_client_under_the_same_opaque_at_the_same_time() -> None:
    world = World()
    down, up = await asyncio.gather(
        world.server.request(ECHO, b"down", timeout_s=3), world.client.request(ECHO, b"up", timeout_s=3)
    )
    assert (bytes(down.body), bytes(up.body)) == (b"down", b"up")
    assert down.opaque == up.opaque


async def test_a_one_way_request_is_handled_without_a_response() -> None:
    world = World()
    await world.client.send_one_way(7, b"x")
    await world.clock.settle()
    assert world.server_side.one_ways == [b"x"]
    assert world.link.to_client.bytes_written == 0
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)


async def test_a_response_has_the_form_of_its_request() -> None:
    world = World(client_config=replace(CONFIG, serialization=Serialization.JSON))
    response = await world.client.request(ECHO, b"x", timeout_s=3, ext_fields={"größe": "1"})
    assert response.serialization is Serialization.JSON
    assert response.ext_fields == {"größe": "1"}


async def test_what_the_service_does_not_know_or_want_is_rejected_with_code_and_sentence() -> None:
    world = World()
    response = await world.client.request(9, timeout_s=3)
    assert (response.code, response.remark) == (3, "request code 9 is not supported here")

    async def reject(call: Call) -> None:
        raise RejectedError(13, "the message has no body")

    world.server_side.request = reject
    response = await world.client.request(9, timeout_s=3)
    assert (response.code, response.remark) == (13, "the message has no body")
    assert world.server.in_flight == 0


async def test_a_handler_that_fails_is_logged_and_the_peer_hears_a_system_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()

    def fail(call: Call) -> None:
        raise LookupError("secret")

    world.server_side.request = fail
    response = await world.client.request(9, timeout_s=3)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "request code 9 failed: LookupError")
    assert "secret" in caplog.text

    async def forget(call: Call) -> None:
        return

    world.server_side.request = forget
    response = await world.client.request(9, timeout_s=3)
    assert (response.code, response.remark) == (1, "the handler ended without a response")
    assert world.server.in_flight == 0


async def test_a_request_ends_at_its_deadline_and_its_handler_is_cancelled() -> None:
    world = World()
    task = await world.begin(HELD, timeout_s=3)
    await world.clock.advance(2.999)
    assert not task.done()
    await world.clock.advance(0.001)
    with pytest.raises(DeadlineError, match=r"no response to request 1, code 20002, in time"):
        await task
    await world.clock.settle()
    assert world.server_side.cancelled == 1
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)
    assert (await world.client.request(ECHO, b"on", timeout_s=3)).body == b"on"


async def test_each_of_many_requests_ends_at_its_own_deadline() -> None:
    world = World()
    tasks = [await world.begin(HELD, timeout_s=seconds) for seconds in (5, 1, 3)]
    for done in (1, 2, 3):
        await world.clock.advance(1 if done == 1 else 2)
        assert sum(task.done() for task in tasks) == done
    for task in tasks:
        with pytest.raises(DeadlineError):
            await task


async def test_a_late_response_is_dropped() -> None:
    world = World()
    world.server_side.request = world.server_side.held.append  # answered by the test alone
    task = await world.begin(HELD, timeout_s=1)
    (call,) = world.server_side.held
    world.link.to_server.hold()  # the word that it was given up
    await world.clock.advance(1)
    call.respond(b"late")
    await world.clock.settle()
    with pytest.raises(DeadlineError):
        await task
    assert (await world.begin(ECHO, b"next")).done() is False
    world.link.to_server.release()
    await world.clock.settle()
    assert world.client.error is None


async def test_cancelling_a_request_cancels_its_handler() -> None:
    world = World()
    task = await world.begin(HELD)
    task.cancel()
    await world.clock.settle()
    assert task.cancelled()
    assert world.server_side.cancelled == 1
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)


async def test_a_request_that_is_given_up_in_the_step_in_which_it_came_leaves_nothing() -> None:
    world = World()
    world.link.to_server.hold()
    (await world.begin(HELD)).cancel()
    await world.clock.settle()
    world.link.to_server.release()
    await world.clock.settle()
    assert world.server.in_flight == 0


async def test_a_cut_ends_requests_and_handlers_and_nothing_more_is_sent() -> None:
    world = World()
    task = await world.begin(HELD)
    lost: list[str] = []
    world.client.when_lost(lambda: lost.append("client"))
    world.link.cut()
    await world.clock.settle()
    with pytest.raises(ConnectionLostError, match=r"the connection to server:0 was closed: cut"):
        await task
    assert world.server_side.cancelled == 1
    assert lost == ["client"]
    with pytest.raises(NotSentError, match=r"has ended: the connection to server:0 was closed: cut"):
        await world.client.request(ECHO, timeout_s=3)
    with pytest.raises(NotSentError):
        await world.client.send_one_way(ECHO)
    with pytest.raises(NotSentError):
        world.client.open_stream(ECHO)
    assert (world.client.in_flight, world.server.in_flight) == (0, 0)
    assert world.clock.timers == 0


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_a_cut_at_any_byte_loses_no_request_silently(direction: str) -> None:
    for cut_after in range(1, 3 * 31):
        world = World(piece_bytes=7)
        getattr(world.link, direction).cut_after(cut_after)
        tasks = [await world.begin(ECHO, b"%02d" % number) for number in range(3)]
        await world.clock.settle()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        answered = [bytes(one.body) for one in results if isinstance(one, Command)]
        assert answered == [b"00", b"01", b"02"][: len(answered)]
        assert all(isinstance(one, Command | ConnectionLostError | NotSentError) for one in results)
        await world.clock.settle()
        assert (world.client.in_flight, world.server.in_flight, world.clock.timers) == (0, 0, 0)


async def test_malformed_bytes_end_the_connection_after_the_responses_to_what_came_before() -> None:
    world = World()
    task = await world.begin(HELD)
    world.server_side.held[0].respond(b"before")
    raw(world.server, b"GET / HTTP/1.1\r\n\r\n")
    await world.clock.settle()
    assert (await task).body == b"before"
    assert isinstance(world.server.error, FrameError)
    assert "HTTP" in str(world.server.error)
    assert isinstance(world.client.error, ConnectionLostError)


@pytest.mark.parametrize("flag", [0, STREAM | OPEN, STREAM | OPEN | ONE_WAY])
async def test_an_opaque_that_is_in_use_ends_the_connection(flag: int) -> None:
    world = World()
    task = await world.begin(HELD)
    raw(world.server, encode(Command(HELD, opaque=1, flag=flag)))
    await world.clock.settle()
    assert "began a request with opaque 1, which is in flight" in str(world.server.error)
    with pytest.raises(ConnectionLostError):
        await task


async def test_unexpected_responses_and_unknown_bits_are_dropped() -> None:
    world = World()
    for flag in (1, 1 << 8 | 1, 1 << 11 | 2, 1 << 13 | 1, 1 << 8, 1 << 8 | 1 << 12):
        raw(world.server, encode(Command(5, opaque=77, flag=flag, body=b"what")))
    raw(world.server, encode(Command(7, opaque=5, flag=1 << 30 | 2, body=b"one-way")))
    assert world.server.error is None
    assert world.server_side.one_ways == [b"one-way"]


async def test_beyond_the_requests_in_flight_one_more_is_rejected_by_either_side() -> None:
    world = World(replace(CONFIG, requests_max=2), client_config=replace(CONFIG, requests_max=3))
    tasks = [await world.begin(HELD) for _ in range(2)]
    response = await world.client.request(ECHO, timeout_s=3)
    assert response.code == ResponseCode.SYSTEM_BUSY
    assert response.remark == "2 requests are in flight on this connection; at most as many are allowed"
    world.server_side.held[0].respond()
    world.server_side.held[0].task.cancel()  # type: ignore[union-attr]
    await world.clock.settle()
    assert (await world.client.request(ECHO, timeout_s=3)).code == 0

    world.link.to_server.hold()
    tasks += [await world.begin(HELD) for _ in range(2)]
    with pytest.raises(NotSentError, match=r"3 requests to server:0 are in flight; no more are allowed"):
        await world.client.request(ECHO, timeout_s=3)
    for task in tasks:
        task.cancel()


async def test_beyond_the_bytes_in_flight_one_more_is_rejected_and_one_alone_is_not() -> None:
    world = World(replace(CONFIG, request_bytes_max=10_000))
    large = await world.begin(HELD, bytes(20_000))
    response = await world.client.request(ECHO, b"small", timeout_s=3)
    assert response.code == ResponseCode.SYSTEM_BUSY
    assert response.remark == "20,063 bytes are in flight on this connection; at most 10,000 are allowed"
    large.cancel()
    await world.clock.settle()
    assert (await world.client.request(ECHO, b"small", timeout_s=3)).code == 0


async def test_requests_of_a_peer_that_does_not_read_are_rejected_and_then_it_is_cut_off() -> None:
    world = World(
        replace(
            CONFIG,
            frames=FrameLimits(frame_bytes_max=500_000),
            request_bytes_max=300_000,
            unread_bytes_max=600_000,
            write_buffer_bytes=100_000,
        )
    )
    world.link.to_client.hold()
    answered = [await world.begin(ECHO, bytes(100_000)) for _ in range(2)]
    busy = await world.begin(ECHO, bytes(100_000))
    world.link.to_client.release()
    assert [(await task).code for task in answered] == [0, 0]
    assert "bytes are in flight on this connection; at most 300,000" in (await busy).remark

    world.server_side.request = world.server_side.held.append
    tasks = [await world.begin(ECHO) for _ in range(2)]
    world.link.to_client.hold()
    for call in world.server_side.held:
        call.respond(bytes(400_000))
    await world.clock.settle()
    assert "client:0 does not read: 800,058 bytes wait for it" in str(world.server.error)
    for task in tasks:
        with pytest.raises(ConnectionLostError):
            await task


async def test_a_request_waits_for_the_transport_within_its_time() -> None:
    world = World(replace(CONFIG, write_buffer_bytes=1_000))
    world.link.to_server.hold()
    first = await world.begin(ECHO, bytes(2_000), timeout_s=60)
    waiting, late = await world.begin(ECHO, b"waits", timeout_s=60), await world.begin(ECHO, b"late", timeout_s=1)
    sent = world.link.to_server.bytes_written
    await world.clock.advance(1)
    with pytest.raises(NotSentError, match=r"server:0 has read nothing for 1 s"):
        await late
    assert world.link.to_server.bytes_written == sent
    world.link.to_server.release()
    assert len((await first).body) == 2_000
    assert (await waiting).body == b"waits"


async def test_a_request_that_fits_in_no_frame_is_not_sent_and_a_response_becomes_an_error() -> None:
    world = World()
    with pytest.raises(FrameError, match=r"at most 16,777,216"):
        await world.client.request(ECHO, bytes(16 << 20), timeout_s=3)
    assert world.client.in_flight == 0
    world.server_side.request = lambda call: call.respond(bytes(16 << 20))
    assert (await world.client.request(ECHO, timeout_s=3)).remark == "request code 20001 failed: FrameError"


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.lists(st.integers(0, 50_000), min_size=1, max_size=8))
async def test_pieces_of_any_size_carry_all_requests(piece_bytes: int, sizes: list[int]) -> None:
    world = World(piece_bytes=piece_bytes * 10)
    bodies = [bytes((number,)) * size for number, size in enumerate(sizes)]
    tasks = [asyncio.create_task(world.client.request(ECHO, body, timeout_s=30)) for body in bodies]
    await until(lambda: all(task.done() for task in tasks))
    assert [(await task).body for task in tasks] == bodies
