"""A message on its whole way through client and broker, which are in one process, without a network between them."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from micro_setup import BODY_BYTES, TOPIC, describe
from pytest_benchmark.fixture import BenchmarkFixture

from mq_broker.embedded import EmbeddedBroker
from mqclient import Message, Producer, SendStatus

ONE_BY_ONE, IN_FLIGHT = 16, 64
BODY = bytes(BODY_BYTES)


def bench_send_one_by_one(benchmark: BenchmarkFixture) -> None:
    describe(benchmark, "send with one in flight (client and broker)", unit="message", count=ONE_BY_ONE)
    with asyncio.Runner() as runner:
        stack, producer = runner.run(_producer())
        assert benchmark(lambda: runner.run(_one_by_one(producer))) == ONE_BY_ONE
        runner.run(stack.aclose())


def bench_send_in_flight(benchmark: BenchmarkFixture) -> None:
    describe(benchmark, f"send with {IN_FLIGHT} in flight (client and broker)", unit="message", count=IN_FLIGHT)
    with asyncio.Runner() as runner:
        stack, producer = runner.run(_producer())
        assert benchmark(lambda: runner.run(_together(producer))) == IN_FLIGHT
        runner.run(stack.aclose())


async def _producer() -> tuple[AsyncExitStack, Producer]:
    """A producer of an embedded broker, and what ends both."""
    stack = AsyncExitStack()
    broker = await stack.enter_async_context(EmbeddedBroker())
    return stack, await stack.enter_async_context(Producer("bench", broker.url))


async def _one_by_one(producer: Producer) -> int:
    results = [await producer.send(Message(TOPIC, BODY)) for _ in range(ONE_BY_ONE)]
    return sum(result.send_status is SendStatus.SEND_OK for result in results)


async def _together(producer: Producer) -> int:
    results = await asyncio.gather(*(producer.send(Message(TOPIC, BODY)) for _ in range(IN_FLIGHT)))
    return sum(result.send_status is SendStatus.SEND_OK for result in results)
