"""RocketMQ's broker roles (MISSION H1, H4)."""

from __future__ import annotations

import enum


class BrokerRole(enum.Enum):
    """Who writes, and when a message is acknowledged."""

    ASYNC_MASTER = "ASYNC_MASTER"  # acknowledges by itself
    SYNC_MASTER = "SYNC_MASTER"  # acknowledges what its in-sync slaves have
    SLAVE = "SLAVE"  # never written by clients

    @property
    def is_master(self) -> bool:
        """Whether clients may write."""
        return self is not BrokerRole.SLAVE
