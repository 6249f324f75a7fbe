"""Locust's users against a shop that is played: what they do, what they say they saw, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import psutil
import pytest

from hourglass_loadtest.run import RunError
from hourglass_loadtest.shop.load import locust
from hourglass_loadtest.users.plan import DONE, MIX, LoadPlan, Records, Stage, read_records
from hourglass_local.waiting import eventually

WINDOW_MS = 500
RATE_PER_S, SECONDS = 10.0, 3.0
END_MAX_S = 30.0

pytestmark = pytest.mark.processes


class PlayedShop:
    """Orders and payments in one. Every key is told "later" once. A forgetful one makes new things of old keys."""

    def __init__(self, *, forgetful: bool = False) -> None:
        self.keys: Counter[str] = Counter()
        self.tokens: set[str] = set()
        self._forgetful = forgetful
        self._made: dict[str, dict[str, object]] = {}
        self._numbers = count()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                line, *fields = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
                await reader.readexactly(int(headers.get("content-length", "0")))
                self.tokens.add(headers["authorization"])
                status, more, body = self._answer(line.split(" ")[0], line.split(" ")[1], headers)
                content = json.dumps(body).encode()
                kind = "application/problem+json" if status >= 400 else "application/json"
                head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(content)}\r\n\r\n"
                writer.write(head.encode() + content)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the user has gone
        finally:
            writer.close()

    def _answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, object]]:
        if method == "GET":
            return 200, "", {"items": [], "status": "CAPTURED", "payment_id": path.rpartition("/")[2]}
        key = headers["idempotency-key"]
        self.keys[key] += 1
        if self.keys[key] == 1:
            return 503, "Retry-After: 0\r\n", {"type": "urn:hourglass:problem:overloaded"}
        replayed = "Idempotency-Replayed: true\r\n" if key in self._made else ""
        if key not in self._made or self._forgetful:
            number = str(next(self._numbers))
            expires_at_ms = int(time.time() * 1000) + WINDOW_MS
            order = {"order_id": number, "total_minor": 5, "currency": "CNY", "expires_at_ms": expires_at_ms}
            self._made[key] = order if path == "/orders" else {"payment_id": number, "status": "CREATED"}
        return (
            (201 if path == "/orders" else 202),
            "Retry-After: 0\r\n" * (path != "/orders") + replayed,
            self._made[key],
        )


@asynccontextmanager
async def opened(shop: PlayedShop) -> AsyncIterator[str]:
    server = await asyncio.start_server(shop.serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def plan_for(url: str, folder: Path, seconds: float = SECONDS) -> LoadPlan:
    return LoadPlan(
        orders_url=url, payments_url=url, tokens=["one", "two"], product_ids=["a", "b", "c", "d"], think_s=(0.0, 0.01),
        records=str(folder / "records"), stages=[Stage(RATE_PER_S, seconds)], finish_s=5.0,
    )  # fmt: skip


async def visited(shop: PlayedShop, folder: Path) -> Records:
    async with opened(shop) as url:
        plan = plan_for(url, folder)
        async with locust(plan, folder) as run:
            await run.wait()
    return read_records(Path(plan.records))


@pytest.mark.mechanism("U7")
async def test_users_come_on_time_ask_again_when_told_to_and_never_with_another_runs_keys(tmp_path: Path) -> None:
    shop = PlayedShop()
    seen = await visited(shop, tmp_path)
    assert {visit.kind for visit in seen.visits} == set(MIX)
    assert {visit.outcome for visit in seen.visits} == {DONE}
    intended = sorted(visit.intended for visit in seen.visits)
    assert len(intended) == pytest.approx(RATE_PER_S * SECONDS, abs=6)
    assert all(visit.begun >= visit.intended - 0.01 for visit in seen.visits)
    orders = [one for one in seen.requests if one.name == "POST /orders"]
    assert {"503 overloaded", "201"} <= {one.answer for one in orders} <= {"503 overloaded", "201", "201 replayed"}
    again = [one for one in orders if one.number == 2]
    assert again
    first = {(one.intended, one.retry_after) for one in orders if one.number == 1 and one.answer.startswith("503")}
    assert {(one.intended, "0") for one in again} <= first
    assert {one.name for one in seen.requests} >= {
        "GET /products",
        "GET /orders",
        "POST /payments",
        "GET /payments/{id}",
    }
    assert shop.tokens == {"Bearer one", "Bearer two"}
    assert seen.wrong == []
    assert len(seen.generator) >= 2
    assert not (tmp_path / "plan.json").exists()  # it held tokens

    forgetful = PlayedShop(forgetful=True)
    seen = await visited(forgetful, tmp_path)
    assert any("one key has made two orders" in sentence for sentence in seen.wrong)
    assert forgetful.keys
    assert shop.keys.keys().isdisjoint(forgetful.keys)  # the same seed, another run


async def test_locust_ends_with_the_driver_however_that_dies(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from hourglass_loadtest.shop.load import locust\n"
        "from hourglass_loadtest.users.plan import LoadPlan\n"
        "async def main():\n"
        "    async with locust(LoadPlan.read(Path(sys.argv[1])), Path(sys.argv[2])) as run:\n"
        "        print(run.pid, flush=True)\n        await run.wait()\n"
        "asyncio.run(main())\n"
    )
    shop = PlayedShop()
    async with opened(shop) as url:
        plan_for(url, tmp_path, seconds=600.0).write(tmp_path / "long-plan")
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path / "long-plan"), str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert driver.stdout is not None
        pid = int(await driver.stdout.readline())
        await eventually(lambda: shop.keys, END_MAX_S, "the first order")
        driver.kill()
        await driver.wait()
        try:
            await eventually(lambda: not psutil.pid_exists(pid), END_MAX_S, "Locust has ended")
        finally:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


async def test_a_locust_that_cannot_start_says_why(tmp_path: Path) -> None:
    plan = LoadPlan(
        orders_url="http://o", payments_url="http://p", tokens=["t"], product_ids=["a"],
        records=str(tmp_path / "no" / "such" / "folder"), stages=[Stage(1.0, 1.0)],
    )  # fmt: skip
    async with locust(plan, tmp_path) as run:
        with pytest.raises(RunError, match="No such file or directory"):
            await run.wait()
