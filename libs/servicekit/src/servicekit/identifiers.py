"""Ids that people and programs choose (orders, products, payments, buyers, sellers), and cursors of lists.

The format of a cursor: base64url, without padding, of the parts in UTF-8 with 0x1f between them.
"""

from __future__ import annotations

import base64
import binascii
import re

from servicekit.errors import InvalidCursorError

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_ID = re.compile(ID_PATTERN)


def is_identifier(text: str) -> bool:
    """Whether the text is an id: 1 to 64 letters, digits, `.`, `_` and `-`, the first of them a letter or a digit."""
    return _ID.fullmatch(text) is not None


_SEPARATOR = "\x1f"
_NUMBER_MAX = 2**63 - 1


def encode_cursor(*parts: str) -> str:
    """The cursor of the parts: where a page ended, as text that clients hand back unread."""
    return base64.urlsafe_b64encode(_SEPARATOR.join(parts).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, count: int) -> list[str]:
    """The `count` parts of a cursor. Raises InvalidCursorError."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(_SEPARATOR)
    except (binascii.Error, UnicodeError) as error:
        raise InvalidCursorError(cursor) from error
    if len(parts) != count or not all(part.isprintable() for part in parts):
        raise InvalidCursorError(cursor)
    return parts


def cursor_number(part: str, cursor: str) -> int:
    """A part that is a whole number which the database can hold. Raises InvalidCursorError with the whole cursor."""
    if not (part.isascii() and part.isdigit() and len(part) <= len(str(_NUMBER_MAX))) or int(part) > _NUMBER_MAX:
        raise InvalidCursorError(cursor)
    return int(part)
