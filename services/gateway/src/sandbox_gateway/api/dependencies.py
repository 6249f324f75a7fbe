"""What routes get from the application; and who may ask at all."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sandbox_gateway.service.behaviour import Behaviour
from sandbox_gateway.service.gateway import Gateway
from servicekit.api.problem import UNAUTHENTICATED, ProblemError


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do."""

    gateway: Gateway
    behaviour: Behaviour
    api_key: str


_bearer = HTTPBearer(scheme_name="api_key", description="The API key.", auto_error=False)


def _use_cases(request: Request) -> UseCases:
    return cast(UseCases, request.app.state.use_cases)


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]


async def check_api_key(
    use_cases: UseCasesOf, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Raises ProblemError for whoever has not the key."""
    if credentials is None or not hmac.compare_digest(credentials.credentials.encode(), use_cases.api_key.encode()):
        raise ProblemError(UNAUTHENTICATED, "send Authorization: Bearer <API key>")
