"""`python -m orders` as a process: what it serves without a queue, how it stops, and with what it does not start."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from orders.app import MIGRATIONS
from orders.service.sample_catalogue import SAMPLE_CATALOGUE
from orders.testing import AUTH_KEYS
from osenv import RealClock
from servicekit.auth import SCOPES, Tokens
from servicekit.testing.migrations import later_than, migrate_to_a_later_one
from servicekit.testing.service_process import ServiceProcess, service_process

pytestmark = pytest.mark.processes

NO_QUEUE = "mq://127.0.0.1:1"  # nothing listens on port 1


def http_of(port: int) -> httpx.AsyncClient:
    """Requests of a caller that is buyer and seller in one."""
    token = Tokens(AUTH_KEYS, RealClock()).issue("trader", SCOPES)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"})


@asynccontextmanager
async def process(folder: Path, *arguments: str, **variables: str) -> AsyncIterator[ServiceProcess]:
    environment = {
        "ORDERS_DATABASE_URL": f"sqlite+aiosqlite:///{folder / 'orders.db'}",
        "ORDERS_MQ_URL": NO_QUEUE,
        "ORDERS_LISTEN": "127.0.0.1:0",
        "ORDERS_AUTH_KEYS": f"{AUTH_KEYS[0][0]}:{AUTH_KEYS[0][1]}",
    }
    async with service_process(
        "orders", folder, environment | variables, *arguments, prefix="ORDERS_", name="orders"
    ) as started:
        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_orders_serves_without_a_queue_and_stops_when_told(tmp_path: Path, number: signal.Signals) -> None:
    async with process(tmp_path) as started, http_of(await started.port()) as http:
        seat = {"product_id": "seat", "name": "A seat", "price_minor": 1, "currency": "CNY", "available": 1}
        assert (await http.post("/products", json=seat)).status_code == 201
        order = {"items": [{"product_id": "seat", "quantity": 1}]}
        placed = await http.post("/orders", json=order, headers={"Idempotency-Key": "k"})
        assert (placed.status_code, placed.json()["type"]) == (503, "urn:hourglass:problem:queue-unavailable")
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "ok")
        assert ready.json()["checks"]["producer"] == ready.json()["checks"]["consumers"] != "ok"
        rejected = await http.get("/orders/ghost")
        assert len(rejected.json()["trace_id"]) == 32
        assert (await http.get("/openapi.json")).status_code == 200
        started.send_signal(number)
        code, log = await started.ended()
    assert code == 0, log
    assert "orders has stopped" in log
    assert "Traceback" not in log
    assert "did not stop in time" not in log

    async with process(tmp_path) as started, http_of(await started.port()) as http:
        statistics = (await http.get("/statistics")).json()
        assert (statistics["orders"]["PENDING_PAYMENT"], statistics["stock"]["available"]) == (0, 1)


async def test_a_shop_begins_with_the_samples_when_it_is_told_to_and_loads_them_once(tmp_path: Path) -> None:
    for more in (0, 1):
        async with (
            process(tmp_path, ORDERS_SAMPLE_CATALOGUE="true") as started,
            http_of(await started.port()) as http,
        ):
            stock = {one["product_id"]: one["available"] for one in (await http.get("/products")).json()["items"]}
            assert stock == {one.product_id: one.available for one in SAMPLE_CATALOGUE.values()} | {
                "tea": SAMPLE_CATALOGUE["tea"].available + more
            }
            changed = await http.patch("/products/tea", json={"total": SAMPLE_CATALOGUE["tea"].available + 1})
            assert changed.status_code == 200


async def test_visitors_behind_a_trusted_proxy_have_limits_and_cookies_of_their_own(tmp_path: Path) -> None:
    variables = {"ORDERS_TRUSTED_PROXIES": "127.0.0.2", "ORDERS_SANDBOX_SIGN_IN": "true", "ORDERS_RATE_LIMIT": "3/600"}
    through_proxy = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with process(tmp_path, **variables) as started, httpx.AsyncClient(transport=through_proxy) as http:
        pages = f"http://127.0.0.1:{await started.port()}/shop"
        for visitor in ("203.0.113.1", "203.0.113.2"):
            # What the visitor has sent stands first; a proxy adds the address that it sees.
            headers = {"X-Forwarded-For": f"192.0.2.1, {visitor}", "X-Forwarded-Proto": "https"}
            answers = [await http.get(f"{pages}/session", headers=headers) for _ in range(2)]
            form = {"subject": visitor, "role": "buyer"}
            signed_in = await http.post(
                f"{pages}/session/sandbox", data=form, headers=headers | {"Sec-Fetch-Site": "same-origin"}
            )
            assert signed_in.headers["Set-Cookie"].endswith("; Secure")
            answers += [signed_in, await http.get(f"{pages}/orders", headers=headers)]
            assert [answer.status_code for answer in answers] == [200, 200, 303, 429]


async def test_migrate_brings_the_database_up_to_date_and_ends(tmp_path: Path) -> None:
    for _ in range(2):
        async with process(tmp_path, "migrate") as started:
            code, log = await started.ended()
        assert code == 0, log
    assert (tmp_path / "orders.db").exists()


async def test_a_version_behind_starts_on_a_schema_that_works_with_it(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}"
    await migrate_to_a_later_one(MIGRATIONS, tmp_path / "later", url, oldest_code=MIGRATIONS.head)
    async with process(tmp_path, "migrate") as started:
        code, log = await started.ended()
    assert code == 0, log
    async with process(tmp_path) as started, http_of(await started.port()) as http:
        assert (await http.get("/health/ready")).json()["checks"]["schema"] == "ok"
        assert (await http.get("/orders")).status_code == 200


async def test_a_version_behind_does_not_start_on_a_schema_that_says_nothing_of_it(tmp_path: Path) -> None:
    url, later = f"sqlite+aiosqlite:///{tmp_path / 'orders.db'}", later_than(MIGRATIONS.head)
    await migrate_to_a_later_one(MIGRATIONS, tmp_path / "later", url, oldest_code=None)
    for command in ((), ("migrate",), ("reconcile",)):
        async with process(tmp_path, *command) as started:
            code, log = await started.ended()
        assert code == 1, log
        assert (
            f"orders: the schema is at {later} and works with versions of the code from {later} on; this one is"
            f" {MIGRATIONS.head}: start a later version"
        ) in log
        assert "Traceback" not in log


async def test_an_unknown_key_ends_the_start_with_its_name(tmp_path: Path) -> None:
    async with process(tmp_path, ORDERS_LISTNE="x") as started:
        code, log = await started.ended()
    assert (code, log) == (2, "orders: unknown configuration key ORDERS_LISTNE; did you mean ORDERS_LISTEN?\n")


async def test_an_address_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with process(tmp_path, ORDERS_LISTEN=f"127.0.0.1:{taken.getsockname()[1]}") as started:
            code, log = await started.ended()
    assert code == 1
    assert "orders: [Errno" in log
    assert "Traceback" not in log


async def test_a_database_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'missing' / 'orders.db'}"
    async with process(tmp_path, ORDERS_DATABASE_URL=url) as started:
        code, log = await started.ended()
    assert code == 1
    assert "orders: the database does not answer: unable to open database file" in log
    assert "Traceback" not in log


async def test_an_unknown_transport_ends_the_start(tmp_path: Path) -> None:
    async with process(tmp_path, ORDERS_MQ_URL="carrier-pigeon://roof") as started:
        code, log = await started.ended()
    assert code == 1, log
    assert "orders: ORDERS_MQ_URL=carrier-pigeon://roof: " in log
    assert "Traceback" not in log
