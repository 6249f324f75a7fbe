"""Idempotency keys: one request at a time, one result for ever, one payload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, insert
from sqlalchemy.exc import IntegrityError

from servicekit.adapters.database import Database
from servicekit.adapters.sql_idempotency_keys import IdempotencyKeysTable
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import KeyReusedError, RequestInFlightError
from servicekit.idempotency import InFlightKeys, KeyClaim, fingerprint

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
        in_flight.holding("k"),
        in_flight.holding("other"),
        pytest.raises(RequestInFlightError),
        in_flight.holding("k"),
    ):
        pytest.fail("the key is held")
    with pytest.raises(ZeroDivisionError), in_flight.holding("k"):
        raise ZeroDivisionError
    with in_flight.holding("k"):
        pass


def test_a_key_belongs_to_its_payload() -> None:
    claim = KeyClaim("k", "f", "thing-1")
    claim.require_fingerprint("f")
    with pytest.raises(KeyReusedError):
        claim.require_fingerprint("g")


async def test_a_claim_is_found_once_its_result_is_committed(tmp_path: Path) -> None:
    database = Database(f"{SQLITE_PREFIX}{tmp_path / 'x.db'}")
    try:
        async with database.writing() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.commit()
        claim = KeyClaim("k", "f" * 64, "thing-1")
        async with database.writing() as connection:
            await keys.of(connection).claim(claim, 1)  # not committed
        async with database.writing() as connection:
            assert await keys.of(connection).find("k") is None
            await keys.of(connection).claim(claim, 1)
            await connection.execute(insert(things).values(thing_id="thing-1"))
            await connection.commit()
        async with database.writing() as connection:
            assert await keys.of(connection).find("k") == claim
            with pytest.raises(RequestInFlightError):
                await keys.of(connection).claim(KeyClaim("k", "g" * 64, "thing-1"), 2)
        async with database.writing() as connection:
            await keys.of(connection).claim(KeyClaim("no result", "f" * 64, "thing-2"), 2)
            with pytest.raises(IntegrityError):
                await connection.commit()
    finally:
        await database.dispose()
