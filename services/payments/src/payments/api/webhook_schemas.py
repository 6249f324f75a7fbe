"""The JSON of the gateway's webhooks. Members that are not known here are the gateway's own business."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from payments.api.schemas import NewAmount
from payments.domain.gateway_event import EventKind, EventStatus, GatewayEvent
from servicekit.api.schemas import TIME_MAX_MS, AnswerModel, Currency

# Ids of somebody else's system: what the columns hold, and nothing that a log or a terminal would stumble over.
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
