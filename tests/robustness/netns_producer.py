"""A process that sends numbered messages to a pair until SIGTERM, and writes down what came of each.

`python netns_producer.py URL TOPIC BROKER QUEUES SEED FILE`. Every sender keeps to one queue, and sends its next burst
when all of the last one have their outcome. Nothing is sent a second time, whatever its outcome.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import BinaryIO

import uvloop
from netns_history import Name, Sent, body_of, to_line

from mqclient import ClientConfig, Message, MessageQueue, MQClientError, Producer, SendResult
from osenv import SeededRng

BURSTS = (1, 1, 1, 6, 6)  # of each sender
PAUSE_MAX_S = (0.02, 0.02, 0.04, 0.1, 0.1)  # before its next burst: a few hundred messages a second over all
PAUSE_AFTER_ERROR_S = 0.1
SEND_TIMEOUT_S = 2.5
ROUTE_INTERVAL_S = 0.5


class NumberedSender:
    """Sends to one queue."""

    def __init__(self, number: int, queue: MessageQueue, seed: int, out: BinaryIO) -> None:
        self._number, self._queue, self._seed, self._out = number, queue, seed, out
        self._rng = SeededRng(seed * 1_000 + number)
        self._bursts = self._count = 0

    async def run(self, producer: Producer, stop: asyncio.Event) -> None:
        """Send until `stop`."""
        while not stop.is_set():
            self._bursts += 1
            first = self._count + 1
            self._count += BURSTS[self._number]
            names = [Name(self._number, number) for number in range(first, self._count + 1)]
            stored = await asyncio.gather(*(self._send(producer, name) for name in names))
            pause_s = self._rng.uniform(0.0, PAUSE_MAX_S[self._number])
            await _sleep(stop, pause_s if all(stored) else PAUSE_AFTER_ERROR_S)

    async def _send(self, producer: Producer, name: Name) -> bool:
        """Whether it was stored."""
        message = Message(self._queue.topic, body_of(self._seed, name), keys=str(name))
        began = time.monotonic()
        try:
            result = await producer.send(message, queue=self._queue, timeout=SEND_TIMEOUT_S)
        except MQClientError as error:
            self._write(name, began, type(error).__name__)
            return False
        self._write(name, began, result.send_status.value, result)
        return True

    def _write(self, name: Name, began: float, outcome: str, result: SendResult | None = None) -> None:
        queue_id, now = self._queue.queue_id, time.monotonic()
        sent = Sent(name.sender, name.number, self._bursts, began, now, outcome, queue_id)
        if result is not None:
            places = (result.queue_offset, result.log_offset, result.broker_address)
            sent = Sent(name.sender, name.number, self._bursts, began, now, outcome, queue_id, *places)
        self._out.write(to_line(sent))


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def produce(url: str, topic: str, broker: str, queues: int, seed: int, file: Path) -> None:
    """Send until SIGTERM; then until what is under way has its outcome."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = ClientConfig(instance_name="numbers", poll_name_server_interval_s=ROUTE_INTERVAL_S)
    with file.open("ab", buffering=0) as out:
        async with Producer("numbers", url, client_config=config) as producer, asyncio.TaskGroup() as tasks:
            for number in range(len(BURSTS)):
                sender = NumberedSender(number, MessageQueue(topic, broker, number % queues), seed, out)
                tasks.create_task(sender.run(producer, stop))


if __name__ == "__main__":
    url, topic, broker, queues, seed, file = sys.argv[1:]
    uvloop.run(produce(url, topic, broker, int(queues), int(seed), Path(file)))
