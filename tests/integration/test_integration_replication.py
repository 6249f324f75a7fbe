"""A master and its replica as real processes: who dies comes back, and nothing that was acknowledged is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hourglass_local.cluster import ASYNC_FLUSH, SYNC_MASTER, Cluster
from hourglass_local.pair import PairLogs, first_difference, settled_logs
from hourglass_local.process import ManagedProcess, replica_status
from hourglass_local.testing_traffic import QUICK, consuming
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, Producer, SendStatus

TOPIC, QUEUES, GROUP = "flights", 4, "readers"
LOG_FILE_BYTES = 64 * 1024
SOON_ALONE = {"haSendHeartbeatInterval": "200", "haMaxTimeSlaveNotCatchup": "1000"}
TIMEOUT_S = 60

pytestmark = pytest.mark.processes


@asynccontextmanager
async def pair(folder: Path, **options: Any) -> AsyncIterator[tuple[Cluster, ManagedProcess, ManagedProcess]]:
    """A SYNC_MASTER and its replica, in sync, with a topic."""
    async with Cluster(folder, replicas_of=SYNC_MASTER, orders=False, flush=ASYNC_FLUSH, **options) as cluster:
        async with Admin(cluster.url, client_config=QUICK) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        (master,), (replica,) = cluster.brokers, cluster.replicas
        yield cluster, master, replica


async def send(cluster: Cluster, bodies: list[bytes], wanted: SendStatus = SendStatus.SEND_OK) -> None:
    """Ten at a time: what goes out together has to fit into a file of the log."""
    async with Producer("senders", cluster.url, client_config=QUICK) as producer:
        for ten in batched(bodies, 10):
            results = await asyncio.gather(*(producer.send(Message(TOPIC, body)) for body in ten))
            assert {result.send_status for result in results} == {wanted}


async def wait_alone(cluster: Cluster) -> None:
    """Return when the master has decided that it has no replica."""

    async def alone() -> bool:
        status = await replica_status(cluster.broker_addresses[0])
        return status is not None and status.in_sync_replicas == 1

    await eventually(alone, TIMEOUT_S, "the replica is no longer in the in-sync set")


def batched(bodies: list[bytes], count: int) -> list[list[bytes]]:
    return [bodies[begin : begin + count] for begin in range(0, len(bodies), count)]


def numbered(numbers: range, size: int = 1) -> list[bytes]:
    return [b"%d" % number * size for number in numbers]


async def same_logs(cluster: Cluster) -> PairLogs:
    """Of master and replica, when both have come to rest."""
    logs = await settled_logs(cluster.broker_addresses[0], cluster.replica_addresses[0])
    assert logs.are_the_same, logs
    return logs


def difference(cluster: Cluster, logs: PairLogs) -> int | None:
    """Of the files on disk."""
    (master,), (replica,) = cluster.brokers, cluster.replicas
    return first_difference(cluster.store_folder(master), cluster.store_folder(replica), logs.master_end)


@pytest.mark.mechanism("H4")
async def test_a_group_goes_on_at_the_replica_and_what_it_finished_there_survives_the_masters_return(
    tmp_path: Path,
) -> None:
    first, second = numbered(range(100)), numbered(range(100, 200))
    async with pair(tmp_path) as (cluster, master, _):
        await send(cluster, first)
        async with consuming(cluster.url, TOPIC, GROUP) as inbox:
            await inbox.wait(len(first))
        await send(cluster, second)
        await same_logs(cluster)  # the replica hears some milliseconds later what consumers may see
        await master.kill()
        async with consuming(cluster.url, TOPIC, GROUP) as inbox:
            await inbox.wait(len(second))
        assert sorted(inbox.bodies.elements()) == sorted(second)

        await master.start()
        await cluster.wait_in_sync()
        async with Admin(cluster.url, client_config=QUICK) as admin:

            async def all_finished() -> bool:
                return (await admin.consume_stats(GROUP, TOPIC)).lag == 0

            await eventually(all_finished, TIMEOUT_S, "the master knows what was finished at the replica")
        await send(cluster, [b"last"])
        async with consuming(cluster.url, TOPIC, GROUP) as inbox:
            await inbox.wait(1)
        assert list(inbox.bodies.elements()) == [b"last"]
        logs = await same_logs(cluster)
    assert difference(cluster, logs) is None


async def test_a_replica_whose_master_stops_right_after_an_answer_shows_all_that_was_answered(tmp_path: Path) -> None:
    """What is sent one by one is confirmed faster than the replica is told, and with no client left a stop is quick."""
    async with pair(tmp_path) as (cluster, master, _):
        for stop in range(4):
            async with Producer("senders", cluster.url, client_config=QUICK) as producer:
                bodies = [b"%d-%d" % (stop, number) for number in range(3 + stop)]
                results = [await producer.send(Message(TOPIC, body)) for body in bodies]
                assert {result.send_status for result in results} == {SendStatus.SEND_OK}
            await master.terminate()
            async with consuming(cluster.url, TOPIC, GROUP) as inbox:
                await inbox.wait(len(bodies))
            assert sorted(inbox.bodies.elements()) == bodies
            await master.start()
            await cluster.wait_in_sync()


async def test_a_master_alone_says_so_and_the_replica_gets_what_it_has_missed(tmp_path: Path) -> None:
    async with pair(tmp_path, broker_settings=SOON_ALONE) as (cluster, _, replica):
        await send(cluster, numbered(range(20)))
        await replica.kill()
        await wait_alone(cluster)
        await send(cluster, numbered(range(20, 40)), SendStatus.SLAVE_NOT_AVAILABLE)
        await replica.start()
        await cluster.wait_in_sync()
        await send(cluster, numbered(range(40, 60)))
        logs = await same_logs(cluster)
    assert difference(cluster, logs) is None


@pytest.mark.mechanism("H2")
async def test_a_replica_that_was_away_for_long_begins_anew_with_the_oldest_file(tmp_path: Path) -> None:
    """The master's first files have been deleted meanwhile, and the replica ends in one of them."""
    small = {"commit_log_file_bytes": LOG_FILE_BYTES, "broker_settings": SOON_ALONE}
    async with pair(tmp_path, **small) as (cluster, master, replica):
        await send(cluster, numbered(range(10)))
        behind = await same_logs(cluster)
        await replica.terminate()
        await wait_alone(cluster)
        await send(cluster, numbered(range(1_000, 1_080), size=1_000), SendStatus.SLAVE_NOT_AVAILABLE)
        await master.terminate()
        *deleted, oldest = sorted((cluster.store_folder(master) / "commitlog").iterdir())[:4]
        for file in deleted:
            file.unlink()
        assert behind.replica_end < int(oldest.name)

        await asyncio.gather(master.start(), replica.start())
        await cluster.wait_in_sync()
        status = await replica_status(cluster.replica_addresses[0])
        assert status is not None
        assert status.log_begin == int(oldest.name)
        await send(cluster, [b"last"])
        logs = await same_logs(cluster)
    assert difference(cluster, logs) is None
