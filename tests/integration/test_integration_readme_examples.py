"""The README's Python examples do what it says of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hourglass_local.cluster import Cluster

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES: list[str] = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TIMEOUT_S = 40
DRIVE = """
import asyncio
import builtins
import httpx

closed = asyncio.Event()


def print(*words: object) -> None:
    builtins.print(*words)
    if words[0] == "closing":
        closed.set()


async def drive() -> None:
    transport = httpx.ASGITransport(app)
    async with mq.lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        print((await http.post("/orders/17")).status_code)
        await asyncio.wait_for(closed.wait(), 20)


asyncio.run(drive())
"""

BOOK = """
import httpx


async def test_it(broker, clock):
    from mqclient import Message

    mq.url = broker.url
    transport = httpx.ASGITransport(app)
    async with mq.lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        (await http.post("/payments", json={"order_id": "17", "amount_minor": 100})).raise_for_status()
        await clock.advance(30)
        producer = await mq.producer("shop")()
        await producer.send(Message("orders", b"{}", tag="closed", keys="17"))
        await broker.idle()
"""

pytestmark = pytest.mark.processes


def example(word: str) -> str:
    """The one example in which `word` occurs."""
    (found,) = [text for text in EXAMPLES if word in text]
    return found


def run(arguments: list[str], folder: Path) -> str:
    """What the command prints; fails with it unless it ends well."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_queue_in_ten_lines_prints_both_greetings(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "cluster", orders=False) as cluster:
        script = example("five seconds later").replace("mq://127.0.0.1:9876", cluster.url)
        (tmp_path / "example.py").write_text(script, encoding="utf-8")
        printed = run(["example.py"], tmp_path).splitlines()
    assert printed == ["b'now'", "b'five seconds later'"]


@pytest.mark.parametrize("word", ["await clock.advance(30 * 60 - 1)", "create_async_engine", "SyncEmbeddedBroker"])
def test_thirty_minutes_pass_inside_a_test(tmp_path: Path, word: str) -> None:
    (tmp_path / "test_example.py").write_text(example(word), encoding="utf-8")
    printed = run(["-m", "pytest", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "test_example.py"], tmp_path)
    assert "1 passed" in printed


async def test_messages_are_found_again_by_their_key(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "cluster", orders=False) as cluster:
        script = example("query_message").replace("mq://127.0.0.1:9876", cluster.url)
        (tmp_path / "example.py").write_text(script, encoding="utf-8")
        printed = run(["example.py"], tmp_path).splitlines()
    assert printed == ["('order-17', 'parcel-4') b'shipped'", "('order-17',) b'packed'"]


async def test_a_script_sends_without_await(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "cluster", orders=False) as cluster:
        script = example('"scripts"').replace("mq://127.0.0.1:9876", cluster.url)
        (tmp_path / "example.py").write_text(script, encoding="utf-8")
        assert run(["example.py"], tmp_path) == "SEND_OK 1000\n"


async def test_an_orders_steps_are_consumed_in_their_order(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "cluster", orders=False) as cluster:
        for name, word in (("send.py", '"scripts"'), ("consume.py", "register_message_listener_orderly")):
            script = example(word).replace("mq://127.0.0.1:9876", cluster.url)
            (tmp_path / name).write_text(script, encoding="utf-8")
        run(["send.py"], tmp_path)
        assert run(["consume.py"], tmp_path) == "created\npaid\nshipped\n"


async def test_an_application_closes_its_orders(tmp_path: Path) -> None:
    levels = f"{'1s ' * 15}2s 1h 2h"
    async with Cluster(tmp_path / "cluster", orders=False, delay_levels=levels) as cluster:
        script = example('print("closing"').replace("mq://127.0.0.1:9876", cluster.url) + DRIVE
        (tmp_path / "example.py").write_text(script, encoding="utf-8")
        assert run(["example.py"], tmp_path) == "201\nclosing 17\n"


def test_an_application_books_its_payments_in_order(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(example("OrderPaid") + BOOK, encoding="utf-8")
    options = ["-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-rP"]
    printed = run(["-m", "pytest", *options, "test_example.py"], tmp_path)
    assert "booked 17 100\nclosed 17\n" in printed


async def test_what_waits_is_taken_back_and_given_another_time(tmp_path: Path) -> None:
    async with Cluster(tmp_path / "cluster", orders=False) as cluster:
        script = example("reschedule").replace("mq://127.0.0.1:9876", cluster.url)
        (tmp_path / "example.py").write_text(script, encoding="utf-8")
        assert run(["example.py"], tmp_path) == "REMOVED RESCHEDULED REMOVED UNKNOWN\n"


def test_no_other_example_is_left_untried() -> None:
    assert len(EXAMPLES) == 10
