"""A ticket: one for each paid order, drawn when the order is paid, settled when the order has come to its end.

An event may come late, or before the one that happened first; so every event has a row for a ticket that is not there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from gift_lottery.order_event import CLOSED, COMPLETED, PAID


class TicketStatus(enum.StrEnum):
    """Where a ticket stands."""

    BLANK = "BLANK"  # drawn, and no luck
    TOO_LATE = "TOO_LATE"  # drawn and lucky, and no gift was left
    RESERVED = "RESERVED"  # a gift is set aside until the order is completed
    AWARDED = "AWARDED"  # the gift is the buyer's
    RETURNED = "RETURNED"  # the order was closed, and the gift is in the pot again
    VOID = "VOID"  # the order was closed before anybody had drawn


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
