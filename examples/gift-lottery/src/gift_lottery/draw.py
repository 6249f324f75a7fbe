"""The draw: fair, and the same however often it is made.

Invariant: whether an order wins is a function of its id and the secret alone. So nobody can draw again until they win,
not by a repeated message and not by a restart, and with the secret every draw can be checked afterwards.
"""

from __future__ import annotations

import hashlib
import hmac

_NUMBERS = 2**64


def wins(order_id: str, secret: bytes, one_in: int) -> bool:
    """Whether the order is among the lucky ones: about one in `one_in`, which is at least 1."""
    digest = hmac.digest(secret, order_id.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") * one_in < _NUMBERS
