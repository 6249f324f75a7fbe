"""What the routes are given: the use cases, the caller, and the version of an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from orders.domain.order import Order
from orders.service.close_order import CloseOrder
from orders.service.hold_order import HoldOrder
from orders.service.place_order import PlaceOrder
from orders.service.queries import AddProduct, ChangeProduct, Queries
from orders.service.status_commands import ConfirmReceipt, ShipOrder
from servicekit.auth import Caller
from servicekit.http.parameters import Condition, entity_tag
from servicekit.http.problem import PRECONDITION_FAILED, ProblemError

# ----------------------------------------------------------------------------------------------------------------------
# What routes get from the application: the use cases.


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do."""

    place_order: PlaceOrder
    close_order: CloseOrder
    hold_order: HoldOrder
    ship_order: ShipOrder
    confirm_receipt: ConfirmReceipt
    add_product: AddProduct
    change_product: ChangeProduct
    queries: Queries


async def _use_cases(request: Request) -> UseCases:  # async, because FastAPI hands a plain function to a thread
    return cast(UseCases, request.app.state.use_cases)


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]


# ----------------------------------------------------------------------------------------------------------------------
# The tag of an order's state, and the version that a command is meant for.


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
