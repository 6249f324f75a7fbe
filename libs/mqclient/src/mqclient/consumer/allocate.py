"""Which queues a member of a group gets (MISSION C13, C14).

Every member computes this for itself from the same sorted lists; that they agree is the whole coordination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqclient.message_queue import MessageQueue


class AllocateMessageQueueStrategy(Protocol):
    """Pure: the same lists give the same answer to everybody."""

    @property
    def name(self) -> str:
        """What operators call it."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The share of `client_id`. Both lists are sorted; the shares of all clients are a partition of the queues."""


class AllocateMessageQueueAveragely:
    """Contiguous shares, the first members one larger where it does not come out even: 8 queues for 3 are 3, 3, 2."""

    name = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """Nothing for a client that is not in the list: the broker does not count it as a member."""
        if client_id not in client_ids:
            return ()
        position = client_ids.index(client_id)
        size, larger = divmod(len(queues), len(client_ids))
        start = position * size + min(position, larger)
        return queues[start : start + size + (position < larger)]
