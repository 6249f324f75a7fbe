"""Sends whose results go to callbacks (mechanisms P2, P6, P18): where they run, how many, and what a shutdown does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mqclient import (
    ConnectionLostError,
    IllegalStateError,
    Message,
    MessageQueue,
    MessageRejectedError,
    Producer,
    ProducerConfig,
    RetryableError,
    SendResult,
    TooManyRequestsError,
)
from mqclient.testing import FakeCluster
from osenv import until
from osenv.sim_clock import settle


class Callback:
    """Remembers, in the thread or task where it is called, and does what it is told to."""

    def __init__(self, then: Callable[[], Any] | None = None) -> None:
        self.results: list[SendResult] = []
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self._then = then

    def on_success(self, result: SendResult) -> Any:
        self.results.append(result)
        return self._called()

    def on_exception(self, error: Exception) -> Any:
        self.errors.append(error)
        return self._called()

    def _called(self) -> Any:
        self.threads.add(threading.current_thread().name)
        return self._then() if self._then is not None else None


class CoroutineCallback(Callback):
    """The same on the event loop."""

    async def on_success(self, result: SendResult) -> None:
        super().on_success(result)

    async def on_exception(self, error: Exception) -> None:
        super().on_exception(error)


def callback_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("mqclient-callback")]


@pytest.mark.mechanism("P2")
async def test_it_returns_at_once_and_a_plain_callback_runs_in_a_thread_of_its_own() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    callback = Callback()
    async with Producer("shop", cluster.url) as producer:
        producer.send_async(Message("orders", b"x"), callback)
        assert broker.frames == []
        await until(lambda: callback.results)
    assert broker.bodies == [b"x"]
    assert callback.results[0].queue_offset == 0
    assert all(name.startswith("mqclient-callback") for name in callback.threads)
    await until(lambda: not callback_threads())


async def test_a_coroutine_callback_runs_on_the_event_loop_and_starts_no_thread() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    callback = CoroutineCallback()
    async with Producer("shop", cluster.url) as producer:
        for _ in range(10):
            producer.send_async(Message("orders", b"x"), callback)
    assert len(callback.results) == 10
    assert callback.threads == {threading.current_thread().name}
    assert callback_threads() == []


@pytest.mark.mechanism("P2")
async def test_a_slow_callback_delays_neither_the_loop_nor_other_sends() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    go_on = threading.Event()
    slow, quick = Callback(go_on.wait), Callback()
    async with Producer("shop", cluster.url) as producer:
        producer.send_async(Message("orders", b"slow"), slow)
        await until(lambda: slow.results)
        for _ in range(20):
            producer.send_async(Message("orders", b"quick"), quick)
            await producer.send(Message("orders", b"sync"))
        await until(lambda: len(quick.results) == 20)
        go_on.set()


async def test_a_plain_callback_may_return_something_to_await() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    awaited = asyncio.Event()

    async def later() -> None:
        awaited.set()

    async with Producer("shop", cluster.url) as producer:
        producer.send_async(Message("orders", b"x"), Callback(later))
    assert awaited.is_set()


@pytest.mark.parametrize("kind", [Callback, CoroutineCallback])
async def test_what_a_callback_raises_is_logged_and_harms_nothing(
    kind: type[Callback], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("the application's mistake")

    cluster, _ = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        producer.send_async(Message("orders", b"x"), kind(fail))
        await until(lambda: "the application's mistake" in caplog.text)
        assert (await producer.send(Message("orders", b"y"))).message_id
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "a send callback failed with SendResult" in caplog.text


async def test_an_error_goes_to_the_callback_and_what_is_wrong_with_the_call_is_raised_at_once() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [13]
    callback = CoroutineCallback()
    producer = Producer("shop", cluster.url)
    with pytest.raises(IllegalStateError):
        producer.send_async(Message("orders", b"x"), callback)
    await producer.start()
    with pytest.raises(MessageRejectedError):
        producer.send_async(Message("orders", b""), callback)
    producer.send_async(Message("orders", b"x"), callback)
    producer.send_async(Message("orders", b"x"), callback, selector=lambda queues, *_: queues[9])
    await producer.shutdown()
    assert [type(error).__name__ for error in callback.errors] == ["MessageRejectedError", "BrokerRejectedError"]


@pytest.mark.mechanism("P8")
async def test_the_number_of_sends_under_way_is_bounded() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    config = ProducerConfig(client_async_semaphore_value=3)
    callback = CoroutineCallback()
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        for _ in range(3):
            producer.send_async(Message("orders", b"x"), callback)
        with pytest.raises(TooManyRequestsError, match="3 asynchronous sends with 3 bytes are under way; at most 3"):
            producer.send_async(Message("orders", b"x"), callback)
        await settle()
        broker.silent = False
        broker.answer_frame(broker.frames[0])
        await settle()
        producer.send_async(Message("orders", b"x"), callback)
    assert len(callback.results) == 4
    assert issubclass(TooManyRequestsError, RetryableError)


async def test_the_bytes_of_sends_under_way_are_bounded() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    config = ProducerConfig(max_message_size=1_000, back_pressure_for_async_send_size=1_500)
    callback = CoroutineCallback()
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        producer.send_async(Message("orders", bytes(1_000)), callback)
        with pytest.raises(TooManyRequestsError, match="1,500 bytes may be"):
            producer.send_async(Message("orders", bytes(501)), callback)
        producer.send_async(Message("orders", bytes(500)), callback)
        await settle()
        broker.silent = False
        broker.answer_frame(broker.frames[0])


async def test_a_send_counts_until_its_callback_has_ended() -> None:
    cluster, _ = FakeCluster.of("broker-a")
    go_on = threading.Event()
    callback = Callback(go_on.wait)
    config = ProducerConfig(client_async_semaphore_value=1)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        producer.send_async(Message("orders", b"x"), callback)
        await until(lambda: callback.results)
        with pytest.raises(TooManyRequestsError):
            producer.send_async(Message("orders", b"x"), callback)
        go_on.set()


async def test_shutdown_waits_for_the_results_and_their_callbacks() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    callback = CoroutineCallback()
    producer = Producer("shop", cluster.url)
    await producer.start()
    producer.send_async(Message("orders", b"x"), callback)
    await settle()
    leaving = asyncio.create_task(producer.shutdown())
    await settle()
    assert not leaving.done()
    broker.silent = False
    broker.answer_frame(broker.frames[0])
    await leaving
    assert len(callback.results) == 1


@pytest.mark.mechanism("P2")
@pytest.mark.parametrize("kind", [Callback, CoroutineCallback])
async def test_shutdown_is_bounded_and_tells_the_callbacks_what_it_abandons(
    kind: type[Callback], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    callback = kind()
    before = asyncio.all_tasks()
    producer = Producer("shop", cluster.url)
    await producer.start()
    for _ in range(3):
        producer.send_async(Message("orders", b"x"), callback, timeout=60.0)
    await settle()
    leaving = asyncio.create_task(producer.shutdown(timeout_s=5.0))
    await cluster.clock.advance(5.0)
    await until(leaving.done)
    await leaving
    await until(lambda: len(callback.errors) == 3)
    assert all(isinstance(error, ConnectionLostError) for error in callback.errors)
    assert "3 asynchronous sends, or their callbacks, did not end in time" in caplog.text
    await until(lambda: asyncio.all_tasks() == before)
    await until(lambda: not callback_threads())


async def test_messages_for_a_chosen_queue_keep_the_order_of_the_calls() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    callback = CoroutineCallback()
    queue = MessageQueue("orders", "broker-a", 2)
    bodies = [b"%d" % number * (1 + 5_000 * (number % 3)) for number in range(60)]
    async with Producer("shop", cluster.url) as producer:
        for body in bodies:
            producer.send_async(Message("orders", body), callback, queue=queue)
    assert [result.queue_offset for result in callback.results] == list(range(60))
    assert len(broker.queues["orders", 2]) == 60


async def test_a_thousand_tasks_share_one_producer() -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b")
    results: list[SendResult] = []
    callback = CoroutineCallback()

    async def work(number: int) -> None:
        for step in range(3):
            message = Message("orders", b"%d:%d" % (number, step), keys=f"task-{number}")
            if (number + step) % 3:
                results.append(await producer.send(message))
            else:
                producer.send_async(message, callback)

    async with Producer("shop", cluster.url) as producer:
        await asyncio.gather(*(work(number) for number in range(1_000)))
    results += callback.results
    stored = sorted(body for broker in brokers for body in broker.bodies)
    assert stored == sorted(b"%d:%d" % (number, step) for number in range(1_000) for step in range(3))
    assert len({result.message_id for result in results}) == 3_000
    assert len({(result.message_queue, result.queue_offset) for result in results}) == 3_000
