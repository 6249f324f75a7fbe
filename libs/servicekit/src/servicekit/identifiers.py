"""What a name that people and programs choose looks like: ids of orders, products, payments, buyers and sellers."""

from __future__ import annotations

import re

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_ID = re.compile(ID_PATTERN)


def is_identifier(text: str) -> bool:
    """Whether the text is an id: 1 to 64 letters, digits, `.`, `_` and `-`, the first of them a letter or a digit."""
    return _ID.fullmatch(text) is not None
