"""When an order can be judged: what is under way is no fault before its time is over.

Services tell each other things through the queue. Between the capture of a payment and the order that is marked as paid
there is a moment in which the one is true and the other not yet; and a message that is stored now may tell of it.
So an order is judged by what it lacks only when nothing has been heard of it for a grace; by what it has, at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

# Longer than the time to pay and an outage of the services together; a capture may follow its order that late.
UNHEARD_BEFORE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Grace:
    """How long what is under way may take. Raises ValueError for less than nothing.

    `answer`: the other service's answer to a message, such as `paid` to `succeeded`; `refund`: from the request until
    the money is back, while the gateway may be down for a while; `closing`: from the end of an order's time to pay
    until it is closed.
    """

    answer: timedelta = timedelta(minutes=10)
    refund: timedelta = timedelta(hours=1)
    closing: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if min(self.answer, self.refund, self.closing) < timedelta(0):
            raise ValueError("a grace is zero or more")


DEFAULT_GRACE = Grace()
NO_GRACE = Grace(timedelta(0), timedelta(0), timedelta(0))


@dataclass(frozen=True, slots=True)
class Moment:
    """As of when, with which grace, and since when, orders are judged. Raises ValueError for times without a zone."""

    as_of: datetime
    grace: Grace = field(default_factory=Grace)
    since: datetime | None = None

    def __post_init__(self) -> None:
        for name, at in (("as_of", self.as_of), ("since", self.since)):
            if at is not None and at.tzinfo is None:
                raise ValueError(f"{name} is {at}; a time with its zone is needed")

    def is_answered(self, last_at: Column | str = "last_stored_at") -> Column:
        """Whether the answer to the last thing heard of the order has had its time."""
        return self._is_over(F.col(last_at) if isinstance(last_at, str) else last_at, self.grace.answer)

    def is_refunded(self) -> Column:
        """Whether a refund has had its time since the last thing heard of the order."""
        return self._is_over(F.col("last_stored_at"), self.grace.refund)

    def is_expired(self) -> Column:
        """Whether the order should have been closed by now, had nobody paid."""
        return self._is_over(F.col("expires_at"), self.grace.closing)

    def is_heard_whole(self) -> Column:
        """Whether everything that was told of the order has been read.

        A refund may come long after its order, so an order that only refunds tell of is not judged. An order whose
        `created` was not read may have been created before `since`: it is judged when its first capture came more than
        UNHEARD_BEFORE after `since`.
        """
        if self.since is None:
            return F.lit(True)
        first_captured_at = F.array_min(F.transform("captures", lambda one: one.captured_at))
        began_at = F.coalesce(F.col("created_at"), first_captured_at - F.lit(UNHEARD_BEFORE))
        return began_at >= F.lit(self.since)

    def _is_over(self, begin: Column, grace: timedelta) -> Column:
        return begin <= F.lit(self.as_of - grace)
