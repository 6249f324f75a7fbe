"""The JSON of requests and answers. Amounts are strict whole numbers: money is never read from text or from floats."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasPath, Field, StrictInt

from payments.domain.gateway_event import EventKind, EventStatus, PayableStatus
from payments.domain.ledger import Account
from payments.domain.payment import ChangeReason, PaymentMethod, PaymentRequest, PaymentStatus
from payments.domain.refund import RefundRequest, RefundStatus
from payments.service.use_case import PaymentFilter
from servicekit.http.parameters import (
    PAGE_DEFAULT,
    AnswerModel,
    Currency,
    Cursor,
    Identifier,
    Limit,
    Milliseconds,
    RequestModel,
    like,
)

WANTED_ORDERS_MAX = 100
AMOUNT_MAX_MINOR = 2**63 - 1  # what the database holds

_PAYMENT = {
    "payment_id": "5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f",
    "order_id": "8e03978e40d543e8bc936894a57f9324",
    "buyer_id": "buyer-7",
    "amount_minor": 15800,
    "currency": "CNY",
    "method": "card",
    "status": "PARTIALLY_REFUNDED",
    "created_at_ms": 1767226199900,
    "captured_at_ms": 1767226200000,
    "refunded_minor": 800,
    "refunded_at_ms": None,
    "decline_reason": None,
}
_REFUND = {
    "refund_id": "refund-1b4f0e9851971998e732078544c96b36c3d01ced",
    "payment_id": "5f1c07d2a9b64c0f8a4d1e2b3c4d5e6f",
    "amount_minor": 800,
    "currency": "CNY",
    "reason": "the seat did not recline",
    "requested_by": "operator-1",
    "requested_at_ms": 1767300000000,
    "status": "REFUNDED",
    "refunded_at_ms": 1767300000250,
    "failure": None,
}
_CHANGE = {"old_status": "CREATED", "new_status": "CAPTURED", "reason": "captured", "at_ms": 1767226200000}
_PAYABLE_ORDER = {"order_id": _PAYMENT["order_id"], "status": "PAID"}
_CURSOR = "MTc2NzIyNjE5OTkwMB81ZjFjMDdkMmE5YjY0YzBmOGE0ZDFlMmIzYzRkNWU2Zg"


NewAmount = Annotated[StrictInt, Field(ge=1, le=AMOUNT_MAX_MINOR, description="in minor units", examples=[15800])]
Amount = Annotated[int, Field(ge=0, description="in the currency's minor unit")]
Count = Annotated[int, Field(ge=0)]


class NewPayment(RequestModel):
    """The token's subject, a buyer, pays an order, whole and in its currency."""

    model_config = like({name: _PAYMENT[name] for name in ("order_id", "amount_minor", "currency", "method")})

    order_id: Annotated[Identifier, Field(examples=["order-17"])]
    amount_minor: Annotated[NewAmount, Field(description="the order's total")]
    currency: Currency
    method: Annotated[PaymentMethod, Field(examples=["card"])]

    def to_request(self, buyer_id: str) -> PaymentRequest:
        return PaymentRequest(self.order_id, buyer_id, self.amount_minor, self.currency, self.method)


class PaymentAnswer(AnswerModel):
    """A payment; times are milliseconds since 1970-01-01 UTC, money is in the currency's minor unit."""

    model_config = like(_PAYMENT)

    payment_id: str
    order_id: str
    buyer_id: str
    amount_minor: Amount
    currency: Currency
    method: PaymentMethod
    status: Annotated[
        PaymentStatus,
        Field(description="CREATED is in progress: the money may have been taken, or the order could not be held yet"),
    ]
    created_at_ms: Milliseconds
    captured_at_ms: Milliseconds | None
    refunded_minor: Annotated[Amount, Field(description="what has gone back so far")]
    refunded_at_ms: Annotated[Milliseconds | None, Field(description="when the last of the money had gone back")]
    decline_reason: Annotated[
        str | None, Field(description="why the payment was declined; kept if its money was taken all the same")
    ]


class PaymentPage(AnswerModel):
    """Part of the list of payments."""

    model_config = like({"items": [_PAYMENT], "next_cursor": _CURSOR})

    items: list[PaymentAnswer]
    next_cursor: str | None


class Paging(RequestModel):
    """The parameters of every list."""

    limit: Limit = PAGE_DEFAULT
    cursor: Cursor | None = None


class WantedRefunds(Paging):
    """Which refunds a list has."""

    status: Annotated[RefundStatus | None, Field(description="those that stand here")] = None


class WantedPayments(Paging):
    """Which payments a list has."""

    order_id: Annotated[Identifier | None, Field(description="the payments of this order")] = None
    buyer_id: Annotated[Identifier | None, Field(description="the payments of this buyer")] = None
    status: Annotated[PaymentStatus | None, Field(description="those that stand here")] = None

    def filter(self) -> PaymentFilter:
        return PaymentFilter(self.order_id, self.buyer_id, self.status)


class StatusChangeAnswer(AnswerModel):
    """One row of a payment's history."""

    model_config = like(_CHANGE)

    old_status: Annotated[PaymentStatus | None, Field(description="null for the first row")]
    new_status: PaymentStatus
    reason: ChangeReason
    at_ms: Milliseconds


class PaymentHistory(AnswerModel):
    """Every change of a payment's status, oldest first."""

    model_config = like({"payment_id": _PAYMENT["payment_id"], "changes": [_CHANGE]})

    payment_id: str
    changes: list[StatusChangeAnswer]


class PaymentMethods(AnswerModel):
    """How a buyer can pay."""

    model_config = like({"methods": [method.value for method in PaymentMethod]})

    methods: list[PaymentMethod]


class WantedOrders(RequestModel):
    """Which orders are asked about."""

    order_id: Annotated[list[Identifier], Field(min_length=1, max_length=WANTED_ORDERS_MAX, description="repeated")]


class PayableOrderAnswer(AnswerModel):
    """What events have told of an order."""

    model_config = like(_PAYABLE_ORDER)

    order_id: str
    status: Annotated[PayableStatus, Field(description="OPEN can be paid, PAID is, CLOSED cannot be paid any more")]


class PayableOrders(AnswerModel):
    """Those of the orders that events have told of."""

    model_config = like({"items": [_PAYABLE_ORDER]})

    items: list[PayableOrderAnswer]


class NewRefund(RequestModel):
    """An operator gives money of a payment back, in the payment's currency."""

    model_config = like({"amount_minor": 800, "reason": "the seat did not recline"})

    amount_minor: Annotated[NewAmount, Field(description="at most what is left of the payment")]
    reason: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]

    def to_request(self, payment_id: str) -> RefundRequest:
        return RefundRequest(payment_id, self.amount_minor, self.reason)


class RefundAnswer(AnswerModel):
    """A refund; times are milliseconds since 1970-01-01 UTC, money is in the currency's minor unit."""

    model_config = like(_REFUND)

    refund_id: str
    payment_id: str
    amount_minor: Amount
    currency: Currency
    reason: str
    requested_by: Annotated[str, Field(description="who asked for it; refund-handler: orders did")]
    requested_at_ms: Milliseconds
    status: Annotated[
        RefundStatus,
        Field(description="REQUESTED is in progress: the money may have gone back; FAILED can be tried again"),
    ]
    refunded_at_ms: Milliseconds | None
    failure: Annotated[str | None, Field(description="what the gateway said to a refund that is FAILED")]


class RefundPage(AnswerModel):
    """Part of a list of refunds."""

    model_config = like({"items": [_REFUND], "next_cursor": _CURSOR})

    items: list[RefundAnswer]
    next_cursor: str | None


class GatewayBookAnswer(AnswerModel):
    """The sums of the gateway's own book."""

    captured_minor: Amount
    refunded_minor: Amount
    captures: Count
    refunds: Count


class RefusedEventAnswer(AnswerModel):
    """An event of the gateway that contradicts what is known of its payment; it changed nothing."""

    event_id: Annotated[str, Field(validation_alias=AliasPath("event", "event_id"))]
    kind: Annotated[EventKind, Field(validation_alias=AliasPath("event", "kind"))]
    payment_id: Annotated[str, Field(validation_alias=AliasPath("event", "payment_id"))]
    reason: Annotated[str, Field(validation_alias=AliasPath("judgement", "reason"))]
    received_at_ms: Milliseconds


class StatisticsAnswer(AnswerModel):
    """Where all money is at one moment, and what the gateway's own book says; at rest both agree."""

    model_config = like(
        {
            "payments": {"CREATED": 0, "CAPTURED": 7, "DECLINED": 2, "PARTIALLY_REFUNDED": 1, "REFUNDED": 1},
            "refunds": {"REQUESTED": 0, "FAILED": 0, "REFUNDED": 2},
            "captured_minor": 142200,
            "refunded_minor": 16600,
            "ledger": {"gateway": 125600, "buyer-funds": -125600},
            "gateway_events": {"HANDLED": 10, "REPEATED": 2, "REFUSED": 0},
            "refused_events": [],
            "outbox_messages": 0,
            "gateway": {"captured_minor": 142200, "refunded_minor": 16600, "captures": 9, "refunds": 2},
        }
    )

    payments: dict[PaymentStatus, Count]
    refunds: dict[RefundStatus, Count]
    captured_minor: Annotated[Amount, Field(description="everything that was ever taken, refunded or not")]
    refunded_minor: Amount
    ledger: Annotated[dict[Account, int], Field(description="the balance of each account; together always 0")]
    gateway_events: dict[EventStatus, Count]
    refused_events: Annotated[list[RefusedEventAnswer], Field(description="the latest ones")]
    outbox_messages: Annotated[Count, Field(description="what waits for the queue")]
    gateway: GatewayBookAnswer
