"""A broker as a process that may open few files: neither its queues nor silent connections take them from the store."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from hourglass.mq.v1 import broker_service_pb2 as pb
from hourglass.mq.v1 import broker_service_pb2_grpc as pb_grpc
from hourglass.mq.v1 import common_pb2
from mq_broker.testing import incoming
from mqproto.names import parse_address

LIMIT = 256
TOPICS, QUEUES = 75, 4
LOG_FILE_BYTES = 200_000  # some files of the log are filled

pytestmark = pytest.mark.processes


@asynccontextmanager
async def limited_broker(folder: Path) -> AsyncIterator[str]:
    """A broker that may open `LIMIT` files and connections; yields its address, and kills it in the end."""
    settings = {"storePathRootDir": folder, "listenPort": 0, "mappedFileSizeCommitLog": LOG_FILE_BYTES}
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-m", "mq_broker"),
        *(f"{name}={value}" for name, value in settings.items()),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while "address" not in (line := json.loads(await process.stderr.readline())):
            pass
        reading = asyncio.create_task(process.stderr.read())
        yield line["address"]
        process.kill()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def send(stub: Any, topics: range, body: bytes) -> set[int]:
    """One message to each queue of the topics; all are stored. Returns the numbers that they have in their queues."""
    stream, numbers = stub.Produce(), set[int]()
    for topic in topics:
        sent = [incoming(f"topic-{topic}", [body], queue_id=queue_id) for queue_id in range(QUEUES)]
        batches = [pb.RecordBatch(topic=b.topic, queue_id=b.queue_id, count=1, records=b.records) for b in sent]
        await stream.write(pb.ProduceRequest(request_id=topic + 1, batches=batches))
        results = (await stream.read()).results
        assert [result.code for result in results] == [common_pb2.SUCCESS] * QUEUES, results[0].remark
        numbers.update(result.base_queue_offset for result in results)
    await stream.done_writing()
    return numbers


async def test_more_queues_than_descriptors_are_written_and_are_there_after_a_kill(tmp_path: Path) -> None:
    for life in range(2):
        async with limited_broker(tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
            assert await send(pb_grpc.BrokerServiceStub(channel), range(TOPICS), bytes(100)) == {life}


async def test_silent_connections_take_no_file_from_the_store(tmp_path: Path) -> None:
    async with limited_broker(tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.BrokerServiceStub(channel)
        await send(stub, range(1), bytes(100))
        place = parse_address(address)
        with ExitStack() as silent:
            sockets = [silent.enter_context(closing(socket.create_connection(place))) for _ in range(2 * LIMIT)]
            rejected = 0
            for one in sockets:
                one.settimeout(0)
            while rejected < LIMIT:  # the others wait for what they say
                await asyncio.sleep(0)
                rejected = sum(is_closed(one) for one in sockets)
            for topic in range(1, 30):
                await send(stub, range(topic, topic + 1), bytes(10_000))
        async with grpc.aio.insecure_channel(address) as another:
            await another.channel_ready()
            await send(pb_grpc.BrokerServiceStub(another), range(30, 31), b"x")


def is_closed(one: socket.socket) -> bool:
    """Whether the other side has closed the connection."""
    try:
        return one.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
