"""Parameters that all services share: the JSON of ids and pages, preconditions, idempotency keys.

Numbers are strict: money is never read from text.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from fastapi import Depends, Header, Request
from pydantic import BaseModel, ConfigDict, Field

from servicekit.http.problem import INVALID_IDEMPOTENCY_KEY, MALFORMED_REQUEST, MISSING_IDEMPOTENCY_KEY, ProblemError
from servicekit.identifiers import ID_PATTERN as ID_PATTERN  # noqa: PLC0414 - for the paths of routes

PAGE_DEFAULT = 50
PAGE_MAX = 200
TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999

Identifier = Annotated[str, Field(pattern=ID_PATTERN)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="ISO 4217 code", examples=["CNY"])]
Limit = Annotated[int, Field(ge=1, le=PAGE_MAX, description="how many at most")]
Cursor = Annotated[str, Field(max_length=300, description="next_cursor of the page before")]
Milliseconds = Annotated[int, Field(ge=0, le=TIME_MAX_MS, description="milliseconds since 1970-01-01 UTC")]

# Of a route's `responses`: where to find what was made.
LOCATION_HEADER: dict[str, Any] = {"Location": {"description": "where to read it", "schema": {"type": "string"}}}


class RequestModel(BaseModel):
    """A request: unknown members are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AnswerModel(BaseModel):
    """An answer, made of a value of the domain by the names of its attributes."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    @classmethod
    def of(cls, value: object) -> Self:
        """The answer that says what `value` says."""
        return cls.model_validate(value)


def like(example: dict[str, Any]) -> ConfigDict:
    """The model's example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [example]})


class Liveness(AnswerModel):
    """The process answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "live"}]})

    status: Literal["live"] = "live"


class Readiness(AnswerModel):
    """Whether everything that the service needs works; `checks` has each part's answer: "ok", "ok, but ...",
    or what is wrong."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"status": "ready", "checks": {"database": "ok", "producer": "ok", "consumers": "ok"}},
                {
                    "status": "not ready",
                    "checks": {"database": "no answer in 2 s", "producer": "ok", "consumers": "ok"},
                },
            ]
        }
    )

    status: Literal["ready", "not ready"]
    checks: dict[str, str]


# Of a route's `responses`: the header of an answer that has a tag, and the answer to a client that has this state
# already.
ETAG_HEADER: dict[str, Any] = {
    "ETag": {"description": "this state, for If-Match and If-None-Match", "schema": {"type": "string"}}
}
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The client has this state already", "headers": ETAG_HEADER}
}

TAGS_PATTERN = r'^(\*|(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*)$'

_TAG = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_LIST = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")


def entity_tag(object_id: str, version: int) -> str:
    """The tag of this state of the object (RFC 9110, 8.8.3).

    Always a strong one: the version counts every change of what the answer shows.
    """
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
            json_schema_extra={"pattern": TAGS_PATTERN},  # told, and checked above: another one is 400
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
            json_schema_extra={"pattern": TAGS_PATTERN},
        ),
    ] = None,
) -> Condition:
    return Condition("If-None-Match", if_none_match)


IfMatch = Annotated[Condition, Depends(_if_match)]
IfNoneMatch = Annotated[Condition, Depends(_if_none_match)]


HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
KEY_MAX_CHARACTERS = 255

KEY_PATTERN = r'^("([ !#-\[\]-~]|\\["\\]){1,255}"|[!#-~]{1,255})$'

# Of a route's `responses`.
REPLAYED_HEADER_DOCUMENTED: dict[str, Any] = {
    REPLAYED_HEADER: {
        "description": "there, and true, when the answer is that of an earlier request with the same key",
        "schema": {"type": "string", "const": "true"},
    }
}

_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_BARE = re.compile(r"[\x21\x23-\x7e]+")
_ESCAPE = re.compile(r'\\(["\\])')


async def _idempotency_key(  # async, because FastAPI hands a plain function to a thread
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="Required. 1 to 255 visible ASCII characters in double quotes, new for each new request of the"
            " same caller; a UUID is a good one. A key is remembered for 30 days.",
            examples=['"8e03978e-40d5-43e8-bc93-6894a57f9324"'],
            json_schema_extra={"pattern": KEY_PATTERN},  # told, and checked below: another one is 400
        ),
    ] = None,
) -> str:
    """The key in the header (draft-ietf-httpapi-idempotency-key-header-07), which is a string of RFC 8941, in quotes.

    Many clients leave the quotes out, and are understood: `"7f3d-1"` and `7f3d-1` are the same key. A key that is
    missing is answered with 400, one whose request is still being carried out with 409, one that was used for another
    payload with 422; and a repetition with the first answer.
    """
    if idempotency_key is None:
        raise ProblemError(
            MISSING_IDEMPOTENCY_KEY, "send Idempotency-Key, and the same one again when you repeat the request"
        )
    key = _parse(idempotency_key)
    if key is None or len(request.headers.getlist(HEADER)) > 1:
        raise ProblemError(
            INVALID_IDEMPOTENCY_KEY,
            f"{HEADER} takes one string of 1 to {KEY_MAX_CHARACTERS} ASCII characters, in double quotes or without",
        )
    return key


def _parse(value: str) -> str | None:
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        key = _ESCAPE.sub(r"\1", quoted[1])
    elif _BARE.fullmatch(value):
        key = value
    else:
        return None
    return key if 1 <= len(key) <= KEY_MAX_CHARACTERS else None


IdempotencyKey = Annotated[str, Depends(_idempotency_key)]
