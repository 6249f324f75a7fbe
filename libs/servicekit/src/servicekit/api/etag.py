"""Entity tags (RFC 9110, 8.8.3) of objects that have a version, and the conditions that requests make with them.

A tag is `"<id>.<version>"`, always a strong one: the version counts every change of what the answer shows.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Depends, Header

from servicekit.api.problem import MALFORMED_REQUEST, ProblemError

# Of a route's `responses`: the header of an answer that has a tag, and the answer to whoever has this state already.
ETAG_HEADER: dict[str, Any] = {
    "ETag": {"description": "this state, for If-Match and If-None-Match", "schema": {"type": "string"}}
}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this state already", "headers": ETAG_HEADER}
}

PATTERN = r'^(\*|(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*)$'

_TAG = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_LIST = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")


def entity_tag(object_id: str, version: int) -> str:
    """The tag of this state of the object."""
    return f'"{object_id}.{version}"'


class Condition:
    """The header If-Match or If-None-Match, or its absence."""

    def __init__(self, name: str, value: str | None) -> None:
        """Raises ProblemError for a header that is neither `*` nor a list of tags."""
        self._is_any = value is not None and value.strip() == "*"
        self._tags: list[tuple[bool, str]] | None = None
        if value is None or self._is_any:
            return
        if not _LIST.fullmatch(value):
            raise ProblemError(MALFORMED_REQUEST, f'{name} takes * or tags in double quotes, such as "7f3d.2"')
        self._tags = [(bool(weak), tag) for weak, tag in _TAG.findall(value)]

    def versions(self, object_id: str) -> frozenset[int] | None:
        """Of If-Match: the versions of the object for which the condition holds; None is every version.

        Compared strongly: a weak tag is equal to none.
        """
        if self._tags is None:
            return None
        prefix = f'"{object_id}.'
        ours = (tag[len(prefix) : -1] for weak, tag in self._tags if not weak and tag.startswith(prefix))
        return frozenset(int(text) for text in ours if text.isascii() and text.isdigit() and len(text) < 19)

    def is_known(self, tag: str) -> bool:
        """Of If-None-Match: whether the client has this state already. Compared weakly."""
        return self._is_any or any(tag == known for _, known in self._tags or ())


async def _if_match(
    if_match: Annotated[
        str | None,
        Header(
            description="the ETag of the state that the command is meant for; another one is answered with 412",
            examples=['"7f3d.2"'],
            json_schema_extra={"pattern": PATTERN},  # told, and checked above: another one is 400
        ),
    ] = None,
) -> Condition:
    return Condition("If-Match", if_match)


async def _if_none_match(
    if_none_match: Annotated[
        str | None,
        Header(
            description="the ETag of the state that the client has; the same one is answered with 304",
            examples=['"7f3d.2"'],
            json_schema_extra={"pattern": PATTERN},
        ),
    ] = None,
) -> Condition:
    return Condition("If-None-Match", if_none_match)


IfMatch = Annotated[Condition, Depends(_if_match)]
IfNoneMatch = Annotated[Condition, Depends(_if_none_match)]
