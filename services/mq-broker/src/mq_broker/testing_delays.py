"""A broker with messages that wait, for tests in which days pass: it delivers, and does nothing else by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.producing import IncomingBatch
from mq_broker.processor.recalling import RecallAnswer
from mq_broker.store.message_store import StoreOptions
from mq_broker.testing import keyed, read_all, running_broker, timed
from mqproto.codes import RecallOutcome
from osenv import Disk, SimClock


@asynccontextmanager
async def delivering_broker(
    disk: Disk,
    clock: SimClock,
    *,
    options: BrokerOptions | None = None,
    store: StoreOptions | None = None,
    clean_stop: bool = True,
) -> AsyncIterator[Broker]:
    """Without checkpoints and cleaning, nothing happens while nothing is due."""
    async with running_broker(
        disk, clock, options=options, store=store, clean_stop=clean_stop, work=_deliver
    ) as broker:
        yield broker


async def bodies(broker: Broker, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    """What a consumer has got of the queue."""
    return [record.body for record in await read_all(broker, topic, queue_id)]


async def _deliver(broker: Broker) -> None:
    await asyncio.gather(broker.store.run(), broker.delay.run(), broker.delay.keep_index())


def in_ten_seconds(kind: str, unique_id: str = "m", key: str = "k") -> IncomingBatch:
    """One message of `t` that waits so long: in the queue of a "level", or in that of the "timer"."""
    if kind == "level":
        return keyed("t", key=key, unique_id=unique_id, delay_level=3)
    return timed("t", b"x", key=key, unique_id=unique_id, delay_ms=10_000)


def waiting(broker: Broker) -> dict[int, int]:
    """How many messages wait, by the number of the queue."""
    return {queue.level: queue.waiting for queue in broker.delay.queues if queue.waiting}


def outcomes(answer: RecallAnswer) -> dict[str, RecallOutcome]:
    """What a recall was told of each message. Raises ValueError when it was told of one twice."""
    found = {one.message_id: one.outcome for one in answer.messages}
    if len(found) < len(answer.messages):
        raise ValueError(f"one message, two answers: {answer.messages}")
    return found
