"""Ready-made selectors (MISSION P13, P14). One of your own is a function; RocketMQ's example of ordered sending is

    def by_order(queues, message, order_id):
        return queues[order_id % len(queues)]

    await producer.send(message, selector=by_order, selector_argument=17)

Await each send of an order before the next one: that is what keeps the order. RocketMQ's third selector, by machine
room, chooses nothing in open-source RocketMQ and has no counterpart here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqclient.message import Message, MessageQueue
from mqproto.java_hash import java_string_hash
from osenv import Rng, SystemRng


class SelectMessageQueueByHash:
    """The queue of the argument's hash, the same that a Java producer chooses for the same text.

    The hash is the one of Java's String, of `str(argument)`; its remainder counts without its sign.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        del message
        return queues[abs(java_string_hash(str(argument))) % len(queues)]


class SelectMessageQueueByRandom:
    """Any queue."""

    def __init__(self, rng: Rng | None = None) -> None:
        self._rng = rng or SystemRng()

    def __call__(self, queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
        del message, argument
        return self._rng.choice(queues)
