"""Queues of the brokers in some machine rooms (MISSION C18)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqclient.errors import IllegalArgumentError
from mqclient.message import MessageQueue

ROOM_SEPARATOR = "@"


class AllocateMessageQueueByMachineRoom:
    """Shares the queues of brokers with names like `room@broker`, for the rooms in `consumer_rooms`.

    What is left over when it does not come out even is dealt out from the end of the list: 8 queues for 3 members are
    q1 q2 q7, q3 q4 q8, q5 q6, as in RocketMQ. Queues of other rooms, and of brokers whose name has no room, are
    consumed by nobody in the group; so all of its members name the same rooms. Raises IllegalArgumentError when the
    rooms are one text, or none.
    """

    name = "MACHINE_ROOM"

    def __init__(self, consumer_rooms: Iterable[str]) -> None:
        if isinstance(consumer_rooms, str):
            raise IllegalArgumentError(f"consumer_rooms has to be several texts, such as [{consumer_rooms!r}]")
        self._rooms = frozenset(consumer_rooms)
        if not self._rooms:
            raise IllegalArgumentError("consumer_rooms is empty; nobody would consume anything")

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        position, members = client_ids.index(client_id), len(client_ids)
        ours = [queue for queue in queues if self._is_ours(queue.broker_name)]
        size, left_over = divmod(len(ours), members)
        share = ours[position * size : (position + 1) * size]
        return [*share, ours[members * size + position]] if position < left_over else share

    def _is_ours(self, broker_name: str) -> bool:
        room, *rest = broker_name.split(ROOM_SEPARATOR)
        return len(rest) == 1 and room in self._rooms
