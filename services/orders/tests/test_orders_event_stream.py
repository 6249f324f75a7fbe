"""GET /orders/{id}/events over HTTP: the events' form, who may read them, and that a stream ends when it has to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from orders.pages.testing_visitor import ROOT, shop_of
from orders.service.order_feed import HEARTBEAT_S
from orders.testing import BUYER, RunningOrders, running_orders
from osenv import RealClock
from osenv.clock import timeout
from servicekit.http.server import DRAIN_MAX_S, HttpServer
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl


@asynccontextmanager
async def served(orders: RunningOrders, stop: asyncio.Event) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    """The application on a real socket: its URL, and the server, which ends once `stop` is set."""
    with HttpServer("127.0.0.1", 0) as server:
        api, feed = orders.application.api, orders.application.feed
        serving = asyncio.create_task(server.serve(api, stop, before_drain=feed.close))
        try:
            yield f"http://127.0.0.1:{server.port}", serving
        finally:
            stop.set()
            await serving


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, str]]:
    """The fields of each event, as the standard wants them read."""
    fields: dict[str, str] = {}
    async for line in lines:
        if not line:
            if fields:
                yield fields
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


async def test_events_tell_the_order_and_the_servers_clock_until_the_order_is_final(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        path = f"/orders/{order.order_id}/events"
        async with served(orders, asyncio.Event()) as (url, _), httpx.AsyncClient(base_url=url) as http:
            headers = orders.headers() | {"Last-Event-ID": "99"}
            async with http.stream("GET", path, headers=headers) as answer:
                assert answer.headers["Content-Type"].startswith("text/event-stream")
                assert answer.headers["Cache-Control"] == "no-store"
                events = events_of(answer.aiter_lines())
                first = await anext(events)
                assert (first["event"], first["id"], first["retry"]) == ("order", "1", "1000")
                told = json.loads(first["data"])
                assert told["now_ms"] == orders.clock.wall_ms()
                shown = await http.get(f"/orders/{order.order_id}", headers=orders.headers())
                assert told["order"] == shown.json()
                await orders.application.use_cases.close_order.cancel(order.order_id, BUYER, None)
                await orders.deliver()
                last = await anext(events)
                assert (last["id"], json.loads(last["data"])["order"]["status"]) == ("2", "CLOSED")
                assert [event async for event in events] == []
        assert orders.application.feed.open_streams == 0


async def test_a_comment_says_now_and_then_that_the_connection_lives(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        async with served(orders, asyncio.Event()) as (url, _), httpx.AsyncClient(base_url=url) as http:
            path = f"/orders/{order.order_id}/events"
            async with http.stream("GET", path, headers=orders.headers()) as answer:
                lines = answer.aiter_lines()
                while await anext(lines):  # the first event, to its empty line
                    pass
                await until(lambda: orders.clock.timers > 0)
                await orders.clock.advance(HEARTBEAT_S)
                assert await anext(lines) == ": still here"


async def test_a_follower_who_goes_away_gives_his_place_back(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        feed = orders.application.feed
        async with served(orders, asyncio.Event()) as (url, _), httpx.AsyncClient(base_url=url) as http:
            path = f"/orders/{order.order_id}/events"
            async with http.stream("GET", path, headers=orders.headers()) as answer:
                await anext(events_of(answer.aiter_lines()))
                assert feed.open_streams == 1
            await until(lambda: feed.open_streams == 0)


async def test_a_server_that_is_stopped_waits_for_no_stream(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        stop = asyncio.Event()
        async with served(orders, stop) as (url, serving), httpx.AsyncClient(base_url=url) as http:
            path = f"/orders/{order.order_id}/events"
            async with http.stream("GET", path, headers=orders.headers()) as answer:
                events = events_of(answer.aiter_lines())
                await anext(events)
                stop.set()
                # An orderly end, with its last chunk: a server that gives up waiting breaks the connection.
                assert [event async for event in events] == []
                async with timeout(RealClock(), DRAIN_MAX_S):
                    await serving


async def test_streams_are_for_callers_that_may_see_the_order(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        path = f"/orders/{(await orders.place('k')).order_id}/events"
        assert (await orders.http.get(path)).status_code == 401
        other = await orders.http.get(path, headers=orders.headers("buyer", "another-buyer"))
        ghost = await orders.http.get("/orders/ghost/events", headers=orders.headers())
        for answer in (other, ghost):
            assert (answer.status_code, answer.json()["type"]) == (404, "urn:hourglass:problem:unknown-order")
        orders.application.feed.close()
        stopping = await orders.http.get(path, headers=orders.headers())
        assert (stopping.status_code, stopping.headers["Retry-After"]) == (503, "1")
        assert stopping.json()["type"] == "urn:hourglass:problem:stopping"


async def test_too_many_streams_are_rejected_with_a_time_to_come_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        streams = [await orders.application.feed.open(order.order_id, BUYER) for _ in range(20)]
        answer = await orders.http.get(f"/orders/{order.order_id}/events", headers=orders.headers())
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        for stream in streams:
            stream.close()


async def test_the_page_follows_with_its_session(new_database_url: NewDatabaseUrl) -> None:
    async with shop_of(new_database_url("orders")) as shop, shop.visitor() as buyer:
        order_id = await buyer.order("seat")
        assert f'data-events="{ROOT}/orders/{order_id}/events"' in (await buyer.get(f"/orders/{order_id}")).text
        await buyer.send(f"/orders/{order_id}/cancel")
        answer = await buyer.get(f"/orders/{order_id}/events")  # final: the stream ends by itself
        assert answer.text.count("event: order") == 1
        assert '"status":"CLOSED"' in answer.text
