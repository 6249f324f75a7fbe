"""The benchmark of POST /orders: its client against a server of our own, and a short run on real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hourglass_loadtest.measure.clients import MeasureError
from hourglass_loadtest.orders.client import HttpConnection, OrdersClient, OrdersLoad

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "hourglass_loadtest", "orders"]
HOST = "127.0.0.1"


class PlayedOrders:
    """Answers every fifth order with 503, or nothing when it is `silent`."""

    def __init__(self, *, silent: bool = False) -> None:
        self.keys: list[str] = []
        self.tokens = Counter[str]()
        self.bodies: list[dict[str, list[dict[str, object]]]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._silent = silent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while head := await self._head(reader):
            headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
            self.bodies.append(json.loads(await reader.readexactly(int(headers["Content-Length"]))))
            self.keys.append(headers["Idempotency-Key"])
            self.tokens[headers["Authorization"]] += 1
            if self._silent:
                break
            status = "503 Service Unavailable" if len(self.keys) % 5 == 0 else "201 Created"
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}".encode())
        writer.close()
        await writer.wait_closed()

    async def _head(self, reader: asyncio.StreamReader) -> str:
        try:
            return (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return ""


@asynccontextmanager
async def served(orders: PlayedOrders) -> AsyncIterator[int]:
    server = await asyncio.start_server(orders.serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def load(port: int, rate_per_s: float | None = None) -> OrdersLoad:
    return OrdersLoad(
        name="test", host=HOST, port=port, tokens=["one", "two"], product_ids=["a", "b", "c", "d"], connections=3,
        seconds=0.2, warm_up_s=0.05, rate_per_s=rate_per_s,
    )  # fmt: skip


def test_a_load_travels_as_json() -> None:
    assert OrdersLoad.of_json(load(1, 2.5).to_json()) == load(1, 2.5)


async def test_the_closed_loop_places_one_order_after_the_other_and_counts_every_answer() -> None:
    orders = PlayedOrders()
    async with served(orders) as port:
        measured = await OrdersClient(load(port)).run()
    statuses = measured["statuses"]
    assert isinstance(statuses, dict)
    assert statuses.keys() == {"201", "503"}
    assert measured["placed"] == statuses["201"]
    assert len(orders.keys) == len(set(orders.keys)) > statuses["201"] + statuses["503"]  # the warm-up does not count
    assert orders.tokens.keys() == {"Bearer one", "Bearer two"}
    for body in orders.bodies:
        assert 1 <= len({item["product_id"] for item in body["items"]}) == len(body["items"]) <= 3


async def test_the_open_loop_places_as_many_as_were_intended() -> None:
    orders = PlayedOrders()
    async with served(orders) as port:
        measured = await OrdersClient(load(port, rate_per_s=100.0)).run()
    statuses = measured["statuses"]
    assert isinstance(statuses, dict)
    assert sum(statuses.values()) == 20
    assert {"p50_ms", "p99_ms", "max_ms", "generator_p99_ms", "rate_per_s", "took_s"} <= measured.keys()


async def test_a_connection_that_was_closed_while_it_was_idle_is_opened_again() -> None:
    orders = PlayedOrders()
    request = b"POST / HTTP/1.1\r\nContent-Length: 2\r\nIdempotency-Key: k\r\nAuthorization: t\r\n\r\n{}"
    async with served(orders) as port:
        connection = HttpConnection(HOST, port)
        await connection.open()
        assert await connection.ask(request) == 201
        for writer in orders.writers:
            writer.close()
            await writer.wait_closed()
        assert await connection.ask(request) == 201
        await connection.close()
    assert orders.keys == ["k", "k"]


async def test_a_connection_that_is_closed_without_an_answer_ends_the_measurement() -> None:
    async with served(PlayedOrders(silent=True)) as port:
        connection = HttpConnection(HOST, port)
        await connection.open()
        with pytest.raises(MeasureError, match="closed the connection before its answer"):
            await connection.ask(
                b"POST / HTTP/1.1\r\nContent-Length: 2\r\nIdempotency-Key: k\r\nAuthorization: t\r\n\r\n{}"
            )
        await connection.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=[pytest.mark.system, pytest.mark.needs("postgresql")]), "sqlite"]
)
def test_short_benchmark_writes_results_and_a_profile(tmp_path: Path, database: str) -> None:
    options = ["--seconds", "1", "--warm-up", "0.5", "--connections", "2", "--rate", "20", "--profile"]
    if database == "sqlite":
        options.append("--sqlite")
    out = tmp_path / "orders-benchmark.json"
    run = subprocess.run(
        [*COMMAND, *options, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    closed, opened = json.loads(out.read_text())["results"]
    for result in (closed, opened):
        assert result["placed"] > 0
        assert result["statuses"].keys() == {"201"}
        assert {"broker-a", "orders", "client"} <= result["cpu_ms_per_order"].keys()
        assert ("postgresql" in result["cpu_ms_per_order"]) is (database == "postgresql")
    assert opened["placed"] == 20
    profile = (tmp_path / "orders-profile.txt").read_text()
    assert "by tottime" in profile
    assert "place_order.py" in profile
