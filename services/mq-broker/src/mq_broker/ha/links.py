"""The way between a master and one slave, whatever carries it: gRPC, or a simulated network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mq_broker.core.replication.frames import MasterFrame, ReplicaFrame


class LinkError(Exception):
    """The link is gone; the message says what is known of the reason."""


class SlaveLink(Protocol):
    """The slave's end. Frames arrive in the order in which they were sent, or the link breaks."""

    async def send(self, frame: ReplicaFrame) -> None:
        """Send; waits while the other side does not keep up. Raises LinkError."""

    async def receive(self) -> MasterFrame | None:
        """The next frame; None when the master has ended the stream. Raises LinkError."""


class MasterLink(Protocol):
    """The master's end; `peer` is the slave's address, for people."""

    peer: str

    async def send(self, frame: MasterFrame) -> None:
        """Send; waits while the other side does not keep up. Raises LinkError."""

    async def receive(self) -> ReplicaFrame | None:
        """The next frame; None when the slave has ended the stream. Raises LinkError."""


# A link to the master that listens for replication at `host:port`, closed when the context ends. Raises LinkError.
Connect = Callable[[str], AbstractAsyncContextManager[SlaveLink]]
