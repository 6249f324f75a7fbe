"""What every strategy does (MISSION C13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mqclient.message import MessageQueue


class AllocateMessageQueueStrategy(Protocol):
    """Pure: the same lists give the same answer to everybody."""

    @property
    def name(self) -> str:
        """What operators call it; RocketMQ's name."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The share of `client_id` in the queues of one topic, in their order; nothing if it is not in `client_ids`.

        Both lists are sorted. No queue is in the shares of two clients.
        """
