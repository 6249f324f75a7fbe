"""How a connection ends: drained, closed, unused, or because the peer is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from remoting_world import ECHO, ECHO_STREAM, HELD, World, raw

from mqremoting import Command, Connection, ConnectionConfig, ConnectionLostError, NotSentError, RejectedError, encode

CONFIG = ConnectionConfig()
NO_PINGS = replace(CONFIG, keepalive_s=None)


async def test_a_drain_finishes_what_runs_rejects_what_is_new_and_closes() -> None:
    world = World()
    task = await world.begin(HELD)
    client, _ = await world.open(ECHO_STREAM)
    world.link.to_client.hold()  # the client does not know yet
    draining = asyncio.create_task(world.server.drain(30))
    await world.clock.settle()
    late, late_stream = await world.begin(ECHO), world.client.open_stream(ECHO_STREAM)
    world.link.to_client.release()
    response = await late
    assert (response.code, response.remark) == (14, "this server is shutting down")
    with pytest.raises(RejectedError, match=r"code 14: this server is shutting down"):
        await late_stream.read()
    with pytest.raises(NotSentError, match=r"takes nothing new: server:0 is shutting down"):
        await world.client.request(ECHO, timeout_s=3)
    with pytest.raises(NotSentError, match=r"this side is shutting down"):
        await world.server.request(ECHO, timeout_s=3)

    await client.write(b"still")
    assert await client.read()
    client.end()
    assert await client.read() is None
    call = world.server_side.held[0]
    call.respond(b"done")
    assert call.task is not None
    call.task.cancel()
    assert (await task).body == b"done"
    await draining  # the client closes when it has nothing in flight, without a wait
    assert world.clock.timers == 0
    assert isinstance(world.client.error, ConnectionLostError)


async def test_a_drain_ends_what_does_not_finish_in_time() -> None:
    world = World()
    task = await world.begin(HELD, timeout_s=60)
    draining = asyncio.create_task(world.server.drain(5))
    await world.clock.advance(4.9)
    assert not draining.done()
    await world.clock.advance(0.1)
    await draining
    with pytest.raises(ConnectionLostError):
        await task
    assert world.server_side.cancelled == 1


async def test_a_drain_gives_a_peer_that_does_not_close_a_moment_to_read() -> None:
    world = World(NO_PINGS)
    task = await world.begin(HELD)
    draining = asyncio.create_task(world.server.drain(30))
    await world.clock.settle()
    world.link.to_server.hold()  # the client's word that it closes
    world.server_side.held[0].respond(b"read")
    world.server_side.held[0].give_up()
    await world.clock.advance(CONFIG.linger_s - 0.01)
    assert (await task).body == b"read"
    assert not draining.done()
    await world.clock.advance(0.01)
    await draining


async def test_draining_a_connection_that_has_ended_is_harmless() -> None:
    world = World()
    world.link.cut()
    await world.clock.settle()
    await world.server.drain(5)
    await world.client.close()
    await Connection().close()


async def test_both_sides_may_drain_at_once() -> None:
    world = World()
    task = await world.begin(ECHO, b"x")
    await asyncio.gather(world.server.drain(5), world.client.drain(5), world.clock.advance(5))
    assert (await task).body == b"x"


async def test_closing_writes_what_waits() -> None:
    world = World(piece_bytes=100)
    task = await world.begin(HELD)
    world.server_side.held[0].respond(bytes(10_000))
    await world.server.close()
    assert len((await task).body) == 10_000
    assert "was closed by this side" in str(world.server.error)


async def test_closing_waits_for_a_peer_that_does_not_read_no_longer_than_a_ping() -> None:
    world = World()
    world.link.to_client.hold()
    task = await world.begin(ECHO, bytes(10_000), timeout_s=60)
    closing = asyncio.create_task(world.server.close())
    await world.clock.advance(4.9)
    assert not closing.done()
    await world.clock.advance(0.1)
    await closing
    with pytest.raises(ConnectionLostError):
        await task
    assert world.clock.timers == 0


async def test_an_idle_connection_closes_by_itself() -> None:
    world = World(client_config=replace(CONFIG, idle_s=None))
    await world.clock.advance(100)
    await world.client.request(ECHO, timeout_s=3)
    await world.clock.advance(119)  # pings do not count as use
    assert world.server.error is None
    await world.clock.advance(1)
    assert "was closed by this side" in str(world.server.error)
    assert isinstance(world.client.error, ConnectionLostError)
    assert world.clock.timers == 0


async def test_a_connection_with_something_in_flight_does_not() -> None:
    world = World()
    client, _ = await world.open(ECHO_STREAM)
    await world.clock.advance(600)
    assert world.server.error is None
    client.end()
    await world.clock.advance(241)
    assert "was closed by" in str(world.server.error)


async def test_bytes_of_a_frame_that_never_ends_are_no_use() -> None:
    world = World(NO_PINGS)
    data = encode(Command(ECHO, body=bytes(1_000)))
    for at in range(130):
        raw(world.server, data[at : at + 1])
        await world.clock.advance(1)
    assert world.server.error is not None


async def test_a_peer_that_has_vanished_is_noticed_after_a_ping() -> None:
    world = World()
    client, _ = await world.open(ECHO_STREAM)
    task = await world.begin(HELD, timeout_s=600)
    world.link.go_silent()
    await world.clock.advance(24.9)
    assert not task.done()
    await world.clock.advance(0.1)
    with pytest.raises(ConnectionLostError, match=r"server:0 has been silent for 25.0 s, also to a ping"):
        await task
    with pytest.raises(ConnectionLostError):
        await client.read()
    assert world.server_side.cancelled == 2  # it has noticed, too
    assert world.clock.timers == 0


async def test_a_quiet_peer_that_answers_pings_stays() -> None:
    world = World(replace(CONFIG, idle_s=None))
    await world.clock.advance(1_000)
    assert (await world.client.request(ECHO, b"x", timeout_s=3)).body == b"x"


async def test_any_answer_to_a_ping_will_do() -> None:
    world = World(replace(CONFIG, idle_s=None))
    world.link.to_server.hold()
    for _ in range(5):
        await world.clock.advance(21)
        raw(world.client, encode(Command(3, -1, 1, remark="request type 0 not supported")))
        raw(world.server, encode(Command(3, -1, 1, remark="request type 0 not supported")))
    assert world.client.error is None


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"window_bytes": 1_000}, "window_bytes is 1,000; at least 262,144 are allowed"),
        ({"idle_s": 0.0}, "idle_s is 0; more than 0"),
        ({"ping_timeout_s": -1.0}, "ping_timeout_s is -1; more than 0"),
        ({"unread_bytes_max": 1_000_000}, "unread_bytes_max is 1,000,000; at least 17,039,360 are allowed"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_rejected(bad: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(CONFIG, **bad)  # type: ignore[arg-type]
