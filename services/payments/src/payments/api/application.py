"""The FastAPI application over the use cases, and the one route whose requests are signed: the gateway's webhooks.

Of the JSON of webhooks, members that are not known here are the gateway's own business.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter, FastAPI, Header, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from osenv import Clock
from payments.api import problem
from payments.api.problem import PROBLEM_OF_ERROR
from payments.api.routes import (
    UseCases,
    UseCasesOf,
    operations_router,
    payable_orders_router,
    payments_router,
    refunds_router,
)
from payments.api.schemas import NewAmount
from payments.domain.errors import InvalidSignatureError
from payments.domain.gateway_event import EventKind, EventStatus, GatewayEvent
from payments.service import receive_event
from servicekit.auth import Tokens
from servicekit.http import application
from servicekit.http import problem as common
from servicekit.http.limits import AdmissionLimit, RateLimit
from servicekit.http.parameters import TIME_MAX_MS, AnswerModel, Currency
from servicekit.http.problem import ProblemError, documented
from servicekit.monitoring import Health

# Ids of another system: what the columns hold, and nothing that a log or a terminal would stumble over.
_VISIBLE = r"^[\x21-\x7e]+$"
EventId = Annotated[str, Field(pattern=_VISIBLE, max_length=255)]
ForeignId = Annotated[str, Field(pattern=_VISIBLE, max_length=128)]


class WebhookData(BaseModel):
    """What the event is about; the charge's id is the payment's."""

    charge_id: ForeignId
    order_id: ForeignId
    amount_minor: NewAmount
    currency: Currency
    decline_reason: Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    refund_id: ForeignId | None = None


class Webhook(BaseModel):
    """An event of the gateway."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "event_id": "event-5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f-captured",
                    "type": "charge.captured",
                    "occurred_at_ms": 1767226200000,
                    "data": {
                        "charge_id": "5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f",
                        "order_id": "8e03978e40d543e8bc936894a57f9324",
                        "amount_minor": 15800,
                        "currency": "CNY",
                    },
                }
            ]
        }
    )

    event_id: EventId
    type: EventKind
    occurred_at_ms: Annotated[StrictInt, Field(ge=0, le=TIME_MAX_MS, description="milliseconds since 1970-01-01 UTC")]
    data: WebhookData

    @model_validator(mode="after")
    def _names_its_refund(self) -> Self:
        if self.type is EventKind.REFUND_REFUNDED and self.data.refund_id is None:
            raise ValueError(f"an event of type {self.type} needs data.refund_id")
        return self

    def to_event(self) -> GatewayEvent:
        data = self.data
        return GatewayEvent(
            event_id=self.event_id,
            kind=self.type,
            occurred_at_ms=self.occurred_at_ms,
            payment_id=data.charge_id,
            order_id=data.order_id,
            amount_minor=data.amount_minor,
            currency=data.currency,
            decline_reason=data.decline_reason if self.type is EventKind.CHARGE_DECLINED else None,
            refund_id=data.refund_id if self.type is EventKind.REFUND_REFUNDED else None,
        )


class WebhookAnswer(AnswerModel):
    """What became of the event, now or when it came first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"event_id": "event-5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f-captured", "status": "HANDLED"}]
        }
    )

    event_id: str
    status: Annotated[
        EventStatus,
        Field(description="REPEATED told what was known; REFUSED contradicts it: repeating it would mend nothing"),
    ]


def webhook_schema() -> dict[str, Any]:
    """The JSON schema of a webhook's body, in one piece: what it refers to is written where it is meant."""
    schema = Webhook.model_json_schema()
    definitions = schema.pop("$defs")

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].rpartition("/")[2]])
        return {name: inlined(value) for name, value in part.items()}

    found: dict[str, Any] = inlined(schema)
    return found


webhooks_router = APIRouter(prefix="/webhooks", tags=["webhooks"])

# The body is read raw, so that FastAPI does not see what it has to be.
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": webhook_schema()}}},
}


@webhooks_router.post(
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
    signatures = request.headers.getlist(receive_event.HEADER)
    try:
        use_cases.signatures.verify(",".join(signatures) if signatures else gateway_signature, body)
    except InvalidSignatureError as error:
        headers = {"WWW-Authenticate": receive_event.HEADER}
        raise ProblemError(problem.INVALID_SIGNATURE, str(error), headers=headers) from error
    try:
        event = Webhook.model_validate_json(body).to_event()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise ProblemError(problem.NOT_A_WEBHOOK, f"{where}: {first['msg']}") from error
    return WebhookAnswer(event_id=event.event_id, status=await use_cases.receive_event(event))


def build_api(
    use_cases: UseCases,
    health: Health,
    *,
    tokens: Tokens,
    rate_limit: RateLimit | None,
    clock: Clock,
    admission_limit: AdmissionLimit | None = None,
) -> FastAPI:
    """The routes of payments, with all that servicekit gives a service's API."""
    app = application.build_api(
        title="Hourglass payments",
        summary="Payments that are captured once and told once",
        routers=(
            payments_router,
            refunds_router,
            payable_orders_router,
            webhooks_router,
            operations_router,
        ),
        health=health,
        problem_of_error=PROBLEM_OF_ERROR,
        tokens=tokens,
        rate_limit=rate_limit,
        clock=clock,
        admission_limit=admission_limit,
    )
    app.state.use_cases = use_cases
    return app
