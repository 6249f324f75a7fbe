"""The HTTP face: answers, headers, tags, pages of lists."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import telemetry
from orders.domain.product import Product
from orders.testing import PRODUCT, RunningOrders, running_orders
from servicekit.config import SQLITE_PREFIX
from servicekit.http.limits import RateLimit
from servicekit.testing.databases import NewDatabaseUrl

SEAT = {"product_id": "seat", "name": "A seat", "price_minor": 15800, "currency": "CNY", "available": 10}


async def get(orders: RunningOrders, path: str, role: str = "seller", subject: str = "seller-1", **query: Any) -> Any:
    """The JSON of an answer that is 200."""
    answer = await orders.http.get(path, params=query, headers=orders.headers(role, subject))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def command(
    orders: RunningOrders, order_id: str, name: str, role: str = "buyer", if_match: str | None = None
) -> Any:
    """POST /orders/{id}/{name}, by buyer-1 or seller-1."""
    headers = orders.headers(role, f"{role}-1") | ({} if if_match is None else {"If-Match": if_match})
    return await orders.http.post(f"/orders/{order_id}/{name}", headers=headers)


async def everything(orders: RunningOrders, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list, as a seller sees it."""
    pages = []
    cursor: str | None = None
    while True:
        page = await get(orders, path, **(query if cursor is None else query | {"cursor": cursor}))
        pages.append(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return pages


async def test_a_product_is_put_on_sale_and_read_back_without_a_token(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        answer = await orders.http.post("/products", json=SEAT, headers=orders.headers("seller", "seller-1"))
        assert (answer.status_code, answer.headers["Location"]) == (201, "/products/seat")
        assert answer.json() == SEAT | {"reserved": 0, "sold": 0, "total": 10, "is_on_sale": True, "version": 1}
        assert (await orders.http.get("/products/seat")).json() == answer.json()
        assert (await orders.http.get("/products")).json() == {"items": [answer.json()], "next_cursor": None}


async def test_an_order_is_placed_read_cancelled_and_its_history_told(new_database_url: NewDatabaseUrl) -> None:
    telemetry.configure("orders", "CRITICAL")
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed = await orders.post_order("k")
        order = placed.json()
        path = f"/orders/{order['order_id']}"
        assert (placed.status_code, placed.headers["Location"]) == (201, path)
        assert order == {
            "order_id": order["order_id"],
            "buyer_id": "buyer-1",
            "status": "PENDING_PAYMENT",
            "items": [{"product_id": "seat", "quantity": 1, "unit_price_minor": 15800}],
            "total_minor": 15800,
            "currency": "CNY",
            "version": 1,
            "created_at_ms": orders.clock.wall_ms(),
            "expires_at_ms": orders.clock.wall_ms() + 1_800_000,
            "paid_at_ms": None,
            "payment_id": None,
            "shipped_at_ms": None,
            "completed_at_ms": None,
            "closed_at_ms": None,
        }
        assert await get(orders, path, "buyer", "buyer-1") == order
        await orders.clock.advance(60)
        cancelled = await command(orders, order["order_id"], "cancel")
        assert cancelled.status_code == 200
        changes = {"status": "CLOSED", "version": 2, "closed_at_ms": order["created_at_ms"] + 60_000}
        assert cancelled.json() == order | changes
        history = await get(orders, f"{path}/history")
        told = [(row["old_status"], row["new_status"], row["reason"], row["actor"]) for row in history["changes"]]
        assert told == [
            (None, "PENDING_PAYMENT", "placed", "buyer-1"),
            ("PENDING_PAYMENT", "CLOSED", "cancelled", "buyer-1"),
        ]
        traces = {row["trace_id"] for row in history["changes"]}
        (trace,) = traces  # that of the order, and not of the request that has cancelled it
        assert len(trace) == 32


async def test_an_order_is_paid_shipped_and_confirmed(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = (await orders.post_order("k")).json()
        created_at_ms = order["created_at_ms"]
        await orders.clock.advance(60)
        await orders.pay(await orders.order(order["order_id"]), "payment-7", paid_at_ms=created_at_ms + 50_000)
        paid = await get(orders, f"/orders/{order['order_id']}")
        assert paid == order | {
            "status": "AWAITING_SHIPMENT",
            "version": 2,
            "payment_id": "payment-7",
            "paid_at_ms": created_at_ms + 50_000,
        }
        shipped = await command(orders, order["order_id"], "ship", "seller")
        assert shipped.json() == paid | {
            "status": "SHIPPED",
            "version": 3,
            "shipped_at_ms": created_at_ms + 60_000,
        }
        await orders.clock.advance(60)
        confirmed = await command(orders, order["order_id"], "confirm")
        assert confirmed.json() == shipped.json() | {
            "status": "COMPLETED",
            "version": 4,
            "completed_at_ms": created_at_ms + 120_000,
        }
        history = await get(orders, f"/orders/{order['order_id']}/history")
        assert [(row["reason"], row["at_ms"] - created_at_ms) for row in history["changes"]] == [
            ("placed", 0),
            ("paid", 60_000),
            ("shipped", 60_000),
            ("received", 120_000),
        ]
        again = await orders.post_order("k")
        assert again.json() == order  # as it was placed


async def test_a_seller_cancels_what_is_paid_and_its_buyer_does_not(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pay(order)
        assert (await command(orders, order.order_id, "cancel")).status_code == 409
        cancelled = await command(orders, order.order_id, "cancel", "seller")
        assert (cancelled.json()["status"], cancelled.json()["payment_id"]) == ("CLOSED", "payment-1")
        assert (await orders.product()).available == PRODUCT.available


async def test_without_the_queue_an_order_is_rejected_and_nothing_is_stored(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        orders.publisher.is_down = True
        rejected = await orders.post_order("k")
        assert (rejected.status_code, rejected.headers["Retry-After"]) == (503, "1")
        assert rejected.json()["type"] == "urn:hourglass:problem:queue-unavailable"
        assert await everything(orders, "/orders") == [[]]
        assert (await orders.product()).available == PRODUCT.available
        orders.publisher.is_down = False
        assert (await orders.post_order("k")).status_code == 201  # the key was not used up


async def test_an_order_that_was_placed_is_replayed_without_the_queue(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        first = await orders.post_order("k")
        attempts = orders.publisher.attempts
        orders.publisher.is_down = True
        again = await orders.post_order('"k"')  # the same key as a structured field
        assert (again.status_code, again.content) == (201, first.content)
        assert orders.publisher.attempts == attempts


async def test_a_repeated_request_gets_the_same_answer_marked_as_replayed(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        first = await orders.post_order("k")
        await command(orders, first.json()["order_id"], "cancel")
        again = await orders.post_order("k")
        assert (again.status_code, again.content) == (201, first.content)
        for name in ("Location", "ETag"):
            assert again.headers[name] == first.headers[name]
        assert again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first.headers


async def test_concurrent_requests_with_one_key_make_one_order(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        answers = await asyncio.gather(*(orders.post_order("k") for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
        assert len((await everything(orders, "/orders"))[0]) == 1


async def test_two_buyers_may_use_the_same_key_and_get_orders_of_their_own(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        answers = await asyncio.gather(*(orders.post_order("k", f"buyer-{n}") for n in range(3)))
        assert [answer.status_code for answer in answers] == [201] * 3
        assert [answer.json()["buyer_id"] for answer in answers] == ["buyer-0", "buyer-1", "buyer-2"]
        again = await orders.post_order("k", "buyer-1")
        assert again.json() == answers[1].json()


async def test_orders_are_listed_newest_first_in_pages_and_by_what_is_wanted(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed, times = [], []
        for n in range(7):
            times.append(orders.clock.wall_ms())
            placed.append((await orders.post_order(f"k{n}", f"buyer-{n % 2}")).json()["order_id"])
            if n % 3 == 0:  # the others share a millisecond
                await orders.clock.advance(1)
        await orders.cancel(placed[3])
        pages = await everything(orders, "/orders", limit=3)
        assert [len(page) for page in pages] == [3, 3, 1]
        listed = [order for page in pages for order in page]
        assert sorted(order["order_id"] for order in listed) == sorted(placed)
        created = [order["created_at_ms"] for order in listed]
        assert created == sorted(created, reverse=True)

        async def found(**query: Any) -> set[str]:
            return {order["order_id"] for page in await everything(orders, "/orders", **query) for order in page}

        assert await found(buyer_id="buyer-1") == {placed[1], placed[3], placed[5]}
        assert await found(status="CLOSED") == {placed[3]}
        assert await found(status="CLOSED", buyer_id="buyer-0") == set()
        assert await found(created_from_ms=times[4]) == set(placed[4:])
        assert await found(created_before_ms=times[4], limit=1) == set(placed[:4])
        assert await found(created_from_ms=times[1], created_before_ms=times[4], buyer_id="buyer-0") == {placed[2]}


async def test_a_buyer_lists_own_orders_only_whatever_is_asked_for(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        mine = [(await orders.post_order(f"k{n}", "buyer-1")).json() for n in range(2)]
        await orders.post_order("k", "buyer-2")
        for query in ({}, {"buyer_id": "buyer-1"}):
            page = await get(orders, "/orders", "buyer", "buyer-1", **query)
            assert sorted(order["order_id"] for order in page["items"]) == sorted(one["order_id"] for one in mine)
        others = await get(orders, "/orders", "buyer", "buyer-1", buyer_id="buyer-2")
        assert others == {"items": [], "next_cursor": None}
        # A cursor of another buyer's list opens nothing either.
        cursor = (await get(orders, "/orders", limit=1))["next_cursor"]
        page = await get(orders, "/orders", "buyer", "buyer-1", cursor=cursor)
        assert {order["buyer_id"] for order in page["items"]} <= {"buyer-1"}


async def test_products_are_listed_by_id_in_pages(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        for name in ("c", "a", "e", "b", "d"):
            await orders.add_product(Product(name, name, 1, "CNY", available=1))
        pages = await everything(orders, "/products", limit=2)
        assert [[product["product_id"] for product in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]


async def test_the_tag_of_an_order_changes_with_every_change_and_spares_the_body(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed = await orders.post_order("k")
        path, tag = placed.headers["Location"], placed.headers["ETag"]
        headers = orders.headers()
        first = await orders.http.get(path, headers=headers)
        assert (first.headers["ETag"], first.headers["Cache-Control"]) == (tag, "private, no-cache")
        for condition in (tag, f'"x", {tag}', f"W/{tag}", "*"):
            spared = await orders.http.get(path, headers=headers | {"If-None-Match": condition})
            assert (spared.status_code, spared.content, spared.headers["ETag"]) == (304, b"", tag)
        cancelled = await command(orders, placed.json()["order_id"], "cancel")
        changed = await orders.http.get(path, headers=headers | {"If-None-Match": tag})
        assert (changed.status_code, changed.json()["status"]) == (200, "CLOSED")
        assert changed.headers["ETag"] == cancelled.headers["ETag"] != tag


@pytest.mark.parametrize(
    ("name", "role"), [("cancel", "buyer"), ("cancel", "seller"), ("ship", "seller"), ("confirm", "buyer")]
)
async def test_a_command_is_carried_out_in_the_state_that_its_tag_names_or_not_at_all(
    new_database_url: NewDatabaseUrl, name: str, role: str
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed = await orders.post_order("k")
        order = await orders.order(placed.json()["order_id"])
        if name == "ship":
            await orders.pay(order)
        elif name == "confirm":
            await orders.pay_and_ship(order)
        now = await orders.order(order.order_id)
        tag = f'"{order.order_id}.{now.version}"'
        other = f'"{order.order_id}.{now.version + 1}"'
        for wrong in (other, f"W/{tag}", f'"another.{now.version}"', f'{other}, "x"', f'{other}, "{order.order_id}.9"'):
            rejected = await command(orders, order.order_id, name, role, if_match=wrong)
            assert (rejected.status_code, rejected.json()["type"]) == (412, "urn:hourglass:problem:precondition-failed")
        assert await orders.order(order.order_id) == now
        done = await command(orders, order.order_id, name, role, if_match=f"{other}, {tag}")
        assert done.status_code == 200
        assert done.headers["ETag"] == other
        # No tag opens an order that its caller may not see.
        if role == "buyer":
            stranger = orders.headers("buyer", "buyer-2") | {"If-Match": f"{other}, {tag}"}
            assert (await orders.http.post(f"/orders/{order.order_id}/{name}", headers=stranger)).status_code == 404


async def test_of_two_commands_for_one_state_one_is_carried_out(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        placed = await orders.post_order("k")
        order_id, tag = placed.json()["order_id"], placed.headers["ETag"]
        answers = await asyncio.gather(
            command(orders, order_id, "cancel", "buyer", if_match=tag),
            command(orders, order_id, "cancel", "seller", if_match=tag),
        )
        assert sorted(answer.status_code for answer in answers) == [200, 412]
        assert (await orders.order(order_id)).version == 2


async def test_statistics_name_every_status_and_every_place_of_stock(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        assert (await get(orders, "/statistics"))["stock"]["total"] == 0
        await orders.add_product()
        await orders.place("k1", quantity=2)
        order = await orders.place("k2", quantity=3)
        await orders.cancel(order.order_id)
        await orders.pay(order)
        await orders.pay(await orders.place("k3", quantity=4), "payment-2")
        assert await get(orders, "/statistics") == {
            "orders": {"PENDING_PAYMENT": 1, "AWAITING_SHIPMENT": 1, "SHIPPED": 0, "COMPLETED": 0, "CLOSED": 1},
            "stock": {"available": PRODUCT.available - 6, "reserved": 2, "sold": 4, "total": PRODUCT.available},
            "paid_orders": 1,
            "refund_requests": 1,
        }


async def test_requests_are_limited_as_configured(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders"), rate_limit=RateLimit(2, 60)) as orders:
        for left in (1, 0):
            answer = await orders.http.get("/orders", headers=orders.headers())
            assert answer.headers["RateLimit"] == f'"default";r={left};t=60'
        assert (await orders.http.get("/orders", headers=orders.headers())).status_code == 429
        assert (await orders.http.get("/orders", headers=orders.headers("seller", "seller-1"))).status_code == 200


async def test_each_process_counts_requests_for_itself(new_database_url: NewDatabaseUrl) -> None:
    url, limit = new_database_url("orders"), RateLimit(1, 60)
    async with running_orders(url, rate_limit=limit) as one, running_orders(url, rate_limit=limit) as other:
        answers = [await orders.http.get("/orders", headers=one.headers()) for orders in (one, other, one, other)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]


async def test_health_says_what_works(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        assert (await orders.http.get("/health/live")).json() == {"status": "live"}
        ready = await orders.http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert ready.json()["checks"] == {"database": "ok"}


@pytest.mark.parametrize("path", ["/health/ready", "/statistics", "/orders"])
async def test_a_database_that_is_gone_is_said_to_be_gone(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with running_orders(f"{SQLITE_PREFIX}{folder / 'orders.db'}") as orders:
        await orders.database.dispose()
        shutil.rmtree(folder)
        answer = await orders.http.get(path, headers=orders.headers("seller", "seller-1"))
        assert answer.status_code == 503
        if path == "/health/ready":
            assert "unable to open" in answer.json()["checks"]["database"]
        else:
            assert answer.json()["type"] == "urn:hourglass:problem:storage-unavailable"
            assert answer.headers["Retry-After"] == "1"
