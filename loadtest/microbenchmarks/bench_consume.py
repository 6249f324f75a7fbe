"""A frame on its way through a consumer: messages out of it, into the process queue, through a listener, and out."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from micro_setup import TOPIC, describe, sealed_batch
from pytest_benchmark.fixture import BenchmarkFixture

from mqclient import ConsumeStatus, MessageExt, MessageQueue
from mqclient.consumer.consume_service import ConsumerStats, ProcessQueue
from mqclient.consumer.consuming import ConsumeMessageConcurrentlyService
from mqclient.consumer.engine import Discard
from mqclient.consumer.listener import ConsumeHooks, ListenerInvoker
from mqclient.consumer.offsets import Progress
from mqclient.consumer.pulling import messages_of
from osenv import RealClock

FRAME_MESSAGES = 256  # pull_batch_size
LISTENER_MESSAGES = 32
CONCURRENCY = 20
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
CLOSE_S = 1.0
LISTENER_S_MAX = 900.0  # as ConsumerConfig has it


def bench_consume(benchmark: BenchmarkFixture) -> None:
    describe(
        benchmark,
        f"consume a frame, {LISTENER_MESSAGES} to a listener (mqclient)",
        unit="message",
        count=FRAME_MESSAGES,
    )
    records = sealed_batch(count=FRAME_MESSAGES)
    with asyncio.Runner() as runner:
        consumption = _Consumption()
        runner.run(consumption.start())
        process_queue = benchmark(lambda: runner.run(consumption.of_frame(records)))
        assert (process_queue.commit_offset, process_queue.message_count) == (FRAME_MESSAGES, 0)
        runner.run(consumption.service.close(CLOSE_S))


class _Consumption:
    """A consume service whose listener reads every body."""

    async def start(self) -> None:
        clock, success = RealClock(), ConsumeStatus.CONSUME_SUCCESS
        listening = ListenerInvoker(clock, "group", self._listen, success, hooks=ConsumeHooks(), stats=ConsumerStats())
        self.service = ConsumeMessageConcurrentlyService(
            clock,
            listening,
            Discard(),
            self._finished,
            concurrency=CONCURRENCY,
            batch_size_max=LISTENER_MESSAGES,
            timeout_s=LISTENER_S_MAX,
        )
        self.service.start()

    async def of_frame(self, records: bytes) -> ProcessQueue:
        self._all_finished = asyncio.Event()
        process_queue = ProcessQueue(QUEUE, Progress(0))
        self.service.submit(process_queue, process_queue.put(messages_of(records, QUEUE.broker_name), FRAME_MESSAGES))
        await self._all_finished.wait()
        return process_queue

    async def _listen(self, messages: list[MessageExt]) -> ConsumeStatus:
        assert all(message.body for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    def _finished(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        process_queue.remove(messages)
        if not process_queue.message_count:
            self._all_finished.set()
