"""Rows become dataclasses, and dataclasses rows, by the names of columns and fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pytest
from sqlalchemy import create_engine, text

from servicekit.sql.rows import row_of, value_of


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Seat:
    """A field of each kind."""

    seat_id: str
    colour: Colour
    former_colour: Colour | None
    price_minor: int = 5


def test_a_value_becomes_a_row_without_what_is_left_out_and_with_what_is_given() -> None:
    seat = Seat("12A", Colour.RED, None)
    row = {"seat_id": "12A", "colour": "red", "former_colour": None, "price_minor": 5}
    assert row_of(seat) == row
    assert row_of(seat, without=frozenset({"former_colour"}), price_minor=7, at_ms=1) == {
        "seat_id": "12A",
        "colour": "red",
        "price_minor": 7,
        "at_ms": 1,
    }


def test_a_row_becomes_a_value_with_its_enumerations() -> None:
    with create_engine("sqlite://").connect() as connection:
        row = connection.execute(text("SELECT '12A' AS seat_id, 'red' AS colour, NULL AS former_colour")).one()
    seat = value_of(Seat, row, price_minor=3)
    assert (seat, type(seat.colour)) == (Seat("12A", Colour.RED, None, 3), Colour)
    with pytest.raises(AttributeError, match="price_minor"):
        value_of(Seat, row)
