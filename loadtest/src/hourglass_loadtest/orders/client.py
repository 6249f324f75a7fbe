"""Places orders and measures, in a process of its own.

In the open loop the intended times are fixed before the first order: a service that stalls is charged with the waiting
of every order that was to be placed meanwhile. In the closed loop an order counts from its sending.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from random import Random

from hourglass_loadtest.measure.pacing import start_on_time
from hourglass_loadtest.measure.percentiles import latency_metrics, percentile
from hourglass_loadtest.orders.http_connection import HttpConnection, post_head
from hourglass_loadtest.orders.load import LINES_MAX, QUANTITY_MAX, OrdersLoad

CREATED = 201
LEAD_S = 0.1  # between now and the first intended time
BEGUN = "begun"  # said when the warm-up is over
HTTP_PATH = "/orders"


class OrdersClient:
    """One measurement. Raises MeasureError, OSError."""

    def __init__(self, load: OrdersLoad) -> None:
        self._load = load
        self._rng = Random(load.seed)  # noqa: S311 - a load to repeat, not a secret
        self._heads = [post_head(load.host, load.port, HTTP_PATH, token) for token in load.tokens]
        self._number = 0
        self._idle: asyncio.LifoQueue[HttpConnection] = asyncio.LifoQueue()
        self._connections = [HttpConnection(load.host, load.port) for _ in range(load.connections)]
        self._statuses = Counter[int]()
        self._latencies_s: list[float] = []
        self._generator_late_s: list[float] = []

    async def run(self) -> dict[str, float | dict[str, int]]:
        """What was measured, after the warm-up."""
        for connection in self._connections:
            await connection.open()
            self._idle.put_nowait(connection)
        await self._closed_loop(self._load.warm_up_s)
        self._statuses.clear()
        self._latencies_s.clear()
        print(BEGUN, flush=True)
        cpu_begin, begin = time.process_time(), time.perf_counter()
        await (self._closed_loop(self._load.seconds) if self._load.rate_per_s is None else self._open_loop())
        took_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        for connection in self._connections:
            await connection.close()
        return {
            "placed": float(self._statuses[CREATED]),
            "took_s": took_s,
            "rate_per_s": self._statuses[CREATED] / took_s,
            **latency_metrics(self._latencies_s),
            **({"generator_p99_ms": percentile(self._generator_late_s, 99) * 1000} if self._generator_late_s else {}),
            "client_cpu_s": cpu_s,
            "statuses": {str(status): count for status, count in sorted(self._statuses.items())},
        }

    async def _closed_loop(self, seconds: float) -> None:
        end = time.perf_counter() + seconds

        async def place_on(connection: HttpConnection) -> None:
            while (begin := time.perf_counter()) < end:
                self._count(await connection.ask(self._request()), begin)

        async with asyncio.TaskGroup() as tasks:
            for connection in self._connections:
                tasks.create_task(place_on(connection))

    async def _open_loop(self) -> None:
        rate_per_s = self._load.rate_per_s or 1.0
        begin = time.perf_counter() + LEAD_S
        intended = [begin + number / rate_per_s for number in range(round(rate_per_s * self._load.seconds))]

        async def place(number: int) -> None:
            self._generator_late_s.append(time.perf_counter() - intended[number])
            connection = await self._idle.get()
            try:
                self._count(await connection.ask(self._request()), intended[number])
            finally:
                self._idle.put_nowait(connection)

        await start_on_time(intended, place)

    def _count(self, status: int, begin: float) -> None:
        self._statuses[status] += 1
        self._latencies_s.append(time.perf_counter() - begin)

    def _request(self) -> bytes:
        """The next order, by the next buyer."""
        self._number += 1
        products = self._rng.sample(self._load.product_ids, self._rng.randint(1, LINES_MAX))
        items = [{"product_id": one, "quantity": self._rng.randint(1, QUANTITY_MAX)} for one in products]
        body = json.dumps({"items": items})
        head = self._heads[self._number % len(self._heads)]
        key = f"{self._load.name}-{self._number}"
        return f"{head}Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
