"""A producer in a process of its own, so that what it sees is not the doing of the consumer beside it.

It sends at fixed times, and each send counts from its time. It stops when it is asked to (SIGTERM, or the end of its
standard input), and then writes what it has seen to its standard output: pairs of the intended time, on perf_counter,
which all processes of a machine share, and the seconds from it until the acknowledgement.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from types import TracebackType
from typing import Self

from hourglass_loadtest.measure.errors import MeasureError
from hourglass_loadtest.measure.pacing import start_on_time
from hourglass_loadtest.measure.sending import GROUP, send_one
from hourglass_loadtest.workload import Workload
from mqclient import Message, Producer
from osenv.process import stop_event

BESIDE_TOPIC = "bench-beside"
STARTED = b"started\n"

Sent = tuple[float, float]


async def produce_beside(url: str, workload: Workload) -> None:
    """What the process does. Raises MQClientError, MeasureError."""
    asked = stop_event()
    sent: list[Sent] = []
    body = os.urandom(workload.body_bytes)
    async with Producer(f"{GROUP}-beside", url) as producer:
        await send_one(producer, Message(BESIDE_TOPIC, body))  # opens the connection
        begin = time.perf_counter()

        def intended(number: int) -> float:
            return begin + number / workload.beside_per_s

        async def send(number: int) -> None:
            await send_one(producer, Message(BESIDE_TOPIC, body))
            sent.append((intended(number), time.perf_counter() - intended(number)))

        sending = asyncio.create_task(start_on_time(map(intended, itertools.count()), send))
        stopping = asyncio.create_task(asked.wait())
        sys.stdout.buffer.write(STARTED)
        sys.stdout.buffer.flush()
        await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        sending.cancel()
        await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.result()
    print(json.dumps(sent))


class ProducerBeside:
    """That process; an async context manager, in which it sends until `stop`."""

    def __init__(self, url: str, workload: Workload) -> None:
        self._arguments = [url, json.dumps(workload.to_dict())]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Raises MeasureError when it does not come to send."""
        leashed = ["-m", "hourglass_local.child", "hourglass_loadtest", "beside"]  # it ends with us, however we end
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *leashed, *self._arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            await self._started(self._process)
        except BaseException:
            await self._end(self._process)
            raise
        return self

    async def stop(self) -> list[Sent]:
        """What it has seen. Raises MeasureError when it has failed."""
        process = self._process
        if process is None or process.stdin is None:
            raise AssertionError("the producer has been started, with pipes")
        process.stdin.close()
        output, _ = await process.communicate()
        if process.returncode:
            raise MeasureError(f"the producer beside it ended with code {process.returncode}")
        return [(intended, took_s) for intended, took_s in json.loads(output)]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self._end(self._process)

    @staticmethod
    async def _started(process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise AssertionError("the output of the producer is a pipe")
        if (line := await process.stdout.readline()) != STARTED:
            raise MeasureError(f"the producer beside it did not come to send; {line!r}, code {await process.wait()}")

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
            await process.wait()
