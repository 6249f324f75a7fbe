"""The FastAPI application over the use cases, and the one route that streams: an order as it changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.types import Receive, Scope, Send

from orders.api import problem, routes
from orders.api.problem import PROBLEM_OF_ERROR, STOPPING, STREAM_PROBLEM_OF_ERROR, TOO_MANY_STREAMS
from orders.api.routes import OrderId, UseCases, commands_router, holds_router, orders_router
from orders.api.schemas import OrderAnswer
from orders.service.order_feed import OrderFeed, OrderStream
from osenv import Clock
from servicekit.auth import ORDERS_READ, Caller, Tokens
from servicekit.http import application
from servicekit.http import problem as common
from servicekit.http.limits import AdmissionLimit, RateLimit
from servicekit.http.middleware import Identify, identified, requires
from servicekit.http.parameters import AnswerModel
from servicekit.http.problem import documented
from servicekit.monitoring import Health

EVENT_NAME = "order"
MEDIA_TYPE = "text/event-stream"
RECONNECT_AFTER_MS = 1_000
SEND_MAX_S = 30.0  # a follower that reads nothing for so long counts as gone

# What OpenAPI 3.2 calls itemSchema: one event of the stream.
_EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "event": {"const": EVENT_NAME},
        "id": {"type": "string", "description": "the order's version"},
        "data": {"type": "string", "contentMediaType": "application/json", "description": "`now_ms` and `order`"},
        "retry": {"type": "integer"},
    },
    "required": ["event", "id", "data"],
}


class OrderEvent(AnswerModel):
    """What `data` holds: the order, and the server's clock when it was sent (milliseconds since 1970-01-01 UTC)."""

    now_ms: int
    order: OrderAnswer


class OrderEventsResponse(EventSourceResponse):
    """The stream as an answer; its place in the feed is given back however the answer ends."""

    def __init__(self, stream: OrderStream, clock: Clock) -> None:
        # Heartbeats are the stream's own: they come by the injected clock.
        super().__init__(_events(stream, clock), ping=0, send_timeout=SEND_MAX_S)
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


async def _events(stream: OrderStream, clock: Clock) -> AsyncGenerator[ServerSentEvent, None]:
    async with aclosing(stream.states()) as states:
        async for order in states:
            if order is None:
                yield ServerSentEvent(comment="still here")
                continue
            event = OrderEvent(now_ms=clock.wall_ms(), order=OrderAnswer.of(order))
            yield ServerSentEvent(
                event.model_dump_json(), event=EVENT_NAME, id=str(order.version), retry=RECONNECT_AFTER_MS
            )


def order_events(feed: OrderFeed, clock: Clock) -> APIRouter:
    """GET /orders/{order_id}/events: an order as it changes, as server-sent events (the HTML standard, 9.2).

        event: order
        id: 2
        data: {"now_ms": 1700000000000, "order": {"order_id": "...", "status": "AWAITING_SHIPMENT", ...}}

    The first event is the order as it is now, so that a client that comes again has missed nothing: Last-Event-ID is
    not looked at. A comment every 15 s says that the connection lives. The stream ends when the order is final.
    """
    router = APIRouter(prefix="/orders", tags=["orders"])

    @router.get(
        "/{order_id}/events",
        summary="An order as it changes",
        response_class=EventSourceResponse,
        responses={
            200: {
                "description": "Server-sent events named `order`; `data` is JSON with `now_ms` and `order`",
                "content": {MEDIA_TYPE: {"itemSchema": _EVENT_SCHEMA}},
            },
            **documented(
                problem.UNKNOWN_ORDER, common.INVALID_REQUEST, TOO_MANY_STREAMS, STOPPING, common.STORAGE_UNAVAILABLE
            ),
        },
    )
    async def follow_order(
        order_id: OrderId, caller: Annotated[Caller, Depends(requires(ORDERS_READ))]
    ) -> OrderEventsResponse:
        """The first event is the present state; each change follows. The stream ends once the order is completed or
        closed, and after 15 minutes at the latest: a client that still wants it asks again, and misses nothing."""
        return OrderEventsResponse(await feed.open(order_id, caller), clock)

    return router


def build_api(
    use_cases: UseCases,
    health: Health,
    *,
    tokens: Tokens,
    rate_limit: RateLimit | None,
    clock: Clock,
    admission_limit: AdmissionLimit | None = None,
    identify: Identify = identified,
    more_routers: Iterable[APIRouter] = (),
) -> FastAPI:
    """The routes of orders and `more_routers`, with all that servicekit gives a service's API.

    `rate_limit` is for each caller that `identify` finds.
    """
    app = application.build_api(
        title="Hourglass orders",
        summary="Orders that close by themselves when they are not paid",
        routers=(
            routes.products_router,
            orders_router,
            commands_router,
            holds_router,
            routes.operations_router,
            *more_routers,
        ),
        health=health,
        problem_of_error={**PROBLEM_OF_ERROR, **STREAM_PROBLEM_OF_ERROR},
        tokens=tokens,
        rate_limit=rate_limit,
        clock=clock,
        admission_limit=admission_limit,
        identify=identify,
    )
    app.state.use_cases = use_cases
    return app
