"""What routes get from the application: the use cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from orders.service.close_order import CloseOrder
from orders.service.confirm_receipt import ConfirmReceipt
from orders.service.hold_order import HoldOrder
from orders.service.place_order import PlaceOrder
from orders.service.products import AddProduct, ChangeProduct
from orders.service.queries import Queries
from orders.service.ship_order import ShipOrder


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
