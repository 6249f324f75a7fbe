"""The Idempotency-Key header of a request."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header

from servicekit.api.problem import INVALID_IDEMPOTENCY_KEY, MISSING_IDEMPOTENCY_KEY, ProblemError

REPLAYED_HEADER = "Idempotency-Replayed"

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def _idempotency_key(  # async, because FastAPI hands a plain function to a thread
    idempotency_key: Annotated[
        str | None,
        Header(
            description="required; 1 to 255 visible ASCII characters, new for each new request", examples=["7f3d-1"]
        ),
    ] = None,
) -> str:
    if idempotency_key is None:
        raise ProblemError(
            MISSING_IDEMPOTENCY_KEY, "send Idempotency-Key, and the same one again when you repeat the request"
        )
    if not _KEY.fullmatch(idempotency_key):
        raise ProblemError(INVALID_IDEMPOTENCY_KEY, "Idempotency-Key takes 1 to 255 visible ASCII characters")
    return idempotency_key


IdempotencyKey = Annotated[str, Depends(_idempotency_key)]
