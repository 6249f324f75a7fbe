"""Senders that go on and on, for tests that do something to a cluster meanwhile; what consumers get, what is stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    MQClientError,
    Producer,
    SendResult,
    SendStatus,
)
from mqclient.testing import made_consumer

TIMEOUT_S = 60.0
SEND_TIMEOUT_S = 30.0  # so much patience that a busy machine makes no send fail
PAUSE_S = 0.01  # of a sender between two sends: eight of them make some 600 a second, and leave the machine to others
QUICK = ClientConfig(poll_name_server_interval_s=0.3, heartbeat_broker_interval_s=0.3)


@dataclass
class Load:
    """What each send came to."""

    producer: Producer
    topic: str
    results: list[SendResult] = field(default_factory=list)
    bodies: dict[bytes, SendStatus] = field(default_factory=dict)  # of the sends that were answered
    failures: list[str] = field(default_factory=list)

    async def send_for_ever(self, sender: int) -> None:
        """Each body is sent by one call; what becomes of it is on record."""
        number = 0
        while True:
            body = b"%d:%d" % (sender, number)
            number += 1
            try:
                result = await self.producer.send(Message(self.topic, body), timeout=SEND_TIMEOUT_S)
            except MQClientError as error:
                self.failures.append(f"{body.decode()}: {type(error).__name__}: {error}")
                continue
            self.results.append(result)
            self.bodies[body] = result.send_status
            await asyncio.sleep(PAUSE_S)

    async def some(self, count: int = 200, status: SendStatus | None = None) -> None:
        """Go on until so many more sends are answered, with this status if it is given. Raises NotInTimeError."""
        start = len(self.results)

        def enough() -> bool:
            since = self.results[start:]
            return sum(status is None or result.send_status is status for result in since) >= count

        await eventually(enough, TIMEOUT_S, f"{count} more messages answered {status.value if status else ''}".strip())

    def with_status(self, status: SendStatus) -> set[bytes]:
        """The bodies that were answered so."""
        return {body for body, answered in self.bodies.items() if answered is status}


@contextlib.asynccontextmanager
async def load(producer: Producer, topic: str, senders: int = 8) -> AsyncIterator[Load]:
    """So many senders, until the block ends."""
    running = Load(producer, topic)
    tasks = [asyncio.create_task(running.send_for_ever(sender)) for sender in range(senders)]
    try:
        yield running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stored_bodies(admin: Admin, queues: Iterable[MessageQueue]) -> Counter[bytes]:
    """Every body in these queues, and how often it is there."""
    return Counter([message.body for queue in queues async for message in admin.read_queue(queue)])


class Inbox:
    """A listener that counts the bodies that it gets."""

    def __init__(self) -> None:
        self.bodies: Counter[bytes] = Counter()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.bodies.update(message.body for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    async def wait(self, count: int) -> None:
        """Return when so many messages have come, each as often as it came. Raises NotInTimeError."""
        await eventually(lambda: self.bodies.total() >= count, TIMEOUT_S, f"{count} messages")


@contextlib.asynccontextmanager
async def consuming(url: str, topic: str, group: str) -> AsyncIterator[Inbox]:
    """A member of the group, which begins with the first message of the topic where it has no offset."""
    inbox = Inbox()
    consumer = made_consumer(
        group, url, client_config=QUICK, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(inbox)
    async with consumer:
        yield inbox
