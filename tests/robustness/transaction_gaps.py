"""The gaps of the transaction protocol, and how a history stops in exactly one of them.

See docs/reference/faults.md#clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum


class Gap(Enum):
    """Between two steps of a transaction; the values are for people."""

    BEFORE_HALF = "before the half message is stored"
    HALF_WRITTEN = "half message written, not synced"
    HALF_STORED = "half message stored, not answered"
    HALF_ANSWERED = "half message answered, local transaction not begun"
    INSIDE = "inside the local transaction"
    LOCAL_OVER = "local transaction over, its end not sent"
    END_SENT = "end sent, not processed"
    END_WRITTEN = "end written, not synced"
    END_STORED = "end stored, not answered"
    CHECK_ASKED = "check asked, the database not looked at"
    CHECK_KNOWN = "answer to a check known, not sent"
    CHECK_SENT = "answer to a check sent, not processed"
    CHECK_WRITTEN = "answer to a check written, not synced"
    CHECK_STORED = "answer to a check stored, not answered"

    @property
    def in_check(self) -> bool:
        return self.name.startswith("CHECK")

    @property
    def needs_database(self) -> bool:
        """Whether the gap cannot be reached while a local transaction has the database locked."""
        return self in {Gap.INSIDE, Gap.CHECK_SENT, Gap.CHECK_WRITTEN, Gap.CHECK_STORED}

    @property
    def in_end(self) -> bool:
        return self.name.startswith("END")


class Crash(Enum):
    """Who dies in a gap, and how."""

    CLIENT = "client"
    BROKER_KILLED = "broker killed"
    BROKER_POWER = "broker's power cut"
    BOTH_KILLED = "both killed"
    BOTH_POWER = "client dead and broker's power cut"
    CONNECTIONS = "connections broken"

    @property
    def of_client(self) -> bool:
        return self in {Crash.CLIENT, Crash.BOTH_KILLED, Crash.BOTH_POWER}

    @property
    def of_broker(self) -> bool:
        return self.kills_broker or self.cuts_power

    @property
    def kills_broker(self) -> bool:
        return self in {Crash.BROKER_KILLED, Crash.BOTH_KILLED}

    @property
    def cuts_power(self) -> bool:
        return self in {Crash.BROKER_POWER, Crash.BOTH_POWER}


@dataclass(eq=False)
class Stop:
    """One arming of a gap. The first task to reach it stands still until `release`."""

    gap: Gap
    client: str = ""  # who has reached it, or whose request
    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    async def wait_reached(self) -> None:
        await self._reached.wait()

    def release(self) -> None:
        self._go.set()

    async def stand(self, client: str) -> None:
        self.client = client
        self._reached.set()
        await self._go.wait()


class Gaps:
    """The gaps that are armed. Those who run the protocol say where they are by `reach`, and mostly go on at once."""

    def __init__(self) -> None:
        self.unanswered_is_unknown = False  # listeners say UNKNOW when they cannot find out
        self._armed: dict[Gap, Stop] = {}

    def arm(self, gap: Gap) -> Stop:
        """Have the next one who comes to this gap stop there."""
        stop = self._armed[gap] = Stop(gap)
        return stop

    def is_armed(self, gap: Gap) -> bool:
        return gap in self._armed

    async def reach(self, gap: Gap, client: str = "") -> bool:
        """`client`, or a request of it, has come to this gap. Returns whether it had to stop there."""
        stop = self._armed.pop(gap, None)
        if stop is not None:
            await stop.stand(client)
        return stop is not None
