"""Group `order-feed`: every process hears of every change, and wakes those who follow the order.

Broadcasting: which process has the followers nobody knows, so each gets every message; those that came while it was
away concern nobody, because its followers have gone with it.
"""

from __future__ import annotations

from orders.service import events
from orders.service.order_feed import OrderFeed
from servicekit.message_body import MessageBody
from servicekit.subscription import Subscription

ORDER_FEED_GROUP = "order-feed"


def order_feed(feed: OrderFeed) -> Subscription:
    """Reads all of `order-events`."""

    async def handle(body: bytes) -> None:
        feed.tell(MessageBody(body).text("order_id"))

    return Subscription(ORDER_FEED_GROUP, events.ORDER_EVENTS_TOPIC, "*", handle, is_broadcasting=True)
