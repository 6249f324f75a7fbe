"""What routes get from the application: the use cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from payments.service.pay_order import PayOrder
from payments.service.queries import Queries


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do."""

    pay_order: PayOrder
    queries: Queries


def _use_cases(request: Request) -> UseCases:
    return cast(UseCases, request.app.state.use_cases)


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]
