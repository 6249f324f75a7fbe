"""The lottery as a program: its configuration, its winners, and its life."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gift_lottery import app
from gift_lottery.__main__ import main
from gift_lottery.app import Config, ConfigError, from_environment
from gift_lottery.lottery import MalformedEventError, read_event
from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, Message, Producer

SECRET = "a secret that is long enough"


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({}, "GIFT_LOTTERY_SECRET has 0 characters; at least 16 are needed"),
        ({"GIFT_LOTTERY_SECRET": SECRET, "GIFT_LOTTERY_ONE_IN": "0"}, "at least 1 and 0 are allowed"),
        ({"GIFT_LOTTERY_SECRET": SECRET, "GIFT_LOTTERY_GIFTS": "ten"}, "='ten' is not a whole number"),
        ({"GIFT_LOTTERY_SECRET": SECRET, "GIFT_LOTTERY_PRICE": "1"}, "unknown configuration key GIFT_LOTTERY_PRICE"),
    ],
)
def test_a_wrong_configuration_is_rejected_by_name(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_environment(environment)


def test_the_environment_sets_what_it_names() -> None:
    environment = {"GIFT_LOTTERY_SECRET": SECRET, "GIFT_LOTTERY_ONE_IN": "5", "ORDERS_LISTEN": "ignored"}
    assert from_environment(environment) == Config(secret=SECRET, one_in=5)


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("paid", b""),
        ("paid", b"[]"),
        ("paid", b'{"order_id": "o"}'),
        ("paid", b'{"order_id": 1, "buyer_id": "b"}'),
        ("other", b'{"order_id": "o", "buyer_id": "b"}'),
        (None, b'{"order_id": "o", "buyer_id": "b"}'),
    ],
)
def test_what_is_no_event_of_an_order_is_rejected(tag: str | None, body: bytes) -> None:
    with pytest.raises(MalformedEventError):
        read_event(tag, body)


def test_a_program_without_a_secret_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GIFT_LOTTERY_SECRET", raising=False)
    assert main([]) == 2
    assert "gift_lottery: GIFT_LOTTERY_SECRET has 0 characters" in capsys.readouterr().err


def test_an_empty_lottery_has_no_winners(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GIFT_LOTTERY_SECRET", SECRET)
    monkeypatch.setenv("GIFT_LOTTERY_DATABASE", str(tmp_path / "lottery.db"))
    assert main(["winners"]) == 0
    assert capsys.readouterr().out == "0 tickets, 100 gifts left\n"


async def test_it_serves_until_it_is_stopped_and_goes_on_where_it_was(tmp_path: Path, broker: EmbeddedBroker) -> None:
    """Two lives on one database: the second has the tickets of the first, and the pot that is left."""
    config = Config(secret=SECRET, mq_url=broker.url, database=str(tmp_path / "lottery.db"), one_in=1, gifts=5)
    async with Admin(broker.url) as admin:
        await admin.update_topic("order-events", read_queue_count=1, write_queue_count=1)
    for life in (1, 2):
        async with Producer("orders", broker.url) as producer:
            body = f'{{"order_id": "o-{life}", "buyer_id": "b"}}'.encode()
            await producer.send(Message("order-events", body, tag="paid"))
        stop = asyncio.Event()
        serving = asyncio.create_task(app.serve(config, stop))
        async with asyncio.timeout(30):
            while f"{life} tickets, {5 - life} gifts left" not in await app.show_winners(config):
                await broker.clock.advance(1)
        stop.set()
        await serving
    assert (await app.show_winners(config)).splitlines() == [
        "o-1 b RESERVED",
        "o-2 b RESERVED",
        "2 tickets, 3 gifts left",
    ]
