"""Figure G3: kill -9 of a real broker under load, at seeded moments; it starts again, and everything is read and
compared.

The senders outlive the kill: what the broker has not answered is sent to it again when it is back, and must not stand
there twice.

A seed is one store that lives through several kills, under sync flush for an odd seed and async flush for an even one:
what was written is in the page cache, which outlives the process, so that both have to keep all that they acknowledged.
"""

from __future__ import annotations

import asyncio
import enum
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from numbered_load import Book, Sender, problems
from sweep import Outcome

from hourglass.mq.v1 import broker_service_pb2, broker_service_pb2_grpc, common_pb2
from hourglass_local.cluster import ASYNC_FLUSH, SYNC_FLUSH, Cluster
from hourglass_local.waiting import eventually
from mqclient import Admin, Producer
from mqproto.record import Record, iter_records
from osenv import SeededRng

TOPIC, QUEUES = "numbers", 4
COMMIT_LOG_FILE_BYTES = 64 * 1024  # the smallest that the broker takes: the log rolls over all the time
IN_FLIGHT = (1, 1, 1, 1, 20, 20)  # of each sender
KILLS = 5  # of one seed
ACKNOWLEDGED_MAX = 600  # before a kill
STARTS_KILLED_MAX = 2
TIMEOUT_S = 30.0
PULL_MESSAGES, PULL_BYTES = 32, 1 << 20


class Moment(enum.Enum):
    """When the broker dies."""

    UNDER_LOAD = "under load"
    AT_A_ROLL_OVER = "at a roll-over"
    WHILE_STARTING = "while starting"


@dataclass
class Kills:
    """One store, its load, and what was seen of it so far."""

    cluster: Cluster
    seed: int
    book: Book = field(default_factory=Book)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._rng = SeededRng(self.seed)
        (self._broker,) = self.cluster.brokers
        (self._address,) = self.cluster.broker_addresses
        self._senders = [
            Sender(number, TOPIC, number % QUEUES, in_flight, self.book, self.seed)
            for number, in_flight in enumerate(IN_FLIGHT)
        ]
        self._seen: dict[int, list[tuple[int, bytes]]] = {}
        self._start_s = 1.0  # how long a start takes, as of the last one

    async def one(self) -> list[str]:
        """Load, kill, perhaps kill again while it starts, start, and compare; returns what is wrong."""
        moment, stop = self._rng.choice(list(Moment)), asyncio.Event()
        async with Producer("numbers", self.cluster.url) as producer, asyncio.TaskGroup() as tasks:
            for sender in self._senders:
                tasks.create_task(sender.run(producer, stop))
            await self._kill_under_load(moment)
            stop.set()
            if moment is Moment.WHILE_STARTING:
                for _ in range(self._rng.randrange(1, STARTS_KILLED_MAX + 1)):
                    await self._kill_while_starting()
            acknowledged, began = len(self.book.acknowledged), time.monotonic()
            await self._broker.start(TIMEOUT_S)
            self._start_s = time.monotonic() - began
        self.counts["answered after the kill"] += len(self.book.acknowledged) - acknowledged
        self.counts[moment.value] += 1
        stored = await read_queues(self._address)
        found = problems(self.book, stored) + self._changed(stored)
        self._seen = stored
        return found

    async def _kill_under_load(self, moment: Moment) -> None:
        wanted = len(self.book.acknowledged) + self._rng.randrange(1, ACKNOWLEDGED_MAX)
        await eventually(
            lambda: len(self.book.acknowledged) >= wanted, TIMEOUT_S, f"{wanted} messages", interval_s=0.001
        )
        if moment is Moment.AT_A_ROLL_OVER:
            files = self._log_files()
            await eventually(lambda: self._log_files() > files, TIMEOUT_S, "a roll-over", interval_s=0.0005)
        await self._broker.kill()

    async def _kill_while_starting(self) -> None:
        self._broker.launch()
        await asyncio.sleep(self._rng.uniform(0.2, 1.0) * self._start_s)
        await self._broker.kill()

    def _log_files(self) -> int:
        return len(os.listdir(self.cluster.store_folder(self._broker) / "commitlog"))  # noqa: PTH208

    def _changed(self, stored: dict[int, list[tuple[int, bytes]]]) -> list[str]:
        """What was read after the kill before has to be there still, at its place."""
        return [
            f"queue {queue_id}: what was read after an earlier kill has changed"
            for queue_id, before in self._seen.items()
            if stored[queue_id][: len(before)] != before
        ]


async def read_queues(address: str, topic: str = TOPIC, queues: int = QUEUES) -> dict[int, list[tuple[int, bytes]]]:
    """(queue offset, body) of every message of each queue, by Pull."""
    records = await read_records(address, topic, queues)
    return {queue_id: [(one.queue_offset, one.body) for one in records[queue_id]] for queue_id in records}


async def read_records(address: str, topic: str = TOPIC, queues: int = QUEUES) -> dict[int, list[Record]]:
    """Every message of each queue as the broker has it, by Pull. Raises RuntimeError when the broker rejects."""
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub = broker_service_pb2_grpc.BrokerServiceStub(channel)
        return {queue_id: await _read_queue(stub, topic, queue_id) for queue_id in range(queues)}


async def _read_queue(stub: broker_service_pb2_grpc.BrokerServiceAsyncStub, topic: str, queue_id: int) -> list[Record]:
    messages: list[Record] = []
    offset = 0
    while True:
        request = broker_service_pb2.PullRequest(
            group="auditors", topic=topic, queue_id=queue_id, queue_offset=offset, max_messages=PULL_MESSAGES,
            max_bytes=PULL_BYTES, expression="*",
        )  # fmt: skip
        answer = await stub.Pull(request, timeout=TIMEOUT_S)
        if answer.code != common_pb2.SUCCESS:
            raise RuntimeError(f"a pull from queue {queue_id} at {offset} was rejected: {answer.remark}")
        messages += iter_records(answer.records)
        if answer.next_begin_offset == offset:
            return messages
        offset = answer.next_begin_offset


async def run_kills(folder: Path, seed: int, kills: int, deadline: float = float("inf")) -> Outcome:
    """`kills` kills of one broker, or as many as there is time for."""
    flush = SYNC_FLUSH if seed % 2 else ASYNC_FLUSH
    async with Cluster(folder, orders=False, flush=flush, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        run, done = Kills(cluster, seed), 0
        found: list[str] = []
        while done < kills and not found and time.monotonic() < deadline:
            found = [f"{flush}, kill {done + 1}: {problem}" for problem in await run.one()]
            done += 1
        stopped = await cluster.stop()
        if stopped.killed or stopped.failed or stopped.leftover:
            found.append(f"the processes did not stop well: {stopped}")
    run.counts["acknowledged"] = len(run.book.acknowledged)
    run.counts["tried"] = len(run.book.tried)
    return Outcome(done, tuple(found), dict(run.counts))


class KillSweep:
    """The kills of `make robustness`; a seed is `KILLS` of them."""

    name, figure, unit, goal, share = "kills", "G3", "kill -9 under load", 500, 20

    def run(self, seed: int, deadline: float) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="hourglass-kills-") as folder:
            return asyncio.run(run_kills(Path(folder), seed, KILLS, deadline))
