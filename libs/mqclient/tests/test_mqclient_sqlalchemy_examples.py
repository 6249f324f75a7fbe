"""The two examples in the documentation of mqclient.sqlalchemy do what it says of them."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
from sqlalchemy import BigInteger, Column, MetaData, Table, func, select, text
from sqlalchemy.exc import IntegrityError

import mqclient
import mqclient.sqlalchemy
from mq_broker.embedded import EmbeddedBroker
from mqclient import ConsumeStatus
from mqclient.testing import FakeCluster, consumer_of
from mqclient.testing.engines import open_sqlite
from mqclient.testing.recording import stored_bodies
from mqproto.properties import KEYS
from osenv.sim_clock import settle

NAMES: dict[str, Any] = {
    **vars(sqlalchemy),
    **vars(sqlalchemy.ext.asyncio),
    **vars(mqclient),
    **vars(mqclient.sqlalchemy),
}


def example(title: str) -> list[str]:
    """The indented lines below the paragraph that begins with `title`."""
    documentation = inspect.getdoc(mqclient.sqlalchemy) or ""
    lines = documentation[documentation.index(title) :].splitlines()[1:]
    end = next((at for at, line in enumerate(lines) if line and not line.startswith("    ")), len(lines))
    return [line for line in textwrap.dedent("\n".join(lines[:end])).splitlines() if line]


def lines_that_matter(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(("from ", "import "))]


@pytest.mark.mechanism("T14")
async def test_sending_with_a_database_transaction(tmp_path: Path, broker: EmbeddedBroker) -> None:
    lines = example("Sending:")
    assert len(lines_that_matter(lines)) == 10
    names: dict[str, Any] = {}
    exec("\n".join(lines).replace("shop.db", f"{tmp_path}/shop.db"), names)
    sent = await names["place_order"](broker.url)
    with pytest.raises(IntegrityError):  # there is such an order already
        await names["place_order"](broker.url)
    async with names["engine"].connect() as connection:
        found = await connection.execute(text("SELECT transaction_id, outcome FROM mq_transaction"))
        assert [tuple(row) for row in found] == [(sent.transaction_id, "COMMITTED")]
        assert await connection.scalar(select(func.count()).select_from(names["orders"])) == 1
    async with mqclient.Admin(broker.url) as admin:
        assert await stored_bodies(admin, "orders") == [b"order-17"]
    await names["engine"].dispose()


async def test_consuming_once_in_a_database_transaction(tmp_path: Path) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    engine = open_sqlite(tmp_path / "shop.db", lock_timeout_s=10)  # two messages at once
    metadata = MetaData()
    accounts = Table("accounts", metadata, Column("balance", BigInteger))
    names = NAMES | {"metadata": metadata, "engine": engine, "accounts": accounts, "clock": cluster.clock}
    exec("\n".join(example("Consuming:")), names)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(accounts.insert().values(balance=1_000))
    statuses = []

    async def listener(messages: list[mqclient.MessageExt]) -> ConsumeStatus:
        statuses.append(await names["debit"](messages))
        return ConsumeStatus(statuses[-1])

    async with consumer_of(cluster, listener):
        for _ in range(2):
            broker.put("orders", 0, b"100 yuan", {KEYS: "ORDERID_100"})
        while len(statuses) < 2:
            await settle()
    assert statuses == [ConsumeStatus.CONSUME_SUCCESS] * 2
    async with engine.connect() as connection:
        assert await connection.scalar(select(accounts.c.balance)) == 900
    await engine.dispose()
