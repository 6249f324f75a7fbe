"""The outbox relay: nothing that was committed is lost, whatever happens to the queue or to the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orders.domain.errors import PublishError
from orders.service.message import OutgoingMessage
from orders.service.outbox_relay import BACKOFF_MAX_S, BATCH_ROWS
from orders.testing import RunningOrders, running_orders, until


@asynccontextmanager
async def relaying(orders: RunningOrders) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(orders.application.relay.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def unpublished(orders: RunningOrders) -> int:
    return (await orders.application.use_cases.queries.statistics()).unpublished_messages


async def test_a_commit_wakes_the_relay_at_once(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders, relaying(orders):
        await orders.add_product()
        for n in range(3):
            order = await orders.place(f"k{n}")
            await until(lambda: len(orders.publisher.messages) == n + 1)  # noqa: B023 - used up in its own round
            assert orders.publisher.messages[-1].key == order.order_id
        assert orders.clock.timers == 0  # no polling


async def test_what_could_not_be_published_is_published_when_the_queue_is_back(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        orders.publisher.is_down = True
        async with relaying(orders):
            order = await orders.place("k")
            await until(lambda: orders.clock.timers == 1)
            assert not orders.application.relay.is_publishing
            health = await orders.http.get("/health/ready")
            assert (health.status_code, health.json()["checks"]["outbox"]) == (503, "messages wait for the queue")
            for _ in range(10):
                attempts = orders.publisher.attempts
                await orders.clock.advance(BACKOFF_MAX_S)
                await until(lambda: orders.publisher.attempts > attempts and orders.clock.timers == 1)  # noqa: B023
            orders.publisher.is_down = False
            await orders.clock.advance(BACKOFF_MAX_S)
            await until(lambda: orders.application.relay.is_publishing)
            assert [message.key for message in orders.publisher.messages] == [order.order_id]
            assert (await orders.http.get("/health/ready")).status_code == 200


async def test_what_a_stopped_process_left_behind_is_published_by_the_next_one(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
    async with running_orders(tmp_path, seed=2) as orders, relaying(orders):
        await until(lambda: bool(orders.publisher.messages))
        assert [message.key for message in orders.publisher.messages] == [order.order_id]


async def test_a_crash_between_publishing_and_marking_publishes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        await orders.place("k")

        def crash() -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(orders.clock, "wall_ms", crash)
            with pytest.raises(KeyboardInterrupt):
                await orders.application.relay.publish_batch()
        assert await unpublished(orders) == 1
        await orders.empty_outbox()
        assert len(orders.publisher.messages) == 2
        assert await unpublished(orders) == 0


async def test_a_failure_in_the_middle_marks_what_went_out_and_repeats_only_the_rest(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        placed = [(await orders.place(f"k{n}")).order_id for n in range(4)]
        await orders.application.use_cases.close_order.cancel(placed[1])
        publish = orders.publisher.publish

        async def fail_for_one(message: OutgoingMessage) -> None:
            if message.key == placed[1]:
                raise PublishError("no")
            await publish(message)

        orders.publisher.publish = fail_for_one  # type: ignore[method-assign]
        with pytest.raises(PublishError):
            await orders.application.relay.publish_batch()
        assert await unpublished(orders) == 2  # created and closed of the one order, the second not before the first
        orders.publisher.publish = publish  # type: ignore[method-assign]
        await orders.empty_outbox()
        assert sorted(message.key for message in orders.publisher.messages) == sorted([*placed, placed[1]])
        assert [message.tag for message in orders.publisher.messages if message.key == placed[1]] == [
            "created",
            "closed",
        ]


async def test_a_batch_is_in_flight_together_and_no_more_than_a_batch(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        for n in range(BATCH_ROWS + 3):
            order = await orders.place(f"k{n}")
            await orders.application.use_cases.close_order.cancel(order.order_id)
        in_flight = most = 0

        async def slow(_message: OutgoingMessage) -> None:
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0)
            in_flight -= 1

        orders.publisher.publish = slow  # type: ignore[method-assign, assignment]
        await orders.empty_outbox()
        assert most == BATCH_ROWS // 2  # each order has two messages, one after the other
        assert await unpublished(orders) == 0


async def test_stop_lets_the_relay_end(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders, relaying(orders) as task:
        await asyncio.sleep(0)
        orders.application.relay.stop()
        await task
