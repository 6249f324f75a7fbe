"""`python -m sandbox_gateway` as a process: how it starts and stops, and what it keeps through kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from servicekit.testing.service_process import ServiceProcess, service_process

pytestmark = pytest.mark.processes

KEY, SECRET = "k" * 32, "s" * 32
CHARGE = {"order_id": "o", "amount_minor": 100, "currency": "CNY", "method": "card"}


def http_of(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {KEY}"})


@asynccontextmanager
async def process(folder: Path, *arguments: str, **variables: str) -> AsyncIterator[ServiceProcess]:
    environment = {
        "GATEWAY_LISTEN": "127.0.0.1:0",
        "GATEWAY_API_KEY": KEY,
        "GATEWAY_WEBHOOK_SECRET": SECRET,
        "GATEWAY_WEBHOOK_URL": "http://127.0.0.1:1/",  # nothing listens on port 1
    }
    async with service_process(
        "sandbox_gateway", folder, environment | variables, *arguments, prefix="GATEWAY_", name="gateway"
    ) as started:
        yield started


class Payments:
    """Takes webhooks on a real port, with 200 for each; `told` has the charges that were told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.url = ""
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Payments]:
        async with await asyncio.start_server(self._begin, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/webhooks/gateway"
            yield self
        for task in self._serving:
            await task

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the gateway was killed
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line]
            self.told.put_nowait(json.loads(await reader.readexactly(length))["data"]["charge_id"])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_gateway_serves_without_a_receiver_and_stops_when_told(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with process(tmp_path, GATEWAY_DELAY_MS="0") as started, http_of(await started.port()) as http:
        answer = await http.post("/v1/charges", json={"charge_id": "p"} | CHARGE)
        assert (answer.status_code, answer.json()["status"]) == (202, "captured")
        assert (await http.get("/health/ready")).json() == {"status": "ready", "checks": {"database": "ok"}}
        assert (await http.get("/openapi.json")).status_code == 200
        started.send_signal(number)
        code, log = await started.ended()
    assert code == 0, log
    assert "gateway has stopped" in log
    assert "Traceback" not in log
    assert "did not stop in time" not in log
    assert SECRET not in log
    assert KEY not in log
    assert (tmp_path / "gateway.db").exists()


async def test_kill_9_takes_nothing_from_the_book_and_no_event_from_its_receiver(tmp_path: Path) -> None:
    """Killed again and again while it is asked: whatever it answered is there, and in the end everything is told."""
    ids = [f"p{number}" for number in range(20)]
    answered: list[str] = []
    async with Payments().listening() as payments:
        for batch in range(0, len(ids), 10):
            async with (
                process(tmp_path, GATEWAY_WEBHOOK_URL=payments.url) as started,
                http_of(await started.port()) as http,
            ):
                asking = [asyncio.create_task(ask(http, one, answered)) for one in ids[batch : batch + 10]]
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                await started.kill()
                await asyncio.wait(asking)
        assert len(answered) >= 2
        async with (
            process(tmp_path, GATEWAY_WEBHOOK_URL=payments.url) as started,
            http_of(await started.port()) as http,
        ):
            for one in answered:
                assert (await http.get(f"/v1/charges/{one}")).status_code == 200
            for one in ids:
                await http.post("/v1/charges", json={"charge_id": one} | CHARGE)
            untold = set(ids)
            while untold:
                untold.discard(await payments.told.get())
            assert (await http.get("/v1/book")).json()["captured_minor"] == 100 * len(ids)


async def ask(http: httpx.AsyncClient, charge_id: str, answered: list[str]) -> None:
    try:
        answer = await http.post("/v1/charges", json={"charge_id": charge_id} | CHARGE)
    except httpx.HTTPError:
        return  # it was killed
    assert answer.status_code == 202
    answered.append(charge_id)


async def test_migrate_brings_the_database_up_to_date_and_ends(tmp_path: Path) -> None:
    for _ in range(2):
        async with process(tmp_path, "migrate") as started:
            code, log = await started.ended()
        assert code == 0, log
    assert (tmp_path / "gateway.db").exists()


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"GATEWAY_LISTNE": "x"}, "unknown configuration key GATEWAY_LISTNE; did you mean GATEWAY_LISTEN?"),
        ({"GATEWAY_API_KEY": "short"}, "GATEWAY_API_KEY has 5 characters"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
    ],
)
async def test_a_wrong_configuration_ends_the_start_with_its_name(
    tmp_path: Path, variables: dict[str, str], complaint: str
) -> None:
    async with process(tmp_path, **variables) as started:
        code, log = await started.ended()
    assert code == 2
    assert log.startswith(f"sandbox_gateway: {complaint}")
    assert "Traceback" not in log
