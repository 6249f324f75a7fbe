"""Fixed queues for each member (MISSION C17)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqclient.consumer.allocate.averagely import AllocateMessageQueueAveragely
from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageQueue
from mqproto.names import RETRY_PREFIX


class AllocateMessageQueueByConfig:
    """This member gets `queues`, of those that exist, and nobody checks what the others were given.

    A queue that no living member was given is consumed by nobody, also while its member is down, and so is a queue that
    a topic gets later; a queue that two were given is consumed twice. The group's retry topic cannot be given: its
    queues are shared averagely by all members, because otherwise no retried message would come again (RocketMQ leaves
    them to nobody). Raises IllegalArgumentError for a queue of a retry topic.
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = frozenset(queues)
        for queue in sorted(self._queues):
            if _is_shared(queue):
                raise IllegalArgumentError(f"{queue} is shared by all members of its group; leave it out")

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        shared = [queue for queue in queues if _is_shared(queue)]
        share = {*self._queues, *AllocateMessageQueueAveragely().allocate(client_id, shared, client_ids)}
        return [queue for queue in queues if queue in share]


def _is_shared(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_PREFIX)
