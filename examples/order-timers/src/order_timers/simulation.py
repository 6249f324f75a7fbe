"""One design in one scenario, on a clock that is moved: hours pass in the time that their work takes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from mq_broker.embedded import EmbeddedBroker
from order_timers.designs import PAYMENT_WINDOW_LEVEL, Design, Surroundings, TimerNotSetError, create_topic
from order_timers.order_book import Order, OrderBook, Outcome, measure, stuck_orders
from order_timers.scenarios import Act, Event, PlannedOrder, Scenario, Workload
from osenv import SimClock

NOON_MS = 1_699_963_200_000  # a day's 12:00:00: the beginning
START_S = 60.0  # so long before, the instances start
ROCKETMQ_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # mechanism D1
AFTER_MINUTES = 60  # how long one waits for closings after the last expiry

_numbers = itertools.count(1)

Step = Callable[[], Coroutine[Any, Any, None]]


async def simulate(design: Design, scenario: Scenario, workload: Workload) -> Outcome:
    """Run to an hour after the last expiry, measure, and then let a person repair what the design leaves to persons."""
    clock = SimClock(NOON_MS - round(START_S * 1000))
    async with _queue(design, clock, workload) as queue:
        world = World(design, scenario, workload, clock, queue)
        return await world.run()


@asynccontextmanager
async def _queue(design: Design, clock: SimClock, workload: Workload) -> AsyncIterator[EmbeddedBroker | None]:
    if not design.needs_queue:
        yield None
        return
    levels = ROCKETMQ_LEVELS.split()
    levels[PAYMENT_WINDOW_LEVEL - 1] = f"{workload.window_minutes}m"
    async with EmbeddedBroker(f"order-timers-{next(_numbers)}", clock=clock, delay_levels=" ".join(levels)) as queue:
        await create_topic(queue.url)
        yield queue


class World:
    """The instances behind a load balancer: an order goes to the next one that lives."""

    def __init__(
        self, design: Design, scenario: Scenario, workload: Workload, clock: SimClock, queue: EmbeddedBroker | None
    ) -> None:
        self._design = design
        self._scenario = scenario
        self._workload = workload
        self._clock = clock
        self._queue = queue
        self._book = OrderBook(clock)
        surroundings = Surroundings(self._book, clock, queue.url if queue else "")
        self._server_ids = [f"server-{number}" for number in range(scenario.instances)]
        self._timers = {server_id: design.build(surroundings, server_id) for server_id in self._server_ids}
        self._living: list[str] = []
        self._rejected = 0

    async def run(self) -> Outcome:
        for server_id in self._server_ids:
            await self._while_time_passes(self._start(server_id))
        await self._play()
        outcome = measure(
            self._book,
            design=self._design.name,
            scenario=self._scenario.name,
            rejected=self._rejected,
            now_ms=self._clock.wall_ms(),
            repaired_by_hand=0,
        )
        repaired = await self._repair() if self._design.by_server and outcome.stuck else 0
        for server_id in [*self._living]:
            await self._while_time_passes(self._kill(server_id))
        return replace(outcome, repaired_by_hand=repaired)

    async def _play(self) -> None:
        """All that happens, each thing at its moment, and then the hour in which the last orders close."""
        tasks = []
        for at_ms, _, step in sorted(self._timeline(), key=lambda one: one[:2]):
            await self._clock.advance(START_S + at_ms / 1000 - self._clock.monotonic())
            tasks.append(asyncio.ensure_future(step()))
        end_minutes = self._workload.minutes + self._workload.window_minutes + AFTER_MINUTES
        await self._clock.advance(START_S + end_minutes * 60 - self._clock.monotonic())
        await asyncio.gather(*tasks)

    def _timeline(self) -> list[tuple[float, int, Step]]:
        numbers = itertools.count()
        steps: list[tuple[float, int, Step]] = []
        for event in self._scenario.events:
            steps.append((event.at_minutes * 60_000, next(numbers), partial(self._happen, event)))
        for planned in self._workload.plan():
            steps.append((planned.at_ms, next(numbers), partial(self._place, planned)))
            if planned.pays_at_ms is not None:
                steps.append((planned.pays_at_ms, next(numbers), partial(self._pay, planned)))
        return steps

    async def _place(self, planned: PlannedOrder) -> None:
        """The timer first, then the order; without a timer the buyer is turned away."""
        if not self._living:
            self._rejected += 1
            return
        server_id = self._living[int(planned.order_id.rpartition("-")[2]) % len(self._living)]
        expires_at_ms = self._clock.wall_ms() + self._workload.window_ms
        try:
            await self._timers[server_id].set(planned.order_id, expires_at_ms)
        except TimerNotSetError:
            self._rejected += 1
            return
        await self._book.add(Order(planned.order_id, server_id, expires_at_ms))

    async def _pay(self, planned: PlannedOrder) -> None:
        await self._book.pay(planned.order_id)

    async def _happen(self, event: Event) -> None:
        match event.act:
            case Act.KILL:
                await self._kill(self._server_ids[event.instance])
            case Act.START:
                await self._start(self._server_ids[event.instance])
            case Act.KILL_QUEUE if self._queue:
                await self._queue.kill()
            case Act.START_QUEUE if self._queue:
                await self._queue.start()

    async def _start(self, server_id: str) -> None:
        await self._timers[server_id].start()
        self._living = sorted([*self._living, server_id])

    async def _kill(self, server_id: str) -> None:
        self._living.remove(server_id)
        await self._timers[server_id].kill()

    async def _while_time_passes(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which waits for the simulated clock, while moving that clock."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self._clock.advance(0.001)
        task.result()

    async def _repair(self) -> int:
        """A person gives the orders of the dead servers to a running one, and restarts it so that it reads them."""
        before = len(stuck_orders(self._book, self._clock.wall_ms()))
        heir = self._living[0]
        await self._while_time_passes(self._hand_over(heir))
        await self._clock.advance(self._workload.window_minutes * 60)
        return before - len(stuck_orders(self._book, self._clock.wall_ms()))

    async def _hand_over(self, heir: str) -> None:
        for server_id in self._server_ids:
            if server_id not in self._living:
                await self._book.reassign(server_id, heir)
        await self._kill(heir)
        await self._start(heir)
