"""What routes get from the application: the use cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from payments.service.pay_order import PayOrder
from payments.service.queries import Queries
from payments.service.receive_event import ReceiveEvent, WebhookSignatures
from payments.service.refund_payment import RefundPart, RetryRefund


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do; `signatures` tells the gateway's requests from others."""

    pay_order: PayOrder
    refund_part: RefundPart
    retry_refund: RetryRefund
    receive_event: ReceiveEvent
    signatures: WebhookSignatures
    queries: Queries


async def _use_cases(request: Request) -> UseCases:  # async, because FastAPI hands a plain function to a thread
    return cast(UseCases, request.app.state.use_cases)


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]
