"""The tag of an order's state, and the version that a command is meant for."""

from __future__ import annotations

from orders.domain.order import Order
from orders.service.queries import Queries
from servicekit.api.etag import Condition, entity_tag
from servicekit.api.problem import PRECONDITION_FAILED, ProblemError
from servicekit.auth import Caller


def tag_of(order: Order) -> str:
    """Another one after every change of the order."""
    return entity_tag(order.order_id, order.version)


async def wanted_version(condition: Condition, order_id: str, caller: Caller, queries: Queries) -> int | None:
    """The version that If-Match names; None if any will do.

    Of several versions it is the one that the order is in. Raises UnknownOrderError, StorageUnavailableError, and
    ProblemError if the order is in none of them.
    """
    versions = condition.versions(order_id)
    if versions is None:
        return None
    if len(versions) == 1:
        return next(iter(versions))
    order = await queries.order(order_id, caller)
    if order.version not in versions:
        raise ProblemError(PRECONDITION_FAILED, f"If-Match does not name the present state of the order {order_id!r}")
    return order.version
