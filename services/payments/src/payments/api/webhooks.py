"""The route for the payment gateway, whose requests are signed and carry no token."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from pydantic import ValidationError

from payments.api import problem
from payments.api.dependencies import UseCasesOf
from payments.api.webhook_schemas import Webhook, WebhookAnswer, webhook_schema
from payments.domain.errors import InvalidSignatureError
from payments.service import webhook_signature
from servicekit.api import problem as common
from servicekit.api.problem import ProblemError, documented

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

# The body is read raw, so that FastAPI does not see what it has to be.
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": webhook_schema()}}},
}


@router.post(
    "/gateway",
    summary="The gateway tells what became of a charge or a refund",
    responses=documented(
        problem.INVALID_SIGNATURE,
        common.BODY_TOO_LARGE,
        problem.NOT_A_WEBHOOK,
        problem.PAYMENT_CHANGED,
        common.STORAGE_UNAVAILABLE,
    ),
    openapi_extra=_BODY,
)
async def receive_webhook(
    request: Request,
    use_cases: UseCasesOf,
    gateway_signature: Annotated[
        str | None,
        Header(
            description="t=<unix seconds>,v1=<hex of HMAC-SHA256 over t, a dot and the raw body>; 300 s old at most",
            examples=["t=1767226200,v1=" + "0" * 64],
        ),
    ] = None,
) -> WebhookAnswer:
    """An event that comes again is answered with what became of it when it came first; it changes nothing. Everything
    but 200 asks the gateway to deliver the event again."""
    body = await request.body()
    signatures = request.headers.getlist(webhook_signature.HEADER)
    try:
        use_cases.signatures.verify(",".join(signatures) if signatures else gateway_signature, body)
    except InvalidSignatureError as error:
        headers = {"WWW-Authenticate": webhook_signature.HEADER}
        raise ProblemError(problem.INVALID_SIGNATURE, str(error), headers=headers) from error
    try:
        event = Webhook.model_validate_json(body).to_event()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise ProblemError(problem.NOT_A_WEBHOOK, f"{where}: {first['msg']}") from error
    return WebhookAnswer(event_id=event.event_id, status=await use_cases.receive_event(event))
