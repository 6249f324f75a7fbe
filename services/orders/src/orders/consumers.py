"""What orders reads from the queue: one subscription for each group."""

from __future__ import annotations

from orders.service import events
from orders.service.accept_payment import AcceptPayment
from orders.service.close_order import AcceptRefund, OrderTimeouts
from orders.service.complete_order import CompleteOrder
from orders.service.order_feed import OrderFeed
from servicekit.message import MessageBody, Subscription

# ----------------------------------------------------------------------------------------------------------------------
# Group `order-timeout-scheduler`: every created order gets its timer.


def timeout_scheduler(timeouts: OrderTimeouts) -> Subscription:
    """Reads `order-events`/`created`, sends `order-timeouts` with the delay level of the time that remains."""

    async def handle(body: bytes) -> None:
        await timeouts.schedule(events.read_deadline(body))

    return Subscription(events.TIMEOUT_SCHEDULER_GROUP, events.ORDER_EVENTS_TOPIC, events.CREATED_TAG, handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `order-timeout-handler`: a timer that comes back closes its order, if nobody has paid.


def timeout_handler(timeouts: OrderTimeouts) -> Subscription:
    """Reads `order-timeouts`."""

    async def handle(body: bytes) -> None:
        await timeouts.ring(events.read_deadline(body))

    return Subscription(events.TIMEOUT_HANDLER_GROUP, events.ORDER_TIMEOUTS_TOPIC, "*", handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `order-payment-handler`: a payment that succeeded pays its order, or goes back.


def payment_handler(accept_payment: AcceptPayment) -> Subscription:
    """Reads `payment-events`/`succeeded`."""

    async def handle(body: bytes) -> None:
        await accept_payment(events.read_payment(body))

    return Subscription(events.PAYMENT_HANDLER_GROUP, events.PAYMENT_EVENTS_TOPIC, events.SUCCEEDED_TAG, handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `order-refund-handler`: an order whose money went back before it was shipped is closed.
#
# A group of its own: members of an older version of `order-payment-handler` do not want this tag, and all members of a
# group want the same.


def refund_handler(accept_refund: AcceptRefund) -> Subscription:
    """Reads `payment-events`/`refunded`."""

    async def handle(body: bytes) -> None:
        await accept_refund(events.read_refunded(body))

    return Subscription(events.REFUND_HANDLER_GROUP, events.PAYMENT_EVENTS_TOPIC, events.REFUNDED_TAG, handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `order-completion-scheduler`: every shipped order gets the timer that completes it.


def completion_scheduler(complete_order: CompleteOrder) -> Subscription:
    """Reads `order-events`/`shipped`, sends `order-completions` for the time at which the order completes."""

    async def handle(body: bytes) -> None:
        shipped = events.read_shipped(body)
        await complete_order.schedule(shipped.order_id, shipped.shipped_at_ms)

    return Subscription(events.COMPLETION_SCHEDULER_GROUP, events.ORDER_EVENTS_TOPIC, events.SHIPPED_TAG, handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `order-completion-handler`: a timer that comes back completes its order, if the buyer has not.


def completion_handler(complete_order: CompleteOrder) -> Subscription:
    """Reads `order-completions`."""

    async def handle(body: bytes) -> None:
        await complete_order.ring(events.read_shipped(body).order_id)

    return Subscription(events.COMPLETION_HANDLER_GROUP, events.ORDER_COMPLETIONS_TOPIC, "*", handle)


# ----------------------------------------------------------------------------------------------------------------------
# Group `order-feed`: every process hears of every change, and wakes those who follow the order.
#
# Broadcasting: which process has the followers nobody knows, so each gets every message; those that came while it was
# away concern nobody, because its followers have gone with it.


ORDER_FEED_GROUP = "order-feed"


def order_feed(feed: OrderFeed) -> Subscription:
    """Reads all of `order-events`."""

    async def handle(body: bytes) -> None:
        feed.tell(MessageBody(body).text("order_id"))

    return Subscription(ORDER_FEED_GROUP, events.ORDER_EVENTS_TOPIC, "*", handle, is_broadcasting=True)
