"""The HTTP face: answers, headers, pages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orders.domain.product import Product
from orders.testing import PRODUCT, RunningOrders, running_orders

SEAT = {"product_id": "seat", "name": "A seat", "price_minor": 15800, "currency": "CNY", "available": 10}


async def everything(orders: RunningOrders, path: str, **parameters: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list."""
    pages = []
    cursor: str | None = None
    while True:
        wanted = parameters | ({} if cursor is None else {"cursor": cursor})
        answer = await orders.http.get(path, params=wanted)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return pages


async def test_a_product_is_put_on_sale_and_read_back(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        answer = await orders.http.post("/products", json=SEAT)
        assert (answer.status_code, answer.headers["Location"]) == (201, "/products/seat")
        assert answer.json() == SEAT | {"reserved": 0, "sold": 0}
        assert (await orders.http.get("/products/seat")).json() == answer.json()


async def test_an_order_is_placed_read_cancelled_and_its_history_told(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
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
            "created_at_ms": orders.clock.wall_ms(),
            "expires_at_ms": orders.clock.wall_ms() + 1_800_000,
            "closed_at_ms": None,
            "payment_id": None,
            "paid_at_ms": None,
        }
        assert (await orders.http.get(path)).json() == order
        await orders.clock.advance(60)
        cancelled = await orders.http.post(f"{path}/cancel")
        assert cancelled.status_code == 200
        assert cancelled.json() == order | {"status": "CLOSED", "closed_at_ms": order["created_at_ms"] + 60_000}
        history = (await orders.http.get(f"{path}/history")).json()
        assert [(change["old_status"], change["new_status"], change["reason"]) for change in history["changes"]] == [
            (None, "PENDING_PAYMENT", "placed"),
            ("PENDING_PAYMENT", "CLOSED", "cancelled"),
        ]


async def test_a_paid_order_names_its_payment(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = (await orders.post_order("k")).json()
        await orders.clock.advance(60)
        await orders.pay(await orders.order(order["order_id"]), "payment-7", paid_at_ms=order["created_at_ms"] + 50_000)
        paid = (await orders.http.get(f"/orders/{order['order_id']}")).json()
        assert paid == order | {
            "status": "AWAITING_SHIPMENT",
            "payment_id": "payment-7",
            "paid_at_ms": order["created_at_ms"] + 50_000,
        }
        history = (await orders.http.get(f"/orders/{order['order_id']}/history")).json()
        assert [(change["new_status"], change["reason"], change["at_ms"]) for change in history["changes"]] == [
            ("PENDING_PAYMENT", "placed", order["created_at_ms"]),
            ("AWAITING_SHIPMENT", "paid", order["created_at_ms"] + 60_000),
        ]
        again = await orders.post_order("k")
        assert again.json() == order  # as it was placed


async def test_without_the_queue_an_order_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        orders.publisher.is_down = True
        refused = await orders.post_order("k")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json()["type"] == "urn:hourglass:problem:queue-unavailable"
        assert await everything(orders, "/orders") == [[]]
        assert (await orders.product()).available == PRODUCT.available
        orders.publisher.is_down = False
        assert (await orders.post_order("k")).status_code == 201  # the key was not used up


async def test_an_order_that_was_placed_is_replayed_without_the_queue(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        first = await orders.post_order("k")
        attempts = orders.publisher.attempts
        orders.publisher.is_down = True
        again = await orders.post_order("k")
        assert (again.status_code, again.content) == (201, first.content)
        assert orders.publisher.attempts == attempts


async def test_a_repeated_request_gets_the_same_answer_marked_as_replayed(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        first = await orders.post_order("k")
        await orders.http.post(f"/orders/{first.json()['order_id']}/cancel")
        again = await orders.post_order("k")
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Location"] == first.headers["Location"]
        assert again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first.headers


async def test_concurrent_requests_with_one_key_make_one_order(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        answers = await asyncio.gather(*(orders.post_order("k") for _ in range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
        assert len((await everything(orders, "/orders"))[0]) == 1


async def test_orders_are_listed_newest_first_in_pages_by_buyer_and_by_status(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        placed = []
        for n in range(7):
            placed.append((await orders.post_order(f"k{n}", buyer_id=f"buyer-{n % 2}")).json()["order_id"])
            if n % 3 == 0:  # the others share a millisecond
                await orders.clock.advance(1)
        await orders.http.post(f"/orders/{placed[2]}/cancel")
        pages = await everything(orders, "/orders", limit=3)
        assert [len(page) for page in pages] == [3, 3, 1]
        listed = [order for page in pages for order in page]
        assert sorted(order["order_id"] for order in listed) == sorted(placed)
        created = [order["created_at_ms"] for order in listed]
        assert created == sorted(created, reverse=True)
        (mine,) = await everything(orders, "/orders", buyer_id="buyer-1")
        assert {order["order_id"] for order in mine} == {placed[1], placed[3], placed[5]}
        (closed,) = await everything(orders, "/orders", status="CLOSED")
        assert [order["order_id"] for order in closed] == [placed[2]]
        assert await everything(orders, "/orders", status="CLOSED", buyer_id="buyer-1") == [[]]


async def test_products_are_listed_by_id_in_pages(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        for name in ("c", "a", "e", "b", "d"):
            await orders.add_product(Product(name, name, 1, "CNY", available=1))
        pages = await everything(orders, "/products", limit=2)
        assert [[product["product_id"] for product in page] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]


async def test_statistics_name_every_status_and_every_place_of_stock(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        assert (await orders.http.get("/statistics")).json()["stock"]["total"] == 0
        await orders.add_product()
        await orders.place("k1", quantity=2)
        order = await orders.place("k2", quantity=3)
        await orders.http.post(f"/orders/{order.order_id}/cancel")
        await orders.pay(order)
        await orders.pay(await orders.place("k3", quantity=4), "payment-2")
        assert (await orders.http.get("/statistics")).json() == {
            "orders": {"PENDING_PAYMENT": 1, "AWAITING_SHIPMENT": 1, "SHIPPED": 0, "COMPLETED": 0, "CLOSED": 1},
            "stock": {"available": PRODUCT.available - 6, "reserved": 2, "sold": 4, "total": PRODUCT.available},
            "paid_orders": 1,
            "refund_requests": 1,
        }


async def test_health_says_what_works(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        assert (await orders.http.get("/health/live")).json() == {"status": "live"}
        ready = await orders.http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert ready.json()["checks"] == {"database": "ok"}


@pytest.mark.parametrize("path", ["/health/ready", "/statistics", "/orders"])
async def test_a_database_that_is_gone_is_said_to_be_gone(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with running_orders(folder) as orders:
        await orders.database.dispose()
        monkeypatch.setattr(orders.database, "_path", str(tmp_path / "missing" / "orders.db"))
        answer = await orders.http.get(path)
        assert answer.status_code == 503
        if path == "/health/ready":
            assert "unable to open" in answer.json()["checks"]["database"]
        else:
            assert answer.json()["type"] == "urn:hourglass:problem:storage-unavailable"
            assert answer.headers["Retry-After"] == "1"
