"""The routes: products, orders, the commands of buyers and sellers, the holds of payments (ADR 122), statistics.

Reading products needs no token: a shop shows what it sells. Each command takes If-Match: with the ETag of the order as
the caller has seen it, the command is carried out in that state or not at all. Without it the order's status decides,
and an order in another status is rejected all the same. A command that its caller has carried out before is answered as
then, so that it can be sent again when its answer was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from orders.api import problem
from orders.api.schemas import (
    ChangedProduct,
    HoldAnswer,
    NewOrder,
    NewProduct,
    OrderAnswer,
    OrderHistory,
    OrderPage,
    ProductAnswer,
    ProductPage,
    StatisticsAnswer,
    StatusChangeAnswer,
    WantedOrders,
)
from orders.domain.order import Order
from orders.service.close_order import CloseOrder
from orders.service.payments import HoldOrder
from orders.service.place_order import PlaceOrder
from orders.service.queries import AddProduct, ChangeProduct, Queries
from orders.service.status_commands import ConfirmReceipt, ShipOrder
from servicekit.auth import (
    ORDERS_ALL,
    ORDERS_HOLD,
    ORDERS_READ,
    ORDERS_SHIP,
    ORDERS_WRITE,
    PRODUCTS_WRITE,
    STATISTICS_READ,
    Caller,
)
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.parameters import (
    ETAG_HEADER,
    LOCATION_HEADER,
    NOT_MODIFIED,
    PAGE_DEFAULT,
    REPLAYED_HEADER,
    REPLAYED_HEADER_DOCUMENTED,
    Condition,
    Cursor,
    IdempotencyKey,
    IfMatch,
    IfNoneMatch,
    Limit,
    entity_tag,
)
from servicekit.http.problem import PRECONDITION_FAILED, ProblemError, documented
from servicekit.identifiers import ID_PATTERN


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


products_router = APIRouter(prefix="/products", tags=["products"])

ProductId = Annotated[str, Path(pattern=ID_PATTERN, examples=["seat-12A"])]


@products_router.post(
    "",
    status_code=201,
    summary="Put a product on sale",
    response_description="The product is on sale",
    dependencies=[Depends(requires(PRODUCTS_WRITE))],
    responses={
        201: {"headers": LOCATION_HEADER},
        **documented(
            problem.PRODUCT_EXISTS,
            common.INVALID_REQUEST,
            common.MALFORMED_REQUEST,
            common.BODY_TOO_LARGE,
            common.STORAGE_UNAVAILABLE,
        ),
    },
)
async def add_product(new_product: NewProduct, use_cases: UseCasesOf, response: Response) -> ProductAnswer:
    """Its id, name and currency stay as they are given; price and stock can be changed."""
    product = await use_cases.add_product(new_product.to_product())
    response.headers["Location"] = f"/products/{product.product_id}"
    return ProductAnswer.of(product)


@products_router.patch(
    "/{product_id}",
    summary="Change a product's price or stock, or end its sale",
    response_description="The product, as the request wants it",
    dependencies=[Depends(requires(PRODUCTS_WRITE))],
    responses=documented(
        problem.UNKNOWN_PRODUCT,
        problem.PRODUCT_CHANGED,
        problem.UNITS_IN_ORDERS,
        common.INVALID_REQUEST,
        common.MALFORMED_REQUEST,
        common.BODY_TOO_LARGE,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def change_product(product_id: ProductId, wanted: ChangedProduct, use_cases: UseCasesOf) -> ProductAnswer:
    """What is left out stays as it is. An order keeps the price that it was placed at, and its units; a product whose
    sale has ended is ordered no more, and can be put on sale again.

    The request can be sent again: a product that is as it wants is answered as it is. With `version` it is carried out
    on that version or not at all."""
    return ProductAnswer.of(await use_cases.change_product(product_id, wanted.to_change()))


@products_router.get(
    "",
    summary="List products by id",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_products(
    use_cases: UseCasesOf,
    limit: Annotated[Limit, Query()] = PAGE_DEFAULT,
    cursor: Annotated[Cursor | None, Query()] = None,
    is_on_sale: Annotated[bool | None, Query(description="those that are on sale, or those that are not")] = None,
) -> ProductPage:
    """In pages: `next_cursor` of one is `cursor` of the next, and null on the last."""
    return ProductPage.of(await use_cases.queries.products(limit, cursor, is_on_sale=is_on_sale))


@products_router.get(
    "/{product_id}",
    summary="One product and its stock",
    responses=documented(problem.UNKNOWN_PRODUCT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_product(product_id: ProductId, use_cases: UseCasesOf) -> ProductAnswer:
    """Units are available, reserved by orders that wait for their payment, or sold."""
    return ProductAnswer.of(await use_cases.queries.product(product_id))


orders_router = APIRouter(prefix="/orders", tags=["orders"])

OrderId = Annotated[str, Path(pattern=ID_PATTERN, examples=["8e03978e40d543e8bc936894a57f9324"])]
Buyer = Annotated[Caller, Depends(requires(ORDERS_WRITE))]
Reader = Annotated[Caller, Depends(requires(ORDERS_READ))]

# A cache asks before it shows an order again, and shared caches do not keep it.
CACHE_CONTROL = "private, no-cache"


@orders_router.post(
    "",
    status_code=201,
    summary="Place an order",
    response_description="The order, or the one that the same key placed before, as it was then",
    responses={
        201: {"headers": {**LOCATION_HEADER, **ETAG_HEADER, **REPLAYED_HEADER_DOCUMENTED}},
        **documented(
            common.MISSING_IDEMPOTENCY_KEY,
            common.INVALID_IDEMPOTENCY_KEY,
            common.MALFORMED_REQUEST,
            problem.UNKNOWN_PRODUCT,
            problem.SALE_ENDED,
            problem.INSUFFICIENT_STOCK,
            problem.PRICE_CHANGED,
            common.REQUEST_IN_FLIGHT,
            common.INVALID_REQUEST,
            problem.MIXED_CURRENCIES,
            common.KEY_REUSED,
            common.BODY_TOO_LARGE,
            common.QUEUE_UNAVAILABLE,
            common.TRANSACTION_GIVEN_UP,
            common.STORAGE_UNAVAILABLE,
        ),
    },
)
async def place_order(
    caller: Buyer, key: IdempotencyKey, new_order: NewOrder, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """The buyer is the token's subject. Units are reserved until the order is paid or closes.

    A request that is repeated with the same Idempotency-Key and payload is answered with the order that the first one
    made, as it was then, and with the header `Idempotency-Replayed: true`. A rejected request uses up no key."""
    placed = await use_cases.place_order(
        new_order.to_request(caller.subject), key, expected_total_minor=new_order.expected_total_minor
    )
    response.headers["Location"] = f"/orders/{placed.order.order_id}"
    response.headers["ETag"] = tag_of(placed.order)
    if placed.replayed:
        response.headers[REPLAYED_HEADER] = "true"
    return OrderAnswer.of(placed.order)


@orders_router.get(
    "",
    summary="List orders, newest first",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_orders(caller: Reader, wanted: Annotated[WantedOrders, Query()], use_cases: UseCasesOf) -> OrderPage:
    """Own orders; with the scope `orders:all` those of every buyer. In pages: `next_cursor` of one is `cursor` of the
    next, and null on the last. What is placed meanwhile comes before the first page, and moves nothing."""
    orders = wanted.filter()
    if not caller.has(ORDERS_ALL):
        if orders.buyer_id not in (None, caller.subject):
            return OrderPage(items=[], next_cursor=None)  # as if that buyer had none
        orders = replace(orders, buyer_id=caller.subject)
    return OrderPage.of(await use_cases.queries.orders(orders, wanted.limit, wanted.cursor))


@orders_router.get(
    "/{order_id}",
    summary="One order",
    response_model=OrderAnswer,
    responses={
        200: {"headers": ETAG_HEADER},
        **NOT_MODIFIED,
        **documented(
            problem.UNKNOWN_ORDER, common.MALFORMED_REQUEST, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE
        ),
    },
)
async def get_order(
    order_id: OrderId, caller: Reader, condition: IfNoneMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer | Response:
    """An order of another buyer is answered as one that does not exist, unless the token has `orders:all`.

    With If-None-Match the answer is 304 as long as nothing has changed."""
    order = await use_cases.queries.order(order_id, caller)
    tag = tag_of(order)
    headers = {"ETag": tag, "Cache-Control": CACHE_CONTROL}
    if condition.is_known(tag):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return OrderAnswer.of(order)


@orders_router.get(
    "/{order_id}/history",
    summary="Every change of an order's status, oldest first",
    responses=documented(problem.UNKNOWN_ORDER, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_order_history(order_id: OrderId, caller: Reader, use_cases: UseCasesOf) -> OrderHistory:
    """Each with its actor, its reason, and the trace in which it happened."""
    changes = await use_cases.queries.history(order_id, caller)
    return OrderHistory(order_id=order_id, changes=[StatusChangeAnswer.of(change) for change in changes])


commands_router = APIRouter(prefix="/orders/{order_id}", tags=["orders"])

Seller = Annotated[Caller, Depends(requires(ORDERS_SHIP))]
BuyerOrSeller = Annotated[Caller, Depends(requires(ORDERS_WRITE, ORDERS_SHIP))]

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"headers": ETAG_HEADER},
    **documented(
        common.MALFORMED_REQUEST,
        problem.UNKNOWN_ORDER,
        problem.ILLEGAL_TRANSITION,
        problem.ORDER_HELD,
        problem.STATUS_CHANGED,
        common.PRECONDITION_FAILED,
        common.INVALID_REQUEST,
        common.QUEUE_UNAVAILABLE,
        common.TRANSACTION_GIVEN_UP,
        common.STORAGE_UNAVAILABLE,
    ),
}


@commands_router.post(
    "/cancel",
    summary="Cancel an order",
    response_description="The order, closed",
    responses=_RESPONSES,
)
async def cancel_order(
    order_id: OrderId, caller: BuyerOrSeller, if_match: IfMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """Its buyer cancels an order that waits for its payment; a caller with `orders:ship` one that was paid, too, and
    the money goes back. The units are on sale again.

    While a payment of the order is in progress, which may have taken the money, the answer is 409 `order-held`."""
    version = await wanted_version(if_match, order_id, caller, use_cases.queries)
    return _answer(await use_cases.close_order.cancel(order_id, caller, version), response)


@commands_router.post(
    "/ship",
    summary="Say that an order is on its way",
    response_description="The order, shipped",
    responses=_RESPONSES,
)
async def ship_order(
    order_id: OrderId, caller: Seller, if_match: IfMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """For an order that is paid. Its buyer confirms the receipt, or it is completed by itself some days later."""
    version = await wanted_version(if_match, order_id, caller, use_cases.queries)
    return _answer(await use_cases.ship_order(order_id, caller, version), response)


@commands_router.post(
    "/confirm",
    summary="Confirm the receipt of an order",
    response_description="The order, completed",
    responses=_RESPONSES,
)
async def confirm_order(
    order_id: OrderId, caller: Buyer, if_match: IfMatch, use_cases: UseCasesOf, response: Response
) -> OrderAnswer:
    """Only its buyer confirms, once it is shipped."""
    version = await wanted_version(if_match, order_id, caller, use_cases.queries)
    return _answer(await use_cases.confirm_receipt(order_id, caller, version), response)


def _answer(order: Order, response: Response) -> OrderAnswer:
    response.headers["ETag"] = tag_of(order)
    return OrderAnswer.of(order)


holds_router = APIRouter(prefix="/orders/{order_id}/holds/{payment_id}", tags=["orders"])

PaymentId = Annotated[str, Path(pattern=ID_PATTERN, examples=["5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f"])]
Holder = Annotated[Caller, Depends(requires(ORDERS_HOLD))]


@holds_router.put(
    "",
    summary="Hold an order for a payment",
    response_description="The hold, taken or prolonged",
    responses=documented(
        problem.UNKNOWN_ORDER,
        problem.ORDER_NOT_PAYABLE,
        problem.ORDER_HELD,
        common.INVALID_REQUEST,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def hold_order(order_id: OrderId, payment_id: PaymentId, caller: Holder, use_cases: UseCasesOf) -> HoldAnswer:
    """Before a payment is begun, by the service that takes the money, with a token for the order's buyer.

    While the order is held it is neither closed nor cancelled. A hold lasts 30 s, can be taken again by its payment,
    and ends 10 minutes after the order's expiry at the latest. The first one is taken before the expiry."""
    hold = await use_cases.hold_order.take(order_id, payment_id, caller)
    return HoldAnswer(order_id=order_id, payment_id=payment_id, held_until_ms=hold.until_ms)


@holds_router.delete(
    "",
    status_code=204,
    summary="Let an order go",
    responses=documented(
        problem.UNKNOWN_ORDER, problem.STATUS_CHANGED, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE
    ),
)
async def release_order(order_id: OrderId, payment_id: PaymentId, caller: Holder, use_cases: UseCasesOf) -> None:
    """Of a payment that was declined. If another payment, or none, holds the order, nothing changes."""
    await use_cases.hold_order.release(order_id, payment_id, caller)


operations_router = APIRouter(tags=["operations"])


@operations_router.get(
    "/statistics",
    summary="Orders by status and units by place",
    dependencies=[Depends(requires(STATISTICS_READ))],
    responses=documented(common.STORAGE_UNAVAILABLE),
)
async def get_statistics(use_cases: UseCasesOf) -> StatisticsAnswer:
    """All numbers are of one moment."""
    return StatisticsAnswer.of(await use_cases.queries.statistics())
