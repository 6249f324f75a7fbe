"""A real broker that dies, or is stopped, while messages come due: each comes once and none early (mechanism D6).

Levels, delays and due times to the millisecond wait side by side; some are taken back. What was delivered, when, and
how often is read back from the topic's queues; when it is late, that is counted, and is no failure: a broker that is
down delivers nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hourglass_local.cluster import ASYNC_FLUSH, SYNC_FLUSH, Cluster
from hourglass_local.process import ManagedProcess
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, MessageExt, Producer, PullConsumer, RecallOutcome
from osenv import SeededRng

TOPIC, QUEUES = "reminders", 4
DELAYS_S = (1, 2, 3, 4)  # of the first four levels
DELAY_LEVELS = f"1s 2s 3s 4s {'1m ' * 14}"
COUNT = 600
RECALLED = 40
SPREAD_MS = (500, 4_000)
DOWN_AT_S = (1.0, 2.0, 3.0)  # since the last message was sent: the times at which the broker is stopped or killed
TIMEOUT_S = 30
COMMIT_LOG_FILE_BYTES = 64 * 1024  # the smallest that the broker takes: the log rolls over all the time
CLOCK_MS = 20  # that the broker's clock and ours may differ by; due times to the millisecond are the broker's own

pytestmark = pytest.mark.processes


@dataclass
class Reminders:
    """What was sent, and from when on it may be seen, in ms since 1970."""

    rng: SeededRng
    not_before_ms: dict[bytes, int] = field(default_factory=dict)
    removed: set[bytes] = field(default_factory=set)

    def next(self, number: int) -> Message:
        """A level, a delay or a time, in turn."""
        body, now_ms = b"%d" % number, time.time_ns() // 1_000_000
        message = Message(TOPIC, body, keys=f"reminder-{number}")
        wait_ms = self.rng.randrange(*SPREAD_MS)
        match number % 3:
            case 0:
                message.delay_level = self.rng.randrange(0, len(DELAYS_S)) + 1
                self.not_before_ms[body] = now_ms + 1_000 * DELAYS_S[message.delay_level - 1] - CLOCK_MS
            case 1:
                message.delay_ms = wait_ms
                self.not_before_ms[body] = now_ms + wait_ms - CLOCK_MS
            case _:
                message.deliver_at = datetime.fromtimestamp((now_ms + wait_ms) / 1_000, UTC)
                self.not_before_ms[body] = now_ms + wait_ms
        return message


@asynccontextmanager
async def cluster_at(folder: Path, flush: str) -> AsyncIterator[Cluster]:
    async with Cluster(
        folder, orders=False, delay_levels=DELAY_LEVELS, flush=flush, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES
    ) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        yield cluster


async def send_all(cluster: Cluster, reminders: Reminders) -> None:
    async with Producer("reminding", cluster.url) as producer:
        await asyncio.gather(*(producer.send(reminders.next(number)) for number in range(COUNT)))
        for number in range(0, COUNT, COUNT // RECALLED):
            result = await producer.recall(TOPIC, key=f"reminder-{number}")
            assert result.outcome in {RecallOutcome.REMOVED, RecallOutcome.ALREADY_DELIVERED}
            if result.outcome is RecallOutcome.REMOVED:
                reminders.removed.add(b"%d" % number)


async def interrupt(broker: ManagedProcess, *, kill: bool) -> None:
    """Three times, while messages come due."""
    begin_s = time.monotonic()
    for at_s in DOWN_AT_S:
        await asyncio.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        await (broker.kill() if kill else broker.terminate())
        await broker.start(TIMEOUT_S)


async def read_all(cluster: Cluster) -> list[MessageExt]:
    async with PullConsumer("readers", cluster.url) as consumer:
        found: list[MessageExt] = []
        for queue in await consumer.fetch_subscribe_message_queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                found += pulled.messages
                offset = pulled.next_begin_offset
        return found


async def waiting(cluster: Cluster) -> int:
    async with Admin(cluster.url) as admin:
        (status,) = await admin.broker_statuses()
        return sum(level.waiting for level in status.delay_levels)


@pytest.mark.mechanism("D6")
@pytest.mark.parametrize(
    ("kill", "flush"),
    [(False, SYNC_FLUSH), (True, SYNC_FLUSH), (True, ASYNC_FLUSH)],
    ids=["stopped", "killed", "killed with async flush"],
)
async def test_messages_that_come_due_while_the_broker_is_interrupted_come_once_and_none_early(
    kill: bool, flush: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    reminders = Reminders(SeededRng(1))
    async with cluster_at(tmp_path, flush) as cluster:
        await send_all(cluster, reminders)
        await interrupt(cluster.brokers[0], kill=kill)

        async def nothing_waits() -> bool:
            return await waiting(cluster) == 0

        await eventually(nothing_waits, TIMEOUT_S, "everything was delivered")
        found = await read_all(cluster)
    times = Counter(message.body for message in found)
    early_ms = {
        message.body: reminders.not_before_ms[message.body] - message.store_timestamp_ms
        for message in found
        if message.store_timestamp_ms < reminders.not_before_ms[message.body]
    }
    duplicates = times.total() - len(times)
    record_property(
        "figure",
        f"delays, {'kill -9' if kill else 'SIGTERM'} under {flush}: {len(reminders.not_before_ms)} sent, "
        f"{len(reminders.removed)} recalled, {len(times)} delivered, {duplicates} twice, {len(early_ms)} early",
    )
    assert early_ms == {}
    assert times.keys() == reminders.not_before_ms.keys() - reminders.removed
    assert len(reminders.removed) >= RECALLED // 2
    assert duplicates == 0
