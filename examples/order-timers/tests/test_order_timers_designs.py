"""The three designs by themselves, and the database under them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mq_broker.embedded import EmbeddedBroker
from order_timers.designs import DelayQueue, MessageQueueTimers, TimerNotSetError, create_topic
from order_timers.order_book import Order, OrderBook, Status
from osenv import SimClock

MINUTE_MS = 60_000


async def passing(clock: SimClock, work: Any) -> Any:
    """What `work` returns; time passes until it does."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await clock.advance(0.01)
    return task.result()


async def test_an_order_ends_once_and_the_second_who_tries_is_told() -> None:
    clock = SimClock()
    book = OrderBook(clock)
    await passing(clock, book.add(Order("o", "server-0", 0)))
    outcomes = await passing(clock, asyncio.gather(book.pay("o"), book.close("o"), book.close("o")))
    assert (outcomes, book.orders[0].status, book.counts.closings_in_vain) == ([True, False, False], Status.PAID, 2)


async def test_a_delay_queue_gives_each_item_when_it_is_due_also_one_that_comes_in_between() -> None:
    clock = SimClock()
    queue, taken = DelayQueue(clock), []

    async def take() -> None:
        while True:
            taken.append((await queue.take(), clock.wall_ms() - began_ms))

    began_ms = clock.wall_ms()
    task = asyncio.create_task(take())
    queue.put(began_ms + 3_000, "late")
    await clock.advance(1)
    queue.put(began_ms + 2_000, "early")
    await clock.advance(5)
    task.cancel()
    assert taken == [("early", 2_000), ("late", 3_000)]


async def timers_of(broker: EmbeddedBroker, book: OrderBook) -> MessageQueueTimers:
    await create_topic(broker.url)
    timers = MessageQueueTimers(book, broker.clock, broker.url, "server-0")
    await timers.start()
    return timers


async def test_an_unpaid_order_closes_when_its_message_comes_back_and_a_paid_one_is_left_alone(
    broker: EmbeddedBroker,
) -> None:
    clock = broker.clock
    book = OrderBook(clock)
    timers = await timers_of(broker, book)
    expires_at_ms = clock.wall_ms() + 30 * MINUTE_MS
    for order_id in ("unpaid", "paid"):
        await timers.set(order_id, expires_at_ms)
        await passing(clock, book.add(Order(order_id, "server-0", expires_at_ms)))
    await timers.set("never-saved", expires_at_ms)
    await passing(clock, book.pay("paid"))
    await clock.advance(29 * 60)
    assert [order.status for order in book.orders] == [Status.PENDING, Status.PAID]
    await clock.advance(2 * 60)
    assert [order.status for order in book.orders] == [Status.CLOSED, Status.PAID]
    assert book.counts.closings_in_vain == 0
    await timers.kill()


async def test_a_message_that_comes_too_early_is_sent_again_for_the_rest(broker: EmbeddedBroker) -> None:
    """Clocks differ: the order has five minutes more than its message."""
    clock = broker.clock
    book = OrderBook(clock)
    timers = await timers_of(broker, book)
    expires_at_ms = clock.wall_ms() + 35 * MINUTE_MS
    await timers.set("o", expires_at_ms)
    await passing(clock, book.add(Order("o", "server-0", expires_at_ms)))
    await clock.advance(34 * 60)
    assert book.orders[0].is_pending
    await clock.advance(2 * 60)
    assert book.orders[0].status is Status.CLOSED
    assert 0 <= book.orders[0].ended_at_ms - expires_at_ms < 100
    await timers.kill()


async def test_a_timer_that_cannot_be_set_is_told_before_the_order_is_saved(broker: EmbeddedBroker) -> None:
    timers = await timers_of(broker, OrderBook(broker.clock))
    await broker.kill()
    with pytest.raises(TimerNotSetError, match="the timer of o could not be set"):
        await passing(broker.clock, timers.set("o", 0))
    await timers.kill()
