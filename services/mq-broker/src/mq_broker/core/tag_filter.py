"""The tag filter of a subscription: `*`, or tags joined by `||` (MISSION F1).

The broker compares hashes only, so it may let a stranger through whose hash is the same; the client compares text.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqproto.properties import TAGS, java_string_hash, property_start, property_value

ALL = "*"
_TAGS = property_start(TAGS)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """`codes` is None when every message passes."""

    codes: frozenset[int] | None

    def passes(self, tags_code: int) -> bool:
        """Whether a consume-queue entry with this tag hash may interest the subscriber."""
        return self.codes is None or tags_code in self.codes


def tag_hash(data: bytes | bytearray, start: int, end: int) -> int:
    """What a consume queue keeps of the properties that stand from `start` to `end` of `data`: the hash of the tag."""
    return java_string_hash(property_value(data, _TAGS, start, end).decode())


def parse_tag_expression(expression: str) -> TagFilter:
    """The filter of `expression`; empty means all. Raises ValueError with what is allowed."""
    text = expression.strip()
    if text in {"", ALL}:
        return TagFilter(None)
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags):
        raise ValueError(f"the tag expression {expression!r} has an empty part; write * or A || B")
    if ALL in tags:
        raise ValueError(f"the tag expression {expression!r} mixes * with tags; write * or A || B")
    return TagFilter(frozenset(java_string_hash(tag) for tag in tags))


EVERYTHING = parse_tag_expression(ALL)
