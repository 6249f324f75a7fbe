"""The lottery: what an event does to a ticket and to the pot.

Invariants: gifts in the pot + RESERVED + AWARDED tickets are as many as were put in; an event changes something once,
however often it comes, because its row in the inbox is part of the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gift_lottery.draw import wins
from gift_lottery.order_event import OrderEvent
from gift_lottery.tables import inbox, pot, tickets
from gift_lottery.ticket import STEPS, Step, TicketStatus
from osenv import Clock

GROUP = "gift-lottery"


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
