"""A copy of a broker at work, by mqadmin as a process; a store made of it, and a broker on that (mechanism H6)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.waiting import eventually
from mq_broker.store.layout import STORE_VERSION, encode_version
from mqclient import Admin, ConnectionLostError, Message, MessageQueue, Producer, RetryableError
from mqclient.admin.backups import DESCRIPTION_NAME

FILE_BYTES = 1024 * 1024
QUEUES = 4
TIMEOUT_S = 60

pytestmark = pytest.mark.processes


async def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `python -m ...`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT_S):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


class Load:
    """Sends numbered messages of 2 KiB, each into the queue of its number, one behind the other in each queue."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.acknowledged = [0] * QUEUES

    async def forever(self) -> None:
        async with Producer("load", self._url) as producer:
            await asyncio.gather(*(self._fill(producer, queue_id) for queue_id in range(QUEUES)))

    async def _fill(self, producer: Producer, queue_id: int) -> None:
        queue = MessageQueue("orders", "broker-a", queue_id)
        while True:
            await producer.send(Message("orders", body(self.acknowledged[queue_id])), queue=queue)
            self.acknowledged[queue_id] += 1


def body(number: int) -> bytes:
    return b"%08d" % number + bytes(2_040)


async def stored(admin: Admin, queue_id: int) -> list[bytes]:
    return [one.body async for one in admin.read_queue(MessageQueue("orders", "broker-a", queue_id))]


async def test_a_copy_of_a_broker_under_load_is_a_store_with_everything_that_was_acknowledged(tmp_path: Path) -> None:
    copy, small = tmp_path / "copy", {"brokers": 1, "orders": False, "commit_log_file_bytes": FILE_BYTES}
    async with Cluster(tmp_path / "one", **small) as cluster, Admin(cluster.url) as admin:  # type: ignore[arg-type]
        await admin.update_topic("orders", read_queue_count=QUEUES, write_queue_count=QUEUES)
        load = Load(cluster.url)
        loading = asyncio.create_task(load.forever())
        await eventually(lambda: sum(load.acknowledged) > 1_500, TIMEOUT_S, "three files of the log")
        before = list(load.acknowledged)
        code, stdout, stderr = await run(
            "mqadmin", "backup", "-n", cluster.url, "-b", cluster.broker_addresses[0], "-d", str(copy), "--json"
        )
        assert (code, stderr) == (0, "")
        assert json.loads(stdout)["files"] > 3
        after = list(load.acknowledged)
        assert sum(after) > sum(before), "the broker has gone on meanwhile"
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        original = [await stored(admin, queue_id) for queue_id in range(QUEUES)]
    other = Cluster(tmp_path / "two", **small)  # type: ignore[arg-type]
    store = other.store_folder(other.brokers[0])
    code, _, stderr = await run("mqadmin", "restore", "-d", str(copy), "-s", str(store))
    assert (code, stderr) == (0, f"mqadmin: to check it: python -m mq_broker.tools.dump_log {store} --verify\n")
    code, stdout, stderr = await run("mq_broker.tools.dump_log", str(store), "--verify")
    assert (code, stderr) == (0, ""), stdout
    async with other, Admin(other.url) as admin:
        for queue_id in range(QUEUES):
            found = await stored(admin, queue_id)
            assert before[queue_id] <= len(found) <= len(original[queue_id])
            assert found == original[queue_id][: len(found)]
    code, stdout, stderr = await run("mq_broker.tools.dump_log", str(store), "--verify")
    assert (code, stderr) == (0, ""), stdout


async def test_a_client_that_dies_in_the_middle_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with Cluster(tmp_path / "one", brokers=1, orders=False, commit_log_file_bytes=64 << 20) as cluster:
        async with Producer("g", cluster.url) as producer:
            for _ in range(16):
                await producer.send(Message("orders", os.urandom(4_000_000)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqadmin", "backup", "-n", cluster.url),
            *("-b", cluster.broker_addresses[0], "-d", str(copy)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        await eventually(
            lambda: list(copy.glob("commitlog/*")), TIMEOUT_S, "the first file of the log", interval_s=0.002
        )
        process.send_signal(signal.SIGKILL)
        await process.communicate()
        assert not (copy / DESCRIPTION_NAME).exists()
        code, _, stderr = await run("mqadmin", "restore", "-d", str(copy), "-s", str(tmp_path / "store"))
        assert (code, "has not come to its end" in stderr) == (1, True)
        async with Admin(cluster.url) as admin:  # and the broker is ready for the next one

            async def backed_up() -> bool:
                try:
                    await admin.backup_store("broker-a", tmp_path / "again")
                except (ConnectionLostError, RetryableError):
                    return False  # it has not heard yet that the first one has gone
                return True

            await eventually(backed_up, TIMEOUT_S, "a second copy")


async def test_a_store_of_a_newer_version_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    version = store / "version"
    version.write_bytes(encode_version(STORE_VERSION + 1))
    code, _, stderr = await run("mq_broker", f"storePathRootDir={store}", "listenPort=0")
    assert code == 1
    assert f"mq-broker: {version} says version {STORE_VERSION + 1}, and this program knows versions up to" in stderr
    assert list(store.iterdir()) == [version]
