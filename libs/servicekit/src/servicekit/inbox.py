"""The inbox: a message that comes again changes nothing (MISSION I1, I2).

    async with units.writing() as unit:
        if await unit.inbox.once(GROUP, payment_id, now_ms):
            ... carry it out, and commit ...

Whoever publishes together with the unit cannot leave it quietly, and raises by `require_first` instead. The guards of
the domain (compare-and-set on a status, primary keys) stay behind it: the inbox forgets after some days, they do not.

Invariant: a key is consumed by the very transaction that carries its message out.
"""

from __future__ import annotations

from typing import Protocol

from servicekit.errors import ConsumedBeforeError


class Inbox(Protocol):
    """The business keys that consumer groups have consumed, as part of a unit of work."""

    async def once(self, consumer_group: str, business_key: str, at_ms: int) -> bool:
        """Whether this is the first time; it is remembered if the unit is committed.

        The key names the act, not the message. Raises MalformedMessageError for a text that can be no key.
        """


async def require_first(inbox: Inbox, consumer_group: str, business_key: str, at_ms: int) -> None:
    """Raises ConsumedBeforeError unless this is the first time."""
    if not await inbox.once(consumer_group, business_key, at_ms):
        raise ConsumedBeforeError(consumer_group, business_key)
