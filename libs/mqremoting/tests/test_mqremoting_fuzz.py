"""Frames that no connection of ours sends, in any order, into a connection."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from remoting_world import ECHO, ECHO_STREAM, HELD, World, raw

from mqremoting import Command, encode
from mqremoting.command import ONE_WAY, RESPONSE
from mqremoting.config import CLOSE, END, GO_AWAY, OPEN, PING, STREAM, WINDOW

BITS = [RESPONSE, ONE_WAY, STREAM, OPEN, END, CLOSE, WINDOW, PING, GO_AWAY]
FRAMES = st.builds(
    Command,
    code=st.sampled_from([0, 1, ECHO, HELD, ECHO_STREAM]),
    opaque=st.integers(-2, 4),
    flag=st.sets(st.sampled_from(BITS), max_size=4).map(sum),
    body=st.sampled_from([b"", b"\0\0\1\0", b"\xff" * 4, bytes(1_000)]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAMES, max_size=30), st.binary(max_size=60))
async def test_any_frames_are_taken_or_end_the_connection(frames: list[Command], rest: bytes) -> None:
    world = World()
    stream = world.client.open_stream(ECHO_STREAM)
    await world.begin(HELD)
    for frame in frames:
        for connection in (world.client, world.server):
            raw(connection, encode(frame))
        await world.clock.settle()
    raw(world.server, rest)
    world.link.cut()
    await world.clock.settle()
    assert world.client.error is not None
    assert world.server.error is not None
    assert not stream.is_open
    assert (world.client.in_flight, world.server.in_flight, world.clock.timers) == (0, 0, 0)
