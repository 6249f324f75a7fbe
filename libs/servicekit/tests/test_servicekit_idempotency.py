"""Idempotency keys: one request at a time, one result for ever, one payload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from sqlalchemy import Column, MetaData, String, Table, insert, select
from sqlalchemy.exc import IntegrityError

from servicekit.errors import KeyReusedError, RequestInFlightError
from servicekit.sql.database import Database
from servicekit.sql.tables import IdempotencyKeysTable
from servicekit.sql.units import InFlightKeys, KeyClaim, fingerprint
from servicekit.testing.databases import NewDatabaseUrl

metadata = MetaData()
things = Table("things", metadata, Column("thing_id", String(64), primary_key=True))
keys = IdempotencyKeysTable(metadata, things.c.thing_id)


@dataclass(frozen=True, slots=True)
class Line:
    product: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Request:
    buyer: str
    lines: tuple[Line, ...]


def test_equal_requests_have_equal_fingerprints_and_others_have_others() -> None:
    request = Request("b", (Line("p", 1), Line("q", 2)))
    assert fingerprint(request) == fingerprint(Request("b", (Line("p", 1), Line("q", 2))))
    others = [Request("c", request.lines), Request("b", request.lines[::-1]), Request("b", (Line("p", 1),))]
    assert len({fingerprint(one) for one in (request, *others)}) == 4
    assert len(fingerprint(request)) == 64


def test_a_key_is_held_by_one_request_and_free_again_after_it_even_if_it_failed() -> None:
    in_flight = InFlightKeys()
    with (
        in_flight.holding("b", "k"),
        in_flight.holding("b", "other"),
        in_flight.holding("another buyer", "k"),
        pytest.raises(RequestInFlightError),
        in_flight.holding("b", "k"),
    ):
        pytest.fail("the key is held")
    with pytest.raises(ZeroDivisionError), in_flight.holding("b", "k"):
        raise ZeroDivisionError
    with in_flight.holding("b", "k"):
        pass


def test_a_key_belongs_to_its_payload() -> None:
    claim = KeyClaim("b", "k", "f", "thing-1")
    claim.require_fingerprint("f")
    with pytest.raises(KeyReusedError):
        claim.require_fingerprint("g")


@pytest.fixture
async def database(new_database_url: NewDatabaseUrl) -> AsyncIterator[Database]:
    database = Database(new_database_url("x"))
    async with database.writing() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.commit()
    yield database
    await database.dispose()


async def make(database: Database, claim: KeyClaim) -> None:
    """Claim the key and make its result, in one unit."""
    async with database.writing() as connection:
        await keys.of(connection).claim(claim, 1)
        await connection.execute(insert(things).values(thing_id=claim.result_id))
        await connection.commit()


async def find(database: Database, subject: str, key: str) -> KeyClaim | None:
    async with database.snapshot() as connection:
        return await keys.of(connection).find(subject, key)


async def test_a_claim_is_found_once_its_result_is_committed(database: Database) -> None:
    claim = KeyClaim("b", "k", "f" * 64, "thing-1")
    async with database.writing() as connection:
        await keys.of(connection).claim(claim, 1)  # not committed
    assert await find(database, "b", "k") is None
    await make(database, claim)
    assert await find(database, "b", "k") == claim
    with pytest.raises(RequestInFlightError):
        await make(database, KeyClaim("b", "k", "g" * 64, "thing-2"))
    assert await find(database, "b", "k") == claim


async def test_the_same_key_of_another_subject_is_another_key(database: Database) -> None:
    claims = [KeyClaim(subject, "k", "f" * 64, f"thing-of-{subject}") for subject in ("b", "c")]
    for claim in claims:
        await make(database, claim)
    assert [await find(database, subject, "k") for subject in ("b", "c", "d")] == [*claims, None]


async def test_a_claim_without_its_result_cannot_be_committed(database: Database) -> None:
    async with database.writing() as connection:
        await keys.of(connection).claim(KeyClaim("b", "no result", "f" * 64, "thing-2"), 2)
        with pytest.raises(IntegrityError):
            await connection.commit()
    assert await find(database, "b", "no result") is None


async def test_of_twenty_processes_that_claim_a_key_at_one_moment_exactly_one_makes_something(
    new_database_url: NewDatabaseUrl, database: Database
) -> None:
    processes = [Database(new_database_url("x"), pool_size=1) for _ in range(4)]
    made = await asyncio.gather(
        *(make(processes[n % 4], KeyClaim("b", "k", "f" * 64, f"thing-{n}")) for n in range(20)), return_exceptions=True
    )
    assert sum(one is None for one in made) == 1
    assert {type(one) for one in made if one is not None} == {RequestInFlightError}
    winner = await find(database, "b", "k")
    async with database.snapshot() as connection:
        things_made = (await connection.scalars(select(things.c.thing_id))).all()
    assert winner is not None
    assert things_made == [winner.result_id]
    for process in processes:
        await process.dispose()
