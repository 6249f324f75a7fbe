"""A reset of a group's offsets while it consumes, the same on `memory://` and on real processes.

Mechanisms L11, L13.
"""

from __future__ import annotations

from typing import Any

import pytest
from contract_world import Visit

from mqclient import Admin, ConsumeStatus, Message, MessageExt

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = 20


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


@pytest.mark.mechanism("L13", "C23")
async def test_members_go_on_at_the_new_offsets_and_commit_no_old_ones(visit: Visit) -> None:
    await visit.add_topic(queues=1)
    producer, inbox = await visit.producer(), visit.inbox()
    for body in numbered(0, MESSAGES):
        await producer.send(Message(visit.topic, body))
    await visit.consumer(inbox)
    await visit.world.until(lambda: len(inbox.bodies) == MESSAGES, "all messages once")
    async with Admin(visit.world.url) as admin:
        await visit.finish(admin.reset_offset_by_time(visit.group, visit.topic, 0))
        await visit.world.until(lambda: len(inbox.bodies) == 2 * MESSAGES, "all messages again")
        assert inbox.bodies == numbered(0, MESSAGES) * 2
        await producer.send(Message(visit.topic, b"afterwards"))
        await visit.world.until(lambda: inbox.bodies[-1] == b"afterwards", "what comes after the reset")
        await visit.finish(admin.reset_offset_by_time(visit.group, visit.topic, -1))
        await producer.send(Message(visit.topic, b"after the second one"))
        await visit.world.until(lambda: inbox.bodies[-1] == b"after the second one", "what comes after the second one")
        assert len(inbox.bodies) == 2 * MESSAGES + 2


async def test_what_waits_for_a_listener_at_the_reset_is_forgotten(visit: Visit) -> None:
    """The listener is busy with the first message; the reset goes to the end, so that it never sees the others."""
    await visit.add_topic(queues=1)
    producer = await visit.producer()
    for body in numbered(0, MESSAGES):
        await producer.send(Message(visit.topic, body))
    heard: list[bytes] = []
    go_on = False

    async def busy(messages: list[MessageExt]) -> ConsumeStatus:
        heard.extend(message.body for message in messages)
        while not go_on:
            await visit.world.clock.sleep(0.01)
        return ConsumeStatus.CONSUME_SUCCESS

    inbox: Any = busy
    await visit.consumer(inbox)
    await visit.world.until(lambda: heard == [b"0"], "the first message")
    async with Admin(visit.world.url) as admin:
        await visit.finish(admin.reset_offset_by_time(visit.group, visit.topic, -1))
        go_on = True
        await producer.send(Message(visit.topic, b"new"))
        await visit.world.until(lambda: len(heard) > 1, "the next message")
        assert heard == [b"0", b"new"]
