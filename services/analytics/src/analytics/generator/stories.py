"""The stories that an order can live through, and how often: the table that the generator goes by.

A story says which messages are told; when they are follows from chance (moments.py). What is wrong in a story is named
by its fault, and is found by reconciliation as exactly one finding.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from analytics.generator.chance import Chance
from analytics.jobs.reconciliation_kinds import Kind


class Second(enum.Enum):
    """A second payment of the same order: refused and given back, or kept."""

    RETURNED = "returned"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Story:
    """What happens to an order. `share` is of the orders without a fault; the shares need not come to 1.

    `refunds`: shares of what was captured that go back, one for each refund; at most two. `captured_share`: of the
    total. `request_reason`: why orders asks for the money of the payment; None: it does not ask.
    """

    name: str
    share: float = 0.0
    fault: Kind | None = None
    is_created: bool = True
    is_captured: bool = False
    is_paid: bool = False
    is_shipped: bool = False
    close_reason: str | None = None
    is_closed_early: bool = False
    is_captured_late: bool = False  # at about the end of the time to pay
    request_reason: str | None = None
    refunds: tuple[float, ...] = ()
    captured_share: float = 1.0
    is_other_currency: bool = False
    is_total_wrong: bool = False
    is_hours_late: bool = False  # paid, or closed because it expired, long after the end of the time to pay
    is_retold: bool = False  # `paid` tells another total than `created`
    has_no_expiry: bool = False
    has_no_payment: bool = False  # orders names none
    second: Second | None = None


# Paid, and on its way to its buyer; paid just when it was closed; and closed by its seller after it was paid.
BOUGHT = Story("bought", 68.0, is_captured=True, is_paid=True, is_shipped=True)
MISSED = Story(
    "missed",
    1.0,
    is_captured=True,
    is_captured_late=True,
    close_reason="expired",
    request_reason="order-closed",
    refunds=(1.0,),
)
SOLD = Story(
    "sold and cancelled",
    1.8,
    is_captured=True,
    is_paid=True,
    close_reason="seller-cancelled",
    request_reason="order-cancelled",
    refunds=(1.0,),
)

SOUND = (
    BOUGHT,
    replace(BOUGHT, name="waits for its shipment", share=3.0, is_shipped=False),
    replace(BOUGHT, name="given back in part", share=1.0, refunds=(0.3,)),
    replace(BOUGHT, name="given back in parts", share=0.3, refunds=(0.25, 0.5)),
    replace(BOUGHT, name="given back whole", share=0.3, refunds=(1.0,)),
    replace(BOUGHT, name="paid twice", share=0.3, second=Second.RETURNED),
    MISSED,
    SOLD,
    replace(SOLD, name="sold, given back in part, and cancelled", share=0.2, refunds=(0.4, 0.6)),
    Story("expired", 19.0, close_reason="expired"),
    Story("cancelled", 4.0, close_reason="cancelled"),
    Story("cancelled by its seller", 0.5, close_reason="seller-cancelled"),
    replace(
        MISSED,
        name="wrong amount",
        share=0.3,
        is_captured_late=False,
        captured_share=0.9,
        request_reason="wrong-amount",
    ),
)


def _with(fault: Kind, name: str, story: Story, **changes: Any) -> Story:
    return replace(story, name=name, share=0.0, fault=fault, **changes)


FAULTY = (
    Story("not marked", fault=Kind.PAID_NOT_MARKED, is_captured=True),
    _with(Kind.CLOSED_CAPTURED_NOT_REFUNDED, "missed, not asked", MISSED, request_reason=None, refunds=()),
    _with(Kind.CLOSED_CAPTURED_NOT_REFUNDED, "sold, not asked", SOLD, request_reason=None, refunds=()),
    _with(Kind.DOUBLE_CAPTURE, "captured twice", BOUGHT, second=Second.KEPT),
    _with(Kind.REFUND_MISSING, "missed, not given back", MISSED, refunds=()),
    _with(Kind.REFUND_MISSING, "sold, not given back", SOLD, refunds=()),
    _with(Kind.REFUND_MISSING, "sold, given back in part only", SOLD, refunds=(0.5,)),
    _with(Kind.REFUND_TWICE, "missed, given back twice", MISSED, refunds=(1.0, 1.0)),
    _with(Kind.REFUND_TWICE, "sold, given back twice", SOLD, refunds=(1.0, 1.0)),
    _with(Kind.REFUND_MORE_THAN_CAPTURED, "given back too much", BOUGHT, refunds=(1.2,)),
    _with(Kind.REFUND_MORE_THAN_CAPTURED, "given back too much in parts", BOUGHT, refunds=(0.6, 0.7)),
    _with(Kind.PAID_WITHOUT_CAPTURE, "not captured", BOUGHT, is_captured=False),
    _with(Kind.AMOUNT_MISMATCH, "captured too little", BOUGHT, captured_share=0.5),
    _with(Kind.AMOUNT_MISMATCH, "captured too much", BOUGHT, captured_share=1.5),
    _with(Kind.CURRENCY_MISMATCH, "captured in another currency", BOUGHT, is_other_currency=True),
    Story("never closed", fault=Kind.NEVER_CLOSED),
    Story("closed early", fault=Kind.CLOSED_EARLY, close_reason="expired", is_closed_early=True),
    Story("never created", fault=Kind.UNKNOWN_ORDER, is_created=False, is_captured=True),
    _with(Kind.LINES_DO_NOT_ADD_UP, "bought, added up wrongly", BOUGHT, is_total_wrong=True),
    Story("expired, added up wrongly", fault=Kind.LINES_DO_NOT_ADD_UP, close_reason="expired", is_total_wrong=True),
    _with(Kind.TERMS_MISSING, "bought, without an expiry", BOUGHT, has_no_expiry=True),
    Story("created without an expiry", fault=Kind.TERMS_MISSING, has_no_expiry=True),
    _with(Kind.TOLD_DIFFERENTLY, "bought for another total", BOUGHT, is_retold=True),
    _with(Kind.PAID_WITHOUT_PAYMENT, "shipped, and not paid", BOUGHT, is_captured=False, has_no_payment=True),
    _with(Kind.PAID_AFTER_EXPIRY, "bought hours too late", BOUGHT, is_hours_late=True),
    Story("expired hours too late", fault=Kind.CLOSED_LATE, close_reason="expired", is_hours_late=True),
    _with(Kind.CLOSED_AFTER_SHIPPING, "sold, cancelled, and shipped", SOLD, is_shipped=True),
)
STORIES = (*SOUND, *FAULTY)
FAULTS = tuple(dict.fromkeys(story.fault for story in FAULTY if story.fault is not None))


def story_of(fault: Column, rank: Column, chance: Chance) -> Column:
    """The name of an order's story: one of its fault's in turn, or one of the sound ones by their shares."""
    chosen = F.when(F.lit(False), F.lit(""))
    for kind in FAULTS:
        names = [story.name for story in FAULTY if story.fault is kind]
        turn = F.pmod(rank, F.lit(len(names))).cast("int")
        chosen = chosen.when(fault == kind.value, F.get(F.array(*map(F.lit, names)), turn))
    draw = chance.uniform("story") * F.lit(sum(story.share for story in SOUND))
    bound = 0.0
    for story in SOUND[:-1]:
        bound += story.share
        chosen = chosen.when(draw < F.lit(bound), F.lit(story.name))
    return chosen.otherwise(F.lit(SOUND[-1].name))


def is_told(condition: Callable[[Story], bool]) -> Column:
    """Whether the row's story is one of those for which the condition holds."""
    return F.col("story").isin([story.name for story in STORIES if condition(story)])


def told(member: Callable[[Story], object]) -> Column:
    """The member of the row's story; null where it is None."""
    by_value: dict[object, list[str]] = {}
    for story in STORIES:
        if (value := member(story)) is not None:
            by_value.setdefault(value, []).append(story.name)
    chosen = F.when(F.lit(False), F.lit(None))
    for value, names in by_value.items():
        chosen = chosen.when(F.col("story").isin(names), F.lit(value))
    return chosen
