"""`python -m payments` as a process: what it serves without a queue, how it stops, and with what it does not start."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from osenv import RealClock
from servicekit.auth import ROLES, Tokens
from servicekit.testing.service_process import ServiceProcess, service_process

pytestmark = pytest.mark.processes

NO_QUEUE = "mq://127.0.0.1:1"  # nothing listens on port 1
NO_GATEWAY = "http://127.0.0.1:1"
PAYMENT = {"order_id": "o", "amount_minor": 1, "currency": "CNY", "method": "card"}
KEYS = (("first", "k" * 40),)
SECRETS = {
    "PAYMENTS_AUTH_KEYS": "first:" + "k" * 40,
    "PAYMENTS_GATEWAY_API_KEY": "the key of the gateway",
    "PAYMENTS_WEBHOOK_SECRETS": "s" * 40,
}


def http_of(port: int, role: str = "buyer") -> httpx.AsyncClient:
    token = Tokens(KEYS, RealClock()).issue("caller", ROLES[role])
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"})


@asynccontextmanager
async def process(
    folder: Path, *arguments: str, without: str | None = None, **variables: str
) -> AsyncIterator[ServiceProcess]:
    environment = {"PAYMENTS_MQ_URL": NO_QUEUE, "PAYMENTS_LISTEN": "127.0.0.1:0", "PAYMENTS_GATEWAY_URL": NO_GATEWAY}
    environment |= {key: text for key, text in SECRETS.items() if key != without}
    async with service_process(
        "payments", folder, environment | variables, *arguments, prefix="PAYMENTS_", name="payments"
    ) as started:
        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_payments_serves_without_a_queue_and_stops_when_told(tmp_path: Path, number: signal.Signals) -> None:
    async with process(tmp_path) as started, http_of(await started.port()) as http:
        rejected = await http.post("/payments", json=PAYMENT, headers={"Idempotency-Key": "k"})
        assert (rejected.status_code, rejected.headers["Retry-After"]) == (404, "1")
        assert len(rejected.json()["trace_id"]) == 32
        ready = await http.get("/health/ready")
        checks = ready.json()["checks"]
        assert (ready.status_code, checks["database"]) == (503, "ok")
        assert "gateway" not in checks
        assert checks["producer"] == checks["consumers"] != "ok"
        assert (await http.post("/webhooks/gateway", content=b"{}")).status_code == 401
        assert (await http.get("/openapi.json")).status_code == 200
        started.send_signal(number)
        code, log = await started.ended()
    assert code == 0, log
    assert "payments has stopped" in log
    assert "Traceback" not in log
    assert "did not stop in time" not in log
    for secret in SECRETS.values():
        assert secret not in log


async def test_payments_starts_without_its_gateway_and_says_so(tmp_path: Path) -> None:
    async with process(tmp_path) as started, http_of(await started.port(), "operator") as http:
        answer = await http.get("/statistics")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hourglass:problem:gateway-unavailable")


async def test_payments_asks_a_gateway_over_http(tmp_path: Path) -> None:
    asked: list[bytes] = []
    book = b'{"captured_minor": 3, "refunded_minor": 2, "captures": 1, "refunds": 1}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(book) + book)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as gateway:
        url = f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}"
        async with (
            process(tmp_path, PAYMENTS_GATEWAY_URL=url) as started,
            http_of(await started.port(), "operator") as http,
        ):
            statistics = (await http.get("/statistics")).json()
    assert statistics["gateway"] == {"captured_minor": 3, "refunded_minor": 2, "captures": 1, "refunds": 1}
    assert b"GET /v1/book" in asked[0]
    assert b"Bearer the key of the gateway" in asked[0]


@pytest.mark.parametrize("name", SECRETS)
async def test_a_missing_secret_ends_the_start_with_its_name(tmp_path: Path, name: str) -> None:
    async with process(tmp_path, without=name) as started:
        code, log = await started.ended()
    assert code == 2
    assert log.startswith(f"payments: {name}")


async def test_migrate_brings_the_database_up_to_date_and_ends(tmp_path: Path) -> None:
    for _ in range(2):
        async with process(tmp_path, "migrate") as started:
            code, log = await started.ended()
        assert code == 0, log
    assert (tmp_path / "payments.db").exists()


async def test_reconcile_needs_its_schema_and_the_queue(tmp_path: Path) -> None:
    async with process(tmp_path, "reconcile", "--dry-run") as started:
        code, log = await started.ended()
    assert (code, "no such table: alembic_version" in log) == (1, True), log
    async with process(tmp_path, "migrate") as started:
        await started.ended()
    async with process(tmp_path, "reconcile", "--dry-run") as started:
        code, log = await started.ended()
    assert (code, "payments: the queue does not answer" in log) == (1, True), log
    assert "Traceback" not in log
