"""The Idempotency-Key header of a request: draft-ietf-httpapi-idempotency-key-header-07.

Its value is a string of RFC 8941, in double quotes. Many clients leave the quotes out, and are understood: `"7f3d-1"`
and `7f3d-1` are the same key. A key that is missing is answered with 400, one whose request is still being carried out
with 409, one that was used for another payload with 422; and a repetition with the first answer.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Depends, Header, Request

from servicekit.api.problem import INVALID_IDEMPOTENCY_KEY, MISSING_IDEMPOTENCY_KEY, ProblemError

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
KEY_MAX_CHARACTERS = 255

PATTERN = r'^("([ !#-\[\]-~]|\\["\\]){1,255}"|[!#-~]{1,255})$'

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
            json_schema_extra={"pattern": PATTERN},  # told, and checked below: another one is 400
        ),
    ] = None,
) -> str:
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
