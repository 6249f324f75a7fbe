"""Cursors: where a page ended, as text that clients hand back unread.

Format: base64url, without padding, of the parts in UTF-8 with \\x1f between them.
"""

from __future__ import annotations

import base64
import binascii

from servicekit.errors import InvalidCursorError

_SEPARATOR = "\x1f"
_NUMBER_MAX = 2**63 - 1


def encode(*parts: str) -> str:
    """The cursor of the parts."""
    return base64.urlsafe_b64encode(_SEPARATOR.join(parts).encode()).decode().rstrip("=")


def decode(cursor: str, count: int) -> list[str]:
    """The `count` parts of a cursor. Raises InvalidCursorError."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(_SEPARATOR)
    except (binascii.Error, UnicodeError) as error:
        raise InvalidCursorError(cursor) from error
    if len(parts) != count or not all(part.isprintable() for part in parts):
        raise InvalidCursorError(cursor)
    return parts


def number(part: str, cursor: str) -> int:
    """A part that is a whole number which the database can hold. Raises InvalidCursorError with the whole cursor."""
    if not (part.isascii() and part.isdigit() and len(part) <= len(str(_NUMBER_MAX))) or int(part) > _NUMBER_MAX:
        raise InvalidCursorError(cursor)
    return int(part)
