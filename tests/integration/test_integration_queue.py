"""The queue through its client, on real processes: what was acknowledged is there, whichever process dies.

What clients may rely on besides is in tests/contract, which runs on processes too.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.process import ManagedProcess
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    MQClientError,
    Producer,
    SendStatus,
)
from mqclient.testing import made_consumer
from osenv import SeededRng

TOPIC = "flights"
QUEUES = 4
TIMEOUT_S = 20
EXIT_CANNOT_START, EXIT_BAD_CONFIGURATION = 1, 2

pytestmark = pytest.mark.processes


@asynccontextmanager
async def queue_cluster(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    """A name server and a broker with the topic."""
    async with Cluster(folder, orders=False, **options) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        yield cluster
        stopped = await cluster.stop()
        assert (stopped.killed, stopped.failed, stopped.leftover) == ((), (), ())


def broker_command(broker: ManagedProcess, cluster: Cluster, *settings: str) -> list[str]:
    """A second broker on the store of the first one."""
    store = f"storePathRootDir={cluster.store_folder(broker)}"
    return [sys.executable, "-m", "mq_broker", "listenPort=0", store, "mappedFileSizeCommitLog=16777216", *settings]


def run_to_the_end(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


class Sender:
    """Sends its numbered messages to one queue, one after the other, each until it is acknowledged."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._rng = SeededRng(number)
        self.acknowledged: list[tuple[MessageQueue, int, bytes]] = []

    async def run(self, producer: Producer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            size = self._rng.randrange(1, 4_096)
            body = f"{self._number}:{len(self.acknowledged)}:".encode() + self._rng.randbytes(size)
            try:
                result = await producer.send(
                    Message(TOPIC, body),
                    selector=lambda queues, _, number: queues[number % QUEUES],
                    selector_argument=self._number,
                )
            except MQClientError:
                continue  # not acknowledged: nothing is promised, the same number goes out again
            assert result.send_status is SendStatus.SEND_OK
            self.acknowledged.append((result.message_queue, result.queue_offset, body))


async def test_everything_acknowledged_survives_a_killed_broker(tmp_path: Path) -> None:
    senders = [Sender(number) for number in range(20)]
    inbox: list[MessageExt] = []
    stop = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> ConsumeStatus:
        inbox.extend(messages)
        return ConsumeStatus.CONSUME_SUCCESS

    def acknowledged() -> int:
        return sum(len(sender.acknowledged) for sender in senders)

    async with queue_cluster(tmp_path) as cluster, Producer("flights", cluster.url) as producer:
        (broker,) = cluster.brokers
        where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = made_consumer("auditors", cluster.url, consume_from_where=where, consume_concurrency=1)
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(listen)
        async with consumer:
            async with asyncio.TaskGroup() as tasks:
                for sender in senders:
                    tasks.create_task(sender.run(producer, stop))
                await eventually(lambda: acknowledged() > 500, TIMEOUT_S, "500 messages before the kill")
                await broker.kill()
                before = acknowledged()
                await broker.start()
                await eventually(lambda: acknowledged() > before + 500, TIMEOUT_S, "500 messages after the restart")
                stop.set()
            wanted = {(queue, offset) for sender in senders for queue, offset, _ in sender.acknowledged}
            await eventually(lambda: wanted <= {place(message) for message in inbox}, TIMEOUT_S, "all of them")

    stored: dict[tuple[MessageQueue, int], bytes] = {}
    for message in inbox:
        assert stored.setdefault(place(message), message.body) == message.body  # what was read once never changes
    for sender in senders:
        places = [(queue, offset) for queue, offset, _ in sender.acknowledged]
        assert places == sorted(places)  # each sender's messages stand in the order of its sends
        assert [stored[queue, offset] for queue, offset, _ in sender.acknowledged] == [
            body for _, _, body in sender.acknowledged
        ]
    offsets = defaultdict[MessageQueue, set[int]](set)
    for queue, offset in stored:
        offsets[queue].add(offset)
    for seen in offsets.values():
        assert seen == set(range(len(seen)))  # without a gap


def place(message: MessageExt) -> tuple[MessageQueue, int]:
    return message.message_queue, message.queue_offset


async def send_all(producer: Producer, numbers: Sequence[int]) -> None:
    await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % number)) for number in numbers))


async def test_broker_stops_with_0_and_reads_nothing_again_after_a_clean_stop(tmp_path: Path) -> None:
    async with queue_cluster(tmp_path) as cluster, Producer("flights", cluster.url) as producer:
        (broker,) = cluster.brokers
        await send_all(producer, range(100))
        await broker.terminate()
        assert (broker.exit_code, broker.was_killed_to_stop) == (0, False)
        await broker.start()
        assert "read again: 0 records" in last_start(broker)
        async with Admin(cluster.url) as admin:
            (status,) = await admin.broker_statuses()
        assert status.messages_stored == 1 + 100, "the record of the topic's creation, and what was sent"

        await broker.kill()
        await broker.start()
        async with Admin(cluster.url) as admin:
            (status,) = await admin.broker_statuses()
        assert status.messages_stored == 1 + 100


def last_start(broker: ManagedProcess) -> str:
    """The line in which the broker says what its recovery found."""
    return [line for line in broker.log_path.read_text().splitlines() if "read again: " in line][-1]


async def test_second_broker_on_the_same_store_is_rejected(tmp_path: Path) -> None:
    async with queue_cluster(tmp_path) as cluster:
        (broker,) = cluster.brokers
        run = await asyncio.to_thread(run_to_the_end, broker_command(broker, cluster))
        assert run.returncode == EXIT_CANNOT_START
        (sentence,) = [line for line in run.stderr.splitlines() if line.startswith("mq-broker: ")]
        assert str(cluster.store_folder(broker)) in sentence
        assert "Traceback" not in run.stderr
        assert broker.running


def test_unknown_configuration_key_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    run = run_to_the_end([sys.executable, "-m", "mq_broker", f"storePathRootDir={tmp_path}", "brokerNam=x"])
    assert run.returncode == EXIT_BAD_CONFIGURATION
    assert run.stderr == "mq-broker: unknown configuration key 'brokerNam'; did you mean brokerName?\n"
    assert list(tmp_path.iterdir()) == []
