"""Queues dealt out like cards (MISSION C15)."""

from __future__ import annotations

from collections.abc import Sequence

from mqclient.message import MessageQueue


class AllocateMessageQueueAveragelyByCircle:
    """8 queues for 3 members are q1 q4 q7, q2 q5 q8, q3 q6: each member gets some of every broker."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        return queues[client_ids.index(client_id) :: len(client_ids)]
