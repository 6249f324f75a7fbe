"""Message bodies and other text of strangers, made fit for a terminal and for JSON."""

from __future__ import annotations

HEX, UTF_8 = "hex", "utf-8"


def body_text(body: bytes, charset: str = UTF_8) -> tuple[str, str]:
    """The body as text and what that is: the charset, or `hex` digits for a body that is no text of it."""
    try:
        return body.decode(charset), charset
    except UnicodeError:
        return body.hex(), HEX


def printable(text: str, keep: str = "") -> str:
    """The text with everything escaped that a terminal could take for a command, but for the characters of `keep`."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )
