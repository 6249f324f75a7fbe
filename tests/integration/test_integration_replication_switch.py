"""Changes of masters by an operator, under the load of a producer that is never started again.

What the client promises: each send that was answered is stored, and stored once, also when the master ends in the
middle of it (docs/guides/guarantees.md, "At least once").
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hourglass_local.cluster import ASYNC_FLUSH, SYNC_MASTER, Cluster
from hourglass_local.pair import first_difference, settled_logs
from hourglass_local.process import is_in_sync, replica_status
from hourglass_local.testing_traffic import QUICK, Load, load, stored_bodies
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
)

TOPIC, QUEUES, BROKER = "flights", 4, "broker-a"
EARLIER_STORE = Path(__file__).parents[1] / "fixtures/stores/a1aae4b"
EARLIER_SIZES = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
KEEP_OLD = {"fileReservedTime": str(24 * 3_650)}  # its messages are of 2023
TIMEOUT_S = 60
LOCK_EXPIRY_S = 60

pytestmark = pytest.mark.processes


async def mqadmin(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    return await mqadmin_alone(*arguments, "-n", cluster.url)


async def mqadmin_alone(*arguments: str) -> tuple[int, str, str]:
    """Without a name server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mqadmin", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT_S):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


async def switch(cluster: Cluster, *options: str) -> None:
    """Raises AssertionError with what was printed when it does not succeed."""
    code, stdout, stderr = await mqadmin(cluster, "switchMaster", "-b", BROKER, "--yes", *options)
    assert code == 0, stdout + stderr


@asynccontextmanager
async def pair(cluster: Cluster) -> AsyncIterator[Admin]:
    """The cluster runs, with a topic."""
    async with cluster, Admin(cluster.url, client_config=QUICK) as admin:
        await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        yield admin


def new_pair(folder: Path, settings: dict[str, str] | None = None) -> Cluster:
    """A SYNC_MASTER and its replica."""
    return Cluster(folder, replicas_of=SYNC_MASTER, orders=False, flush=ASYNC_FLUSH, broker_settings=settings)


@asynccontextmanager
async def under_load(cluster: Cluster) -> AsyncIterator[Load]:
    """Senders that go on and on, and have begun."""
    async with Producer("senders", cluster.url, client_config=QUICK) as producer, load(producer, TOPIC) as running:
        await running.some(status=SendStatus.SEND_OK)
        yield running


async def wait_following(master: str, replica: str) -> None:
    """Return when the brokers at these addresses are what the names say, and in sync."""

    async def as_wanted() -> bool:
        status = await replica_status(master)
        return status is not None and status.writable and status.broker_id == 0 and await is_in_sync(replica)

    await eventually(as_wanted, TIMEOUT_S, f"a master at {master} with a replica at {replica} in sync")


def queues() -> list[MessageQueue]:
    return [MessageQueue(TOPIC, BROKER, queue_id) for queue_id in range(QUEUES)]


async def require_stored_once(admin: Admin, running: Load) -> None:
    """Every send that was answered is there, and nothing is there twice."""
    stored = await stored_bodies(admin, queues())
    assert [body for body in running.bodies if not stored[body]] == []
    assert {body: count for body, count in stored.items() if count > 1} == {}


async def require_same_logs(cluster: Cluster, master: str, replica: str) -> None:
    """When there are no more writes."""
    logs = await settled_logs(master, replica)
    assert logs.are_the_same, logs
    stores = [cluster.store_folder(process) for process in (*cluster.brokers, *cluster.replicas)]
    assert first_difference(stores[0], stores[1], logs.master_end) is None


async def test_a_switch_under_load_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    cluster = new_pair(tmp_path)
    (one,), (other,) = cluster.broker_addresses, cluster.replica_addresses
    async with pair(cluster) as admin:
        code, stdout, stderr = await mqadmin(cluster, "haStatus")
        assert (code, stderr) == (0, "")
        assert all(address in stdout for address in (one, other))
        async with under_load(cluster) as running:
            await switch(cluster, "--to", other)
            await wait_following(other, one)
            await running.some(status=SendStatus.SEND_OK)
            await switch(cluster, "--to", one)  # and back again
            await wait_following(one, other)
            await running.some(status=SendStatus.SEND_OK)
        assert running.failures == []
        await require_stored_once(admin, running)
        await require_same_logs(cluster, one, other)


async def test_an_orderly_group_goes_on_after_a_switch(tmp_path: Path) -> None:
    """Its locks last for 60 s: without them no member would get a queue before they are over."""
    cluster = new_pair(tmp_path)
    (one,), (other,) = cluster.broker_addresses, cluster.replica_addresses
    got: set[bytes] = set()

    async def consume(messages: Sequence[MessageExt], _context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        got.update(message.body for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    async with pair(cluster):
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = PushConsumer("pilots", cluster.url, client_config=QUICK, consume_from_where=first)
        consumer.subscribe(TOPIC)
        consumer.register_message_listener_orderly(consume)
        async with consumer, Producer("senders", cluster.url, client_config=QUICK) as producer:
            await producer.send(Message(TOPIC, b"before"))
            await eventually(lambda: b"before" in got, TIMEOUT_S, "the first message")
            await switch(cluster, "--to", other)
            await wait_following(other, one)
            bodies = {b"after %d" % number for number in range(4 * QUEUES)}
            for body in sorted(bodies):
                await producer.send(Message(TOPIC, body))
            await eventually(lambda: bodies <= got, LOCK_EXPIRY_S / 2, "what was sent after the switch")


@pytest.mark.mechanism("H6")
async def test_a_lost_disk_of_the_master_costs_nothing_that_was_answered_with_send_ok(tmp_path: Path) -> None:
    cluster = new_pair(tmp_path)
    (master,), (one,), (other,) = cluster.brokers, cluster.broker_addresses, cluster.replica_addresses
    async with pair(cluster) as admin:
        async with under_load(cluster) as running:
            await master.kill()
            shutil.rmtree(cluster.store_folder(master))
            await switch(cluster, "--oldMasterIsLost")
            await running.some()
            await master.start()  # with an empty disk, as what it was: it finds out that it is a replica now
            await wait_following(other, one)
            await running.some(status=SendStatus.SEND_OK)
        stored = await stored_bodies(admin, queues())
        assert running.with_status(SendStatus.SEND_OK) - stored.keys() == set()
        await require_same_logs(cluster, other, one)


@pytest.mark.parametrize("takes_restored", [False, True])
async def test_a_restored_master_waits_beside_its_replica_until_an_operator_decides(
    tmp_path: Path, takes_restored: bool
) -> None:
    cluster = new_pair(tmp_path)
    (master,), (one,), (other,) = cluster.brokers, cluster.broker_addresses, cluster.replica_addresses
    copy = tmp_path / "copy"
    async with pair(cluster) as admin, Producer("senders", cluster.url, client_config=QUICK) as producer:
        await producer.send(Message(TOPIC, b"before"))
        await admin.backup_store(BROKER, copy)
        sent = await producer.send(Message(TOPIC, b"after"))
        assert sent.send_status is SendStatus.SEND_OK
        await master.kill()
        shutil.rmtree(cluster.store_folder(master))
        code, _, stderr = await mqadmin_alone("restore", "-d", str(copy), "-s", str(cluster.store_folder(master)))
        assert code == 0, stderr
        master.launch()
        for address in (one, other):

            async def says_why(address: str = address) -> bool:
                status = await replica_status(address)
                return status is not None and not status.writable and "put back from a backup" in status.reason

            await eventually(says_why, TIMEOUT_S, f"{address} says that a backup was put back")
        code, stdout, _ = await mqadmin(cluster, "haStatus", "-b", one)
        assert (code, "--oldMasterIsLost" in stdout) == (0, True), stdout
        await switch(cluster, *(("--to", one) if takes_restored else ("--oldMasterIsLost",)))
        leader, follower = (one, other) if takes_restored else (other, one)
        await wait_following(leader, follower)
        stored = await stored_bodies(admin, queues())
        assert set(stored) == ({b"before"} if takes_restored else {b"before", b"after"})
        await require_same_logs(cluster, leader, follower)


async def test_a_pair_begins_with_an_earlier_commits_store_and_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    cluster = new_pair(tmp_path, EARLIER_SIZES | KEEP_OLD)
    (old,), (new,) = cluster.brokers, cluster.replicas
    one, other = cluster.address(old), cluster.address(new)
    with tarfile.open(EARLIER_STORE / "killed.tar.xz") as archive:
        archive.extractall(cluster.store_folder(old), filter="data")
    async with pair(cluster) as admin:
        async with under_load(cluster) as running:
            await require_earlier_messages(admin)
            await new.terminate()
            await new.start()
            await wait_following(one, other)
            await switch(cluster, "--to", other)
            await old.terminate()
            await old.start()
            await wait_following(other, one)
            await running.some(status=SendStatus.SEND_OK)
        assert running.failures == []
        await require_earlier_messages(admin)
        await require_stored_once(admin, running)
        await require_same_logs(cluster, other, one)


async def require_earlier_messages(admin: Admin) -> None:
    """All that the earlier commit's broker read in its store, at the same places."""
    told = json.loads((EARLIER_STORE / "expected.json").read_text(encoding="utf-8"))
    for name, messages in told["messages"].items():
        topic, _, queue_id = name.rpartition(":")
        queue = MessageQueue(topic, BROKER, int(queue_id))
        found = [[one.queue_offset, zlib.crc32(one.body)] async for one in admin.read_queue(queue)]
        assert found[: len(messages)] == messages, name
