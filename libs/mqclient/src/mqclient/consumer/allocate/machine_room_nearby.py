"""Each machine room consumes its own queues, as long as a member lives there (beside MISSION C18)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqclient.consumer.allocate.strategy import AllocateMessageQueueStrategy
from mqclient.message import MessageQueue


class MachineRoomResolver(Protocol):
    """Tells where a broker and where a member is; both in the same words."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """The room of the queue's broker."""

    def consumer_deploy_in(self, client_id: str) -> str:
        """The room of the member, which its client id has to tell: `<ip>@<instance name>`."""


class AllocateMachineRoomNearby:
    """Shares the queues of each room among the members there, and those of a room without members among all.

    `strategy` does the sharing. Contrary to AllocateMessageQueueByMachineRoom no queue is left to nobody.
    """

    def __init__(self, strategy: AllocateMessageQueueStrategy, resolver: MachineRoomResolver) -> None:
        self._strategy = strategy
        self._resolver = resolver

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        room_of = {one: self._resolver.consumer_deploy_in(one) for one in client_ids}
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(self._resolver.broker_deploy_in(queue), []).append(queue)
        share: set[MessageQueue] = set()
        for room, theirs in by_room.items():
            neighbours = [one for one in client_ids if room_of[one] == room] or client_ids
            share.update(self._strategy.allocate(client_id, theirs, neighbours))
        return [queue for queue in queues if queue in share]
