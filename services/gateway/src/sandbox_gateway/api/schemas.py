"""The JSON of requests and answers. Amounts are strict whole numbers: money is never read from text or from floats."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StrictInt

from sandbox_gateway.domain.charge import Charge, ChargeStatus, ChargeTerms
from sandbox_gateway.domain.failures import LATE_MAX_MS, Failures
from sandbox_gateway.domain.refund import Refund, RefundStatus, RefundTerms
from sandbox_gateway.service.unit_of_work import Book
from servicekit.api.schemas import AnswerModel, Currency, Identifier, RequestModel

AMOUNT_MAX_MINOR = 2**63 - 1  # what the database holds

REFUND_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

RefundIdentifier = Annotated[str, Field(pattern=REFUND_ID_PATTERN, examples=["refund-17"])]
Amount = Annotated[StrictInt, Field(ge=1, le=AMOUNT_MAX_MINOR, description="in minor units", examples=[15800])]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, description="of all charges", examples=[0.1])]


class NewCharge(RequestModel):
    """Money to take."""

    charge_id: Annotated[Identifier, Field(examples=["payment-17"])]
    order_id: Annotated[Identifier, Field(examples=["order-17"])]
    amount_minor: Amount
    currency: Currency
    method: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,19}$", examples=["card"])]

    def to_terms(self) -> ChargeTerms:
        return ChargeTerms(self.charge_id, self.order_id, self.amount_minor, self.currency, self.method)


class ChargeAnswer(AnswerModel):
    """A charge; times are milliseconds since 1970-01-01 UTC."""

    charge_id: str
    order_id: str
    amount_minor: int
    currency: str
    method: str
    status: ChargeStatus
    created_at_ms: int
    decided_at_ms: int | None
    decline_reason: str | None

    @classmethod
    def of(cls, charge: Charge) -> Self:
        terms = charge.terms
        return cls(
            charge_id=terms.charge_id,
            order_id=terms.order_id,
            amount_minor=terms.amount_minor,
            currency=terms.currency,
            method=terms.method,
            status=charge.status,
            created_at_ms=charge.created_at_ms,
            decided_at_ms=charge.decided_at_ms,
            decline_reason=charge.decline_reason,
        )


class NewRefund(RequestModel):
    """Money to give back."""

    refund_id: RefundIdentifier
    charge_id: Annotated[Identifier, Field(examples=["payment-17"])]
    amount_minor: Amount
    currency: Currency

    def to_terms(self) -> RefundTerms:
        return RefundTerms(self.refund_id, self.charge_id, self.amount_minor, self.currency)


class RefundAnswer(AnswerModel):
    """A refund; times are milliseconds since 1970-01-01 UTC."""

    refund_id: str
    charge_id: str
    amount_minor: int
    currency: str
    status: RefundStatus
    created_at_ms: int
    refunded_at_ms: int | None

    @classmethod
    def of(cls, refund: Refund) -> Self:
        terms = refund.terms
        return cls(
            refund_id=terms.refund_id,
            charge_id=terms.charge_id,
            amount_minor=terms.amount_minor,
            currency=terms.currency,
            status=refund.status,
            created_at_ms=refund.created_at_ms,
            refunded_at_ms=refund.refunded_at_ms,
        )


class BookAnswer(AnswerModel):
    """What was taken and given back since the beginning."""

    captured_minor: int
    refunded_minor: int
    captures: int
    refunds: int

    @classmethod
    def of(cls, book: Book) -> Self:
        return cls.model_validate(book, from_attributes=True)


class FailuresDocument(RequestModel):
    """What goes wrong: the question and the answer of /v1/failures. What is left out is 0."""

    declined: Share = 0.0
    late: Share = 0.0
    late_ms: Annotated[StrictInt, Field(ge=0, le=LATE_MAX_MS, examples=[3000])] = 0
    duplicated: Share = 0.0
    reordered: Share = 0.0
    never: Share = 0.0

    def to_failures(self) -> Failures:
        return Failures(**self.model_dump())

    @classmethod
    def of(cls, failures: Failures) -> Self:
        return cls.model_validate(failures, from_attributes=True)
