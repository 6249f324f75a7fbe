"""Plays the queue: hands published messages to the groups that read them."""

from __future__ import annotations

from collections.abc import Iterable

from servicekit.message import OutgoingMessage, Subscription


async def deliver(messages: list[OutgoingMessage], subscriptions: Iterable[Subscription]) -> int:
    """Empty `messages` into the handlers, delays ignored; returns how many there were. What handlers raise comes out.

    What is published meanwhile stays in `messages` for the next call.
    """
    delivered, messages[:] = messages[:], []
    groups = tuple(subscriptions)
    for message in delivered:
        for subscription in groups:
            if subscription.takes(message.topic, message.tag):
                await subscription.handle(message.body)
    return len(delivered)
