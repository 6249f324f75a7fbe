"""The queue through its client, on real processes: what was acknowledged is there, whichever process dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.process import ManagedProcess
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
    PushConsumer,
    SendStatus,
)
from mqclient.testing import made_consumer
from osenv import SeededRng

TOPIC, GROUP = "flights", "auditors"
QUEUES = 4
SHORT_DELAYS = " ".join(["1s"] * 18)
TIMEOUT_S = 20
EXIT_CANNOT_START, EXIT_BAD_CONFIGURATION = 1, 2

pytestmark = pytest.mark.processes


class Inbox:
    """A listener that keeps what it gets, with the time of arrival; `status` is what it answers."""

    def __init__(self, status: ConsumeStatus = ConsumeStatus.CONSUME_SUCCESS) -> None:
        self.messages: list[MessageExt] = []
        self.arrivals_ms: list[int] = []
        self._status = status

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.messages += messages
        self.arrivals_ms += [time.time_ns() // 1_000_000] * len(messages)
        return self._status

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def consumer(
    cluster: Cluster, inbox: Inbox, *, topic: str = TOPIC, group: str = GROUP, instance: str = "first", **options: Any
) -> PushConsumer:
    """A consumer of everything in `topic` since its beginning; not started."""
    config = ClientConfig(instance_name=instance, poll_name_server_interval_s=0.2)
    made = made_consumer(
        group,
        cluster.url,
        client_config=config,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        **options,
    )
    made.subscribe(topic)
    made.register_message_listener(inbox)
    return made


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
    inbox, stop = Inbox(), asyncio.Event()

    def acknowledged() -> int:
        return sum(len(sender.acknowledged) for sender in senders)

    async with queue_cluster(tmp_path) as cluster, Producer("flights", cluster.url) as producer:
        (broker,) = cluster.brokers
        async with consumer(cluster, inbox, consume_concurrency=1):
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
            await eventually(lambda: wanted <= {place(message) for message in inbox.messages}, TIMEOUT_S, "all of them")

    stored: dict[tuple[MessageQueue, int], bytes] = {}
    for message in inbox.messages:
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


async def test_messages_of_a_queue_arrive_once_and_in_order(tmp_path: Path) -> None:
    inbox = Inbox()
    async with queue_cluster(tmp_path) as cluster, Producer("flights", cluster.url) as producer:
        bodies = [f"message {number}".encode() for number in range(200)]
        async with consumer(cluster, inbox, consume_concurrency=1):
            results = await asyncio.gather(
                *(producer.send(Message(TOPIC, body), selector=lambda queues, _, __: queues[1]) for body in bodies)
            )
            await eventually(lambda: len(inbox.messages) >= len(bodies), TIMEOUT_S, "200 messages")
        assert inbox.bodies == bodies
        assert [result.queue_offset for result in results] == list(range(200))
        assert [message.message_id for message in inbox.messages] == [result.message_id for result in results]


async def test_delayed_message_arrives_once_and_not_early(tmp_path: Path) -> None:
    inbox = Inbox()
    async with queue_cluster(tmp_path) as cluster, Producer("flights", cluster.url) as producer:
        async with consumer(cluster, inbox):
            sent_ms = time.time_ns() // 1_000_000
            await producer.send(Message(TOPIC, b"later", tag="due", keys="k", properties={"a": "b"}, delay_level=1))
            await producer.send(Message(TOPIC, b"now"))
            await eventually(lambda: len(inbox.messages) == 2, TIMEOUT_S, "both messages")
        now, later = inbox.messages
        assert (now.body, later.body) == (b"now", b"later")
        assert 1_000 <= inbox.arrivals_ms[1] - sent_ms < 5_000  # level 1, and not level 2
        assert later.store_timestamp_ms - sent_ms >= 1_000
        assert (later.topic, later.tag, later.keys, later.properties["a"]) == (TOPIC, "due", ("k",), "b")


async def test_second_member_takes_its_share_and_the_first_takes_over_again(tmp_path: Path) -> None:
    first, second = Inbox(), Inbox()
    async with queue_cluster(tmp_path) as cluster, Producer("flights", cluster.url) as producer:
        async with consumer(cluster, first, instance="first") as stays:
            leaves = consumer(cluster, second, instance="second")
            await leaves.start()
            await eventually(
                lambda: {len(topic_queues(stays)), len(topic_queues(leaves))} == {QUEUES // 2}, TIMEOUT_S, "two each"
            )
            assert not set(topic_queues(stays)) & set(topic_queues(leaves))
            await send_all(producer, range(40))
            await eventually(lambda: len(first.messages) + len(second.messages) >= 40, TIMEOUT_S, "40 messages")
            assert len(first.messages) == len(second.messages) == 20
            assert set(first.bodies) | set(second.bodies) == {b"%d" % number for number in range(40)}

            await leaves.shutdown()
            await eventually(lambda: len(topic_queues(stays)) == QUEUES, TIMEOUT_S, "all queues")
            await send_all(producer, range(40, 80))
            await eventually(lambda: len(first.messages) >= 60, TIMEOUT_S, "40 more messages")
        assert set(first.bodies) | set(second.bodies) == {b"%d" % number for number in range(80)}
        assert len(first.messages) + len(second.messages) == 80  # nothing twice: offsets were handed over


def topic_queues(member: PushConsumer) -> list[MessageQueue]:
    return [queue for queue in member.queues if queue.topic == TOPIC]


async def send_all(producer: Producer, numbers: Sequence[int]) -> None:
    await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % number)) for number in numbers))


async def test_message_that_keeps_failing_comes_back_twice_and_ends_as_dead_letter(tmp_path: Path) -> None:
    failing, dead = Inbox(ConsumeStatus.RECONSUME_LATER), Inbox()
    async with queue_cluster(tmp_path, delay_levels=SHORT_DELAYS) as cluster, Producer("f", cluster.url) as producer:
        async with consumer(cluster, failing, max_reconsume_times=2):
            sent = await producer.send(Message(TOPIC, b"poison", tag="bad", keys="k"))
            await eventually(lambda: len(failing.messages) == 3, TIMEOUT_S, "three tries")

            async def dead_letter_topic_exists() -> bool:
                async with Admin(cluster.url) as admin:
                    return f"%DLQ%{GROUP}" in await admin.topic_list()

            await eventually(dead_letter_topic_exists, TIMEOUT_S, "a dead letter")
            async with consumer(cluster, dead, topic=f"%DLQ%{GROUP}", group="undertakers", instance="second"):
                await eventually(lambda: len(dead.messages) == 1, TIMEOUT_S, "the dead letter")
        assert [message.reconsume_times for message in failing.messages] == [0, 1, 2]
        assert {(message.topic, message.body, message.tag, message.keys) for message in failing.messages} == {
            (TOPIC, b"poison", "bad", ("k",))
        }
        pauses_ms = [later - earlier for earlier, later in pairwise(failing.arrivals_ms)]
        assert min(pauses_ms) >= 1_000
        (letter,) = dead.messages
        assert (letter.body, letter.tag, letter.keys, letter.message_id) == (b"poison", "bad", ("k",), sent.message_id)


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


async def test_second_broker_on_the_same_store_is_refused(tmp_path: Path) -> None:
    async with queue_cluster(tmp_path) as cluster:
        (broker,) = cluster.brokers
        run = await asyncio.to_thread(run_to_the_end, broker_command(broker, cluster))
        assert run.returncode == EXIT_CANNOT_START
        (sentence,) = [line for line in run.stderr.splitlines() if line.startswith("mq-broker: ")]
        assert str(cluster.store_folder(broker)) in sentence
        assert "Traceback" not in run.stderr
        assert broker.running


def test_unknown_configuration_key_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    run = run_to_the_end([sys.executable, "-m", "mq_broker", f"storePathRootDir={tmp_path}", "brokerNam=x"])
    assert run.returncode == EXIT_BAD_CONFIGURATION
    assert run.stderr == "mq-broker: unknown configuration key 'brokerNam'; did you mean brokerName?\n"
    assert list(tmp_path.iterdir()) == []
