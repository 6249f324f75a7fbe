"""`python -m payments` as a process: what it serves without a queue, how it stops, and with what it does not start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from osenv import RealClock
from osenv.clock import timeout

pytestmark = pytest.mark.processes

STOP_MAX_S = 10
NO_QUEUE = "mq://127.0.0.1:1"  # nobody listens on port 1
PAYMENT = {"order_id": "o", "buyer_id": "b", "amount_minor": 1, "currency": "CNY", "method": "card"}


def http_of(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}")


@asynccontextmanager
async def process(folder: Path, *arguments: str, **variables: str) -> AsyncIterator[Process]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAYMENTS_")}
    environment |= {"PAYMENTS_MQ_URL": NO_QUEUE, "PAYMENTS_LISTEN": "127.0.0.1:0"}
    command = [sys.executable, "-W", "error", "-m", "payments", *arguments]
    started = await asyncio.create_subprocess_exec(*command, env=environment | variables, stderr=PIPE, cwd=folder)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.communicate()


async def port_of(started: Process) -> int:
    """The port in the line that says that payments is listening."""
    assert started.stderr is not None
    async for line in started.stderr:
        if b"payments is listening" in line:
            return int(line.split(b'"port": ')[1].split(b",")[0])
    raise AssertionError("payments ended before it was listening")


async def ended(started: Process) -> tuple[int | None, str]:
    async with timeout(RealClock(), STOP_MAX_S):
        _, stderr = await started.communicate()
    return started.returncode, stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_payments_serves_without_a_queue_and_stops_when_told(tmp_path: Path, number: signal.Signals) -> None:
    async with process(tmp_path) as started, http_of(await port_of(started)) as http:
        refused = await http.post("/payments", json=PAYMENT, headers={"Idempotency-Key": "k"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (404, "1")
        assert len(refused.json()["trace_id"]) == 32
        ready = await http.get("/health/ready")
        checks = ready.json()["checks"]
        assert (ready.status_code, checks["database"], checks["gateway"]) == (503, "ok", "ok")
        assert checks["producer"] == checks["consumers"] != "ok"
        assert (await http.get("/statistics")).json()["gateway"]["captures"] == 0
        assert (await http.get("/openapi.json")).status_code == 200
        started.send_signal(number)
        code, log = await ended(started)
    assert code == 0, log
    assert "payments has stopped" in log
    assert "Traceback" not in log
    assert "did not stop in time" not in log
    assert (tmp_path / "gateway.db").exists()


async def test_payments_starts_without_its_gateway_and_says_so(tmp_path: Path) -> None:
    url = f"sandbox:///{tmp_path / 'missing' / 'gateway.db'}"
    async with process(tmp_path, PAYMENTS_GATEWAY_URL=url) as started, http_of(await port_of(started)) as http:
        ready = await http.get("/health/ready")
        assert "unable to open database file" in ready.json()["checks"]["gateway"]
        assert (await http.get("/statistics")).json()["type"] == "urn:hourglass:problem:gateway-unavailable"


async def test_migrate_brings_the_database_up_to_date_and_ends(tmp_path: Path) -> None:
    for _ in range(2):
        async with process(tmp_path, "migrate") as started:
            code, log = await ended(started)
        assert code == 0, log
    assert (tmp_path / "payments.db").exists()


async def test_an_unknown_key_ends_the_start_with_its_name(tmp_path: Path) -> None:
    async with process(tmp_path, PAYMENTS_LISTNE="x") as started:
        code, log = await ended(started)
    assert (code, log) == (2, "payments: unknown configuration key PAYMENTS_LISTNE; did you mean PAYMENTS_LISTEN?\n")


async def test_an_address_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with process(tmp_path, PAYMENTS_LISTEN=f"127.0.0.1:{taken.getsockname()[1]}") as started:
            code, log = await ended(started)
    assert code == 1
    assert "payments: [Errno" in log
    assert "Traceback" not in log


async def test_a_database_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'missing' / 'payments.db'}"
    async with process(tmp_path, PAYMENTS_DATABASE_URL=url) as started:
        code, log = await ended(started)
    assert code == 1
    assert "payments: the database does not answer: unable to open database file" in log
    assert "Traceback" not in log


async def test_a_transport_that_nobody_knows_ends_the_start(tmp_path: Path) -> None:
    async with process(tmp_path, PAYMENTS_MQ_URL="carrier-pigeon://roof") as started:
        code, log = await ended(started)
    assert code == 1, log
    assert "payments: PAYMENTS_MQ_URL=carrier-pigeon://roof: " in log
    assert "Traceback" not in log
