"""A client of orders over one connection each, as light as a benchmark needs it, and the load that it is given."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from hourglass_loadtest.measure.clients import MeasureError, latency_metrics, percentile, start_on_time

LINES_MAX = 3
QUANTITY_MAX = 2
LEAD_S = 0.1  # between now and the first intended time
BEGUN = "begun"  # said when the warm-up is over
HTTP_PATH = "/orders"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdersLoad:
    """With `rate_per_s` orders are placed at fixed times, however long the answers take (open loop); without it every
    connection places its next order as soon as it has its answer (closed loop). `tokens` are those of the buyers,
    `name` begins the idempotency keys. An order has 1 to LINES_MAX of the products.
    """

    name: str
    host: str
    port: int
    tokens: Sequence[str]
    product_ids: Sequence[str]
    connections: int
    seconds: float
    warm_up_s: float
    rate_per_s: float | None = None
    seed: int = 16

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> OrdersLoad:
        members: dict[str, Any] = json.loads(text)
        return cls(**members)


# As much of HTTP/1.1 as POST /orders needs: one request at a time on a connection that stays open.
#
# A general client would cost more processor time than the service under test, on the same two cores.

HEAD_END, LENGTH = b"\r\n\r\n", b"content-length:"


class HttpConnection:
    """Open after `open`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Raises OSError."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def ask(self, request: bytes) -> int:
        """Send the whole request; the status of its answer. Raises MeasureError, OSError.

        A server closes a connection that was idle for seconds: then the request, which has a key, goes over a new one.
        """
        try:
            return await self._ask(request)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            await self.open()
        try:
            return await self._ask(request)
        except asyncio.IncompleteReadError as error:
            raise MeasureError("orders has closed the connection before its answer") from error

    async def _ask(self, request: bytes) -> int:
        if self._reader is None or self._writer is None:
            raise AssertionError("the connection has been opened")
        self._writer.write(request)
        head = await self._reader.readuntil(HEAD_END)
        await self._reader.readexactly(_body_bytes(head))
        return int(head[9:12])

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):  # the other side was faster
                await self._writer.wait_closed()


def post_head(host: str, port: int, path: str, token: str) -> str:
    """The head of a POST up to its key and length, which differ from request to request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\n"
    )


def _body_bytes(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(LENGTH)
    if at < 0:
        raise MeasureError(f"an answer does not say how long it is: {head!r}")
    return int(lowered[at + len(LENGTH) : lowered.index(b"\r\n", at)])


# Places orders and measures, in a process of its own.
#
# In the open loop the intended times are fixed before the first order: a service that stalls is charged with the
# waiting of every order that was to be placed meanwhile. In the closed loop an order counts from its sending.

CREATED = 201


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
