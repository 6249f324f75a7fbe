"""What a producer sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime


@dataclass(slots=True)
class Message:
    """One message (MISSION M1-M4). Nothing is checked here; `Producer.send` checks and raises MessageRejectedError.

    `tag` is the one second-level category that consumers filter by. `keys` find the message again in the broker's
    index: one key, or several. `flag` is the application's own number. With `wait_store_msg_ok` False the broker may
    acknowledge the message before it is on disk, whatever its policy.

    One of three may say that it is delivered later, in 40 days at most: `delay_level` 1 to 18 (MISSION D1), `delay_ms`
    from when the broker stores it, or `deliver_at`, a time with its zone; one that has passed means at once. By the
    broker's clock no message comes early. The message of a transaction waits from its commit on.

    Sending does not change the message; a message sent twice is two messages, with two unique ids. Nor does a message
    have a transaction id: each try to send it as a half message has one, and TransactionSendResult and MessageExt tell
    it.
    """

    topic: str
    body: bytes
    _: KW_ONLY
    tag: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at: datetime | None = None
    flag: int = 0
    wait_store_msg_ok: bool = True

    def put_user_property(self, name: str, value: str) -> None:
        """Add a property of the application's; the same name again overwrites (MISSION M4)."""
        self.properties = {**(self.properties or {}), name: value}
