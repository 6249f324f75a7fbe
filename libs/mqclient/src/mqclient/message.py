"""What a producer sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(slots=True)
class Message:
    """One message (MISSION M1-M4). Nothing is checked here; `Producer.send` checks and raises MessageRejectedError.

    `tag` is the one second-level category that consumers filter by. `keys` find the message again in the broker's
    index: one key, or several. `delay_level` 1 to 18 delivers later, 0 at once. `flag` is the application's own number.
    Sending does not change the message; a message sent twice is two messages.
    """

    topic: str
    body: bytes
    _: KW_ONLY
    tag: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    flag: int = 0
