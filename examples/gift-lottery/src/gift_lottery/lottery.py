"""The lottery: what an order's event does to a ticket and to the pot.

Invariants: gifts in the pot + RESERVED + AWARDED tickets are as many as were put in; an event changes something once,
however often it comes, because its row in the inbox is part of the same transaction. Whether an order wins is a
function of its id and the secret alone: neither a repeated message nor a restart draws again, and with the secret every
draw can be checked afterwards. An event may come late, or before the one that happened first; so every event has a row
for a ticket that is not there.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gift_lottery.database import inbox, pot, tickets
from osenv import Clock

PAID, COMPLETED, CLOSED = "paid", "completed", "closed"
GROUP = "gift-lottery"
TAGS = (PAID, COMPLETED, CLOSED)
_NUMBERS = 2**64


class MalformedEventError(Exception):
    """A body that is not the event of an order."""


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """Something happened to an order; `was_paid` tells of a closed one whether money had come before."""

    tag: str
    order_id: str
    buyer_id: str
    was_paid: bool


def read_event(tag: str | None, body: bytes) -> OrderEvent:
    """Raises MalformedEventError."""
    try:
        members = json.loads(body)
        order_id, buyer_id = members["order_id"], members["buyer_id"]
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedEventError(f"this is not the event of an order: {error!r}") from error
    if tag not in TAGS or not isinstance(order_id, str) or not isinstance(buyer_id, str):
        raise MalformedEventError(f"the event {tag!r} has order_id {order_id!r} and buyer_id {buyer_id!r}")
    return OrderEvent(tag, order_id, buyer_id, tag != CLOSED or members.get("payment_id") is not None)


class TicketStatus(enum.StrEnum):
    """Where a ticket stands."""

    BLANK = "BLANK"  # drawn, and no luck
    TOO_LATE = "TOO_LATE"  # drawn and lucky, and no gift was left
    RESERVED = "RESERVED"  # a gift is set aside until the order is completed
    AWARDED = "AWARDED"  # the gift is the buyer's
    RETURNED = "RETURNED"  # the order was closed, and the gift is in the pot again
    VOID = "VOID"  # the order was closed before the draw


class Step(enum.Enum):
    """What an event leads to."""

    DRAW = "draw"
    DRAW_AND_AWARD = "draw and award"
    AWARD = "award"
    RETURN = "return"
    VOID = "void"


# Status of the ticket (None: there is none) and event -> step; a pair that is not here changes nothing.
STEPS: Mapping[tuple[TicketStatus | None, str], Step] = MappingProxyType(
    {
        (None, PAID): Step.DRAW,
        (None, COMPLETED): Step.DRAW_AND_AWARD,  # `paid` is on its way
        (None, CLOSED): Step.VOID,  # `paid` is on its way, and must not draw any more
        (TicketStatus.RESERVED, COMPLETED): Step.AWARD,
        (TicketStatus.RESERVED, CLOSED): Step.RETURN,
    }
)


@dataclass(frozen=True, slots=True)
class Standing:
    """The lottery as it stands."""

    gifts_left: int
    tickets: Mapping[TicketStatus, int]


class Lottery:
    """Draws with `secret`; about one ticket in `one_in` wins, as long as there are gifts."""

    def __init__(self, engine: AsyncEngine, clock: Clock, secret: bytes, one_in: int) -> None:
        self._engine = engine
        self._clock = clock
        self._secret = secret
        self._one_in = one_in

    async def handle(self, event: OrderEvent) -> None:
        """Consume an event; one that was consumed before changes nothing. Raises what the database raises."""
        if not event.was_paid:
            return
        async with self._engine.begin() as connection:
            key = f"{event.order_id}/{event.tag}"  # the order leads to several acts of this group
            if await inbox.once(connection, GROUP, key, self._clock.wall_ms()):
                await self._take_step(connection, event)

    async def standing(self) -> Standing:
        async with self._engine.begin() as connection:
            gifts_left = await connection.scalar(select(pot.c.gifts))
            counts = await connection.execute(select(tickets.c.status, func.count()).group_by(tickets.c.status))
            return Standing(int(gifts_left or 0), {TicketStatus(status): count for status, count in counts})

    async def winners(self) -> list[tuple[str, str, TicketStatus]]:
        """Order, buyer and status of every ticket that has a gift, by order."""
        has_gift = tickets.c.status.in_([TicketStatus.RESERVED, TicketStatus.AWARDED])
        async with self._engine.begin() as connection:
            rows = await connection.execute(select(tickets).where(has_gift).order_by(tickets.c.order_id))
            return [(row.order_id, row.buyer_id, TicketStatus(row.status)) for row in rows]

    async def _take_step(self, connection: AsyncConnection, event: OrderEvent) -> None:
        found = await connection.scalar(select(tickets.c.status).where(tickets.c.order_id == event.order_id))
        match STEPS.get((None if found is None else TicketStatus(found), event.tag)):
            case Step.DRAW:
                await self._add_ticket(connection, event, await self._draw(connection, event, TicketStatus.RESERVED))
            case Step.DRAW_AND_AWARD:
                await self._add_ticket(connection, event, await self._draw(connection, event, TicketStatus.AWARDED))
            case Step.VOID:
                await self._add_ticket(connection, event, TicketStatus.VOID)
            case Step.AWARD:
                await _change(connection, event, TicketStatus.AWARDED)
            case Step.RETURN:
                await _change(connection, event, TicketStatus.RETURNED)
                await connection.execute(update(pot).values(gifts=pot.c.gifts + 1))
            case None:
                pass  # the table says that nothing changes

    async def _draw(self, connection: AsyncConnection, event: OrderEvent, won: TicketStatus) -> TicketStatus:
        if not wins(event.order_id, self._secret, self._one_in):
            return TicketStatus.BLANK
        taken = await connection.execute(update(pot).where(pot.c.gifts > 0).values(gifts=pot.c.gifts - 1))
        return won if taken.rowcount == 1 else TicketStatus.TOO_LATE

    async def _add_ticket(self, connection: AsyncConnection, event: OrderEvent, status: TicketStatus) -> None:
        row = {
            "order_id": event.order_id,
            "buyer_id": event.buyer_id,
            "status": status,
            "drawn_at_ms": self._clock.wall_ms(),
        }
        await connection.execute(insert(tickets), row)


async def _change(connection: AsyncConnection, event: OrderEvent, status: TicketStatus) -> None:
    await connection.execute(update(tickets).where(tickets.c.order_id == event.order_id).values(status=status))


def wins(order_id: str, secret: bytes, one_in: int) -> bool:
    """Whether the order is among the lucky ones: about one in `one_in`, which is at least 1."""
    digest = hmac.digest(secret, order_id.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") * one_in < _NUMBERS
