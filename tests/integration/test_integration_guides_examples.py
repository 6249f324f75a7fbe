"""The Python examples of the README and of the guides do what the pages say of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import REAL_DELAY_LEVELS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
ELSEWHERE = {"spark.md"}  # whose examples libs/pyspark-mq runs
EXAMPLES: list[str] = [
    example
    for page in PAGES
    if page.name not in ELSEWHERE
    for example in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]
TIMEOUT_S = 100
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


async def run_with_queue(
    tmp_path: Path, *words: str, delay_levels: str = REAL_DELAY_LEVELS, end: str = ""
) -> list[str]:
    """What the examples print that have these words, one after the other, with a queue of their own."""
    printed = []
    async with Cluster(tmp_path / "cluster", orders=False, delay_levels=delay_levels) as cluster:
        for word in words:
            script = example(word).replace("mq://127.0.0.1:9876", cluster.url) + end
            (tmp_path / "example.py").write_text(script, encoding="utf-8")
            printed += run(["example.py"], tmp_path).splitlines()
    return printed


@pytest.mark.parametrize(
    ("word", "printed"),
    [
        ("five seconds later", ["b'now'", "b'five seconds later'"]),
        ("query_message", ["('order-18', 'parcel-4') b'shipped'", "('order-18',) b'packed'"]),
        ('"scripts"', ["SEND_OK", "SEND_OK 1000"]),
        ("reschedule", ["REMOVED RESCHEDULED REMOVED UNKNOWN"]),
        ('"packers"', ["packed order-17 2 seats"]),
        ("PullConsumer", ["[b'17']"]),
    ],
)
async def test_a_program_prints_what_the_page_says(tmp_path: Path, word: str, printed: list[str]) -> None:
    assert await run_with_queue(tmp_path, word) == printed


async def test_an_orders_steps_are_consumed_in_their_order(tmp_path: Path) -> None:
    printed = await run_with_queue(tmp_path, "selector=by_order", "register_message_listener_orderly(ship)")
    assert printed == ["created", "paid", "shipped"]


async def test_a_transaction_sends_its_message_once(tmp_path: Path) -> None:
    printed = await run_with_queue(tmp_path, "insert_order", "insert_order")
    assert printed == ["COMMIT_MESSAGE", "there is such an order already"]


@pytest.mark.mechanism("Q3")
async def test_an_application_closes_its_orders(tmp_path: Path) -> None:
    levels = f"{'1s ' * 15}2s 1h 2h"
    printed = await run_with_queue(tmp_path, 'print("closing"', delay_levels=levels, end=DRIVE)
    assert printed == ["201", "closing 17"]


def test_the_tests_of_the_guides_pass_and_an_application_books_its_payments_in_order(tmp_path: Path) -> None:
    """In one run, since most of it is its start."""
    words = (
        "clock.advance(30 * 60 - 1)",
        "CREATE TABLE closed",
        "SyncEmbeddedBroker",
        "max_reconsume_times",
        "InboxTable",
    )
    texts = [*map(example, words), example("OrderPaid") + BOOK]
    for number, text in enumerate(texts):
        (tmp_path / f"test_example_{number}.py").write_text(text, encoding="utf-8")
    printed = run(["-m", "pytest", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "-rP"], tmp_path)
    assert f"{len(texts)} passed" in printed
    assert "booked 17 100\nclosed 17\n" in printed


def test_no_other_example_is_left_untried() -> None:
    assert len(EXAMPLES) == 16
