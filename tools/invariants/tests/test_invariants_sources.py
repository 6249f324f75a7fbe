"""What is said when nothing can be said: databases that are not there, do not answer, or are others."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from shop_rows import NOW, Shop, healthy_shop
from typer.testing import CliRunner

from hourglass_invariants import SchemaMismatchError, Sources, SourceUnavailableError, check
from hourglass_invariants.__main__ import app
from hourglass_invariants.checking import parse_check, read_checks
from hourglass_invariants.wanted import WANTED
from orders.adapters import tables as orders
from payments.adapters import tables as payments
from sandbox_gateway import sql as gateway
from servicekit.config import SQLITE_PREFIX
from servicekit.testing.databases import NewDatabaseUrl

METADATA = {"orders": orders.metadata, "payments": payments.metadata, "gateway": gateway.metadata}


@pytest.fixture
async def sources(tmp_path: Path) -> Sources:
    """A healthy shop on SQLite."""
    return await healthy_shop().write(lambda name: f"{SQLITE_PREFIX}{tmp_path / name}.db")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.db")}


def options(sources: Sources, *more: str) -> list[str]:
    # The rows of shop_rows are of a fixed moment: by the machine's clock everything in them is long ago.
    urls = ["--orders", sources.orders, "--payments", sources.payments, "--gateway", sources.gateway]
    return [*urls, "--grace-s", "1000000000000", *more]


@pytest.mark.parametrize("name", WANTED)
def test_the_checks_read_what_the_services_have(name: str) -> None:
    tables = METADATA[name].tables
    for table, columns in WANTED[name].items():
        assert set(columns) <= set(tables[table].columns.keys()), table


async def test_a_database_without_a_table_or_a_column_is_rejected_by_name(new_database_url: NewDatabaseUrl) -> None:
    shop = Shop(
        statements=[
            ("payments", "DROP TABLE outbox"),
            ("payments", "ALTER TABLE refunds RENAME COLUMN currency TO money"),
        ]
    )
    sources = await shop.write(new_database_url)
    with pytest.raises(SchemaMismatchError, match=r"payments at .* lacks column refunds\.currency, table outbox:"):
        await check(sources, NOW)


async def test_another_services_database_is_rejected(sources: Sources) -> None:
    with pytest.raises(SchemaMismatchError, match=r"the database of gateway at .* lacks table charges"):
        await check(replace(sources, gateway=sources.orders), NOW)


async def test_a_file_that_is_not_there_is_not_made(sources: Sources, tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    with pytest.raises(SourceUnavailableError, match="the database of payments is not there: no file"):
        await check(replace(sources, payments=f"{SQLITE_PREFIX}{missing}"), NOW)
    assert not missing.exists()


async def test_a_file_that_is_no_database_is_rejected(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, but a text that is long enough to look at\n" * 100)
    with pytest.raises(SourceUnavailableError, match="cannot be read: file is not a database"):
        await check(replace(sources, orders=f"{SQLITE_PREFIX}{tmp_path / 'text.db'}"), NOW)


@pytest.mark.parametrize(
    "url", ["orders.db", "mysql://host/orders", "sqlite+aiosqlite://", "postgresql+asyncpg://host"]
)
async def test_a_url_of_another_kind_is_rejected(url: str, sources: Sources) -> None:
    with pytest.raises(SourceUnavailableError, match=r"the database of orders is .*; allowed is sqlite"):
        await check(replace(sources, orders=url), NOW)


async def test_a_server_that_does_not_answer_is_named_without_its_password(sources: Sources) -> None:
    url = "postgresql+asyncpg://shop:secret@127.0.0.1:1/orders"  # nothing listens there
    with pytest.raises(SourceUnavailableError, match=r"orders at postgresql.* does not answer") as caught:
        await check(replace(sources, orders=url), NOW)
    assert "secret" not in str(caught.value)


async def test_a_database_is_read_while_its_service_writes(sources: Sources, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "orders.db", isolation_level=None) as service:
        service.execute("BEGIN IMMEDIATE")
        service.execute("UPDATE products SET available = 0")
        assert await check(sources, NOW) == []
        service.execute("ROLLBACK")
    service.close()


async def test_nothing_is_written(sources: Sources, tmp_path: Path) -> None:
    before = files(tmp_path)
    await check(sources, NOW)
    assert files(tmp_path) == before


def test_the_command_shows_every_check_of_a_healthy_shop_and_returns_0(sources: Sources) -> None:
    shown = CliRunner().invoke(app, options(sources, "--stock", "seat=50"))
    assert shown.exit_code == 0
    assert "all 29 invariants hold" in shown.output


def test_the_command_returns_1_and_shows_the_rows_that_violate(sources: Sources) -> None:
    shown = CliRunner().invoke(app, options(sources, "--stock", "seat=51"))
    assert shown.exit_code == 1
    assert "28 of 29 invariants hold; rows that violate the others: 1" in shown.output
    assert "stocked" in shown.output


def test_the_json_document_has_every_check_with_its_rows(sources: Sources) -> None:
    shown = CliRunner().invoke(app, options(sources, "--stock", "seat=51", "--json"))
    document = json.loads(shown.output)
    speaking = [one for one in document["checks"] if one["violations"]]
    assert (shown.exit_code, document["violations"], len(document["checks"])) == (1, 1, 29)
    assert [one["name"] for one in speaking] == ["stock_constant"]
    assert speaking[0]["violations"][0] | {"available": 0, "reserved": 0, "sold": 0} == {
        "product_id": "seat",
        "stocked": 51,
        "available": 0,
        "reserved": 0,
        "sold": 0,
    }


def test_the_command_returns_2_when_the_answer_is_unknown(sources: Sources, tmp_path: Path) -> None:
    missing = replace(sources, orders=f"{SQLITE_PREFIX}{tmp_path / 'missing.db'}")
    shown = CliRunner().invoke(app, options(missing))
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith("invariants: the database of orders is not there")


@pytest.mark.parametrize("text", ["seat", "=5", "seat=many"])
def test_a_stock_that_is_no_number_is_wrong_usage(text: str, sources: Sources) -> None:
    shown = CliRunner().invoke(app, options(sources, "--stock", text))
    assert shown.exit_code == 2
    assert "PRODUCT=UNITS" in shown.stderr


def test_a_file_says_when_its_invariant_holds_what_it_is_and_where_it_is_promised() -> None:
    found = parse_check("07_stuck.sql", "-- quiet\n-- No order\n-- waits.\n-- Row: G10\nSELECT 1\n-- not a comment\n")
    assert (found.name, found.kind, found.holds, found.row) == ("stuck", "quiet", "No order waits.", "G10")
    assert found.sql == "SELECT 1\n-- not a comment"


@pytest.mark.parametrize(
    "text", ["", "SELECT 1", "-- often\n-- It holds.\n-- Row: X1\nSELECT 1", "-- quiet\n-- Row: X1\nSELECT 1"]
)
def test_a_file_without_its_comment_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="does not begin with its kind"):
        parse_check("01_it.sql", text)


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/invariants.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if " | always | " in line or " | quiet | " in line]
    assert listed == [f"| {one.name} | {one.kind} | {one.holds} |" for one in read_checks()]
