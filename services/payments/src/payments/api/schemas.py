"""The JSON of requests and answers. Amounts are strict whole numbers: money is never read from text or from floats."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StrictInt

from payments.domain.payment import Payment, PaymentMethod, PaymentRequest, StatusChange
from payments.domain.payment_status import ChangeReason, PaymentStatus
from payments.service.queries import PaymentPage, Statistics
from servicekit.api.schemas import AnswerModel, Currency, Identifier, RequestModel

AMOUNT_MAX_MINOR = 2**63 - 1  # what the database holds


class NewPayment(RequestModel):
    """A buyer pays an order, whole and in its currency."""

    order_id: Annotated[Identifier, Field(examples=["order-17"])]
    buyer_id: Annotated[Identifier, Field(examples=["buyer-7"])]
    amount_minor: Annotated[
        StrictInt, Field(ge=1, le=AMOUNT_MAX_MINOR, description="the order's total", examples=[15800])
    ]
    currency: Currency
    method: Annotated[PaymentMethod, Field(examples=["card"])]

    def to_request(self) -> PaymentRequest:
        return PaymentRequest(self.order_id, self.buyer_id, self.amount_minor, self.currency, self.method)


class PaymentAnswer(AnswerModel):
    """A payment; times are milliseconds since 1970-01-01 UTC, money is in the currency's minor unit."""

    payment_id: str
    order_id: str
    buyer_id: str
    amount_minor: int
    currency: str
    method: PaymentMethod
    status: Annotated[PaymentStatus, Field(description="CREATED is in progress: the money may have been taken")]
    created_at_ms: int
    captured_at_ms: int | None
    refunded_at_ms: int | None
    decline_reason: str | None

    @classmethod
    def of(cls, payment: Payment) -> Self:
        return cls.model_validate(payment, from_attributes=True)


class PaymentPageAnswer(AnswerModel):
    items: list[PaymentAnswer]
    next_cursor: str | None

    @classmethod
    def of(cls, page: PaymentPage) -> Self:
        return cls(items=[PaymentAnswer.of(payment) for payment in page.items], next_cursor=page.next_cursor)


class StatusChangeAnswer(AnswerModel):
    old_status: Annotated[PaymentStatus | None, Field(description="null for the first row")]
    new_status: PaymentStatus
    reason: ChangeReason
    at_ms: int

    @classmethod
    def of(cls, change: StatusChange) -> Self:
        return cls.model_validate(change, from_attributes=True)


class PaymentHistory(AnswerModel):
    payment_id: str
    changes: list[StatusChangeAnswer]


class GatewayBookAnswer(AnswerModel):
    captured_minor: int
    refunded_minor: int
    captures: int
    refunds: int


class StatisticsAnswer(AnswerModel):
    """Where all payments are at one moment, and what the gateway's own book says; at rest both agree."""

    payments: dict[PaymentStatus, int]
    captured_minor: Annotated[int, Field(description="everything that was ever taken, refunded or not")]
    refunded_minor: int
    gateway: GatewayBookAnswer

    @classmethod
    def of(cls, statistics: Statistics) -> Self:
        return cls.model_validate(statistics, from_attributes=True)
