"""Queues and members on one ring (MISSION C16).

Invariant: when a member comes or goes, only queues that are its own before or after change their owner.

RocketMQ's articles advise against it: who has which queue is hard to see, and the shares are uneven.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageQueue

VIRTUAL_NODES = 10  # RocketMQ's default
HASH_BYTES = 4  # of MD5


class AllocateMessageQueueConsistentHash:
    """Each queue belongs to the member whose point on the ring comes next; a member has `virtual_nodes` points.

    Hash and texts are RocketMQ's, so its members would compute the same shares. Raises IllegalArgumentError unless
    `virtual_nodes` is at least 1.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if type(virtual_nodes) is not int or virtual_nodes < 1:
            raise IllegalArgumentError(f"virtual_nodes has to be an integer of at least 1, not {virtual_nodes!r}")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        owners = {_hash(f"{one}-{node}"): one for one in sorted(client_ids) for node in range(self._virtual_nodes)}
        points = sorted(owners)

        def owner(queue: MessageQueue) -> str:
            following = bisect_left(points, _hash(_text(queue)))
            return owners[points[following % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:HASH_BYTES], "big")
