"""Contiguous shares (MISSION C14)."""

from __future__ import annotations

from collections.abc import Sequence

from mqclient.message import MessageQueue


class AllocateMessageQueueAveragely:
    """The first members get one more where it does not come out even: 8 queues for 3 members are 3, 3, 2."""

    name = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        position = client_ids.index(client_id)
        size, larger = divmod(len(queues), len(client_ids))
        start = position * size + min(position, larger)
        return queues[start : start + size + (position < larger)]
